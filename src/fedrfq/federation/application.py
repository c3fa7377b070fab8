"""What the committee computes: detection and aggregation of a round's prototypes, as functions of bytes. Needs no PyTorch."""

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
    """All that decides what becomes of a round's uploads, but for the uploads themselves."""

    detector: Detector
    rule: str  # of aggregation, one of `centres.RULES`
    precision: Precision
    clients: int
    classes: int
    values: int  # of a prototype


@dataclass(frozen=True)
class PrototypeApplication:
    """The committee's application. An upload's content is a client's message as `prototypes.encode` writes it."""

    task: Task

    def start(self) -> Outcome:
        nothing = Globals.none(self.task.classes, self.task.values)
        return Outcome(
            codec.encode_globals(nothing),
            b"",
            codec.encode_state(self.task.detector.start(self.task.clients)),
        )

    def refuses(self, upload: Upload) -> str | None:
        """What `prototypes` has against it; of servers there is nothing to be decided."""
        if upload.client >= self.task.clients:
            return "a change proposal"
        task = self.task
        return refuses(
            upload.round, upload.client, upload.content, task.classes, task.values, task.precision
        )

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        task = self.task
        (globals_, state) = self.memory(before)
        admitted = self._admitted(round_, uploads)
        assert not admitted.refused, "what is refused is never stored, and so never decided on"
        decision = decide(task.detector, task.rule, state, globals_, admitted)
        return Outcome(
            codec.encode_globals(decision.globals_),
            codec.encode_verdicts(decision.uploads.clients, decision.verdict),
            codec.encode_state(decision.state),
        )

    def over(self, outcome: Outcome) -> bool:
        return False

    def memory(self, outcome: Outcome) -> tuple[Globals, State]:
        """What the next round starts from."""
        globals_ = codec.decode_globals(outcome.globals_, self.task.classes, self.task.values)
        return globals_, codec.decode_state(outcome.state)

    def _admitted(self, round_: int, uploads: Sequence[Upload]) -> Uploads:
        contents = {upload.client: upload.content for upload in uploads}
        return admit(round_, contents, self.task.classes, self.task.values, self.task.precision)
