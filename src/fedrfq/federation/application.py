"""What the committee computes: detection and aggregation of a round's prototypes.

All inputs and outputs are bytes, as the consensus requires. The module needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.federation import codec
from fedrfq.prototypes.fixed_point import Globals, Precision, Uploads, admit, refuses
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import Detector, State


@dataclass(frozen=True)
class Task:
    """Everything besides the uploads that determines a round's outcome."""

    detector: Detector
    rule: str  # the aggregation rule, one of `centres.RULES`
    precision: Precision
    clients: int
    classes: int
    values: int  # the length of a prototype


@dataclass(frozen=True)
class PrototypeApplication:
    """The committee's application.

    The content of an upload is a client's message as `prototypes.encode` writes it.
    """

    task: Task

    def start(self) -> Outcome:
        """Return the outcome that the first round starts from: no prototypes, a fresh detector."""
        task = self.task
        no_prototypes = Globals.none(task.classes, task.values)
        fresh_state = task.detector.start(task.clients)
        return Outcome(codec.encode_globals(no_prototypes), b"", codec.encode_state(fresh_state))

    def refuses(self, upload: Upload) -> str | None:
        """Return why an upload cannot be admitted, or None if it can.

        Servers have nothing to upload here: only a reconfigurable federation takes change
        proposals.
        """
        task = self.task
        if upload.client >= task.clients:
            return "a change proposal"
        return refuses(
            upload.round,
            upload.client,
            upload.content,
            task.classes,
            task.values,
            precision=task.precision,
        )

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        """Return a round's outcome: the prototypes, the verdicts and the detector's state."""
        task = self.task
        globals_, state = self.memory(before)
        admitted = self._admit(round_, uploads)
        assert not admitted.refused, "refused uploads are never stored, and so never decided on"
        decision = decide(task.detector, task.rule, state, globals_, admitted)
        return Outcome(
            codec.encode_globals(decision.globals_),
            codec.encode_verdicts(decision.uploads.clients, decision.verdict),
            codec.encode_state(decision.state),
        )

    def over(self, outcome: Outcome) -> bool:
        """Return whether the run ends with this outcome; here it never does."""
        return False

    def memory(self, outcome: Outcome) -> tuple[Globals, State]:
        """Return what the next round starts from: the prototypes and the detector's state."""
        globals_ = codec.decode_globals(outcome.globals_, self.task.classes, self.task.values)
        return globals_, codec.decode_state(outcome.state)

    def _admit(self, round_: int, uploads: Sequence[Upload]) -> Uploads:
        contents = {upload.client: upload.content for upload in uploads}
        return admit(round_, contents, self.task.classes, self.task.values, self.task.precision)
