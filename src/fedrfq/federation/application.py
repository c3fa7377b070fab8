"""What the committee computes: detection and aggregation of a round's uploads.

These are prototypes or, in a public round, statistics of classes on a public feature map. All
inputs and outputs are bytes, as the consensus requires. The module needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.federation import codec
from fedrfq.federation.public_task import PublicTask
from fedrfq.prototypes.fixed_point import Bound, Globals, Precision, Uploads, admit, refuses
from fedrfq.robust.aggregation import Decision, decide, decide_public, start
from fedrfq.robust.detectors import Detector, State

__all__ = ["Memory", "PrototypeApplication", "PublicTask", "RoundForm", "Task"]


@dataclass(frozen=True)
class RoundForm:
    """What the uploads of a round look like: their rows, values, precision and bound."""

    rows: int
    values: int
    precision: Precision
    bound: Bound | None = None

    def refuses(self, round_: int, client: int, content: bytes) -> str | None:
        """Return why a client's upload cannot be admitted, or None if it can."""
        return refuses(
            round_,
            client,
            content,
            self.rows,
            self.values,
            precision=self.precision,
            bound=self.bound,
        )

    def admit(self, round_: int, contents: Mapping[int, bytes]) -> Uploads:
        """Return the clients' uploads, less those that are refused."""
        return admit(round_, contents, self.rows, self.values, self.precision, self.bound)


class Memory(NamedTuple):
    """What a round leaves to the next one."""

    state: State  # of the detector and the rule
    globals_: Globals
    public: Globals | None = None


@dataclass(frozen=True)
class Task:
    """Everything besides the uploads that determines a round's outcome."""

    detector: Detector
    rule: str  # the aggregation rule, one of RULES
    precision: Precision
    clients: int
    classes: int
    values: int  # the length of a prototype
    public: PublicTask | None = None  # None where nothing is exchanged on a public feature map

    def start_state(self) -> State:
        """Return what detector and rule remember before the first round."""
        return start(self.detector, self.rule, self.clients, self.classes, self.values)

    def public_in(self, round_: int) -> PublicTask | None:
        """Return the public task if it is this round's; None in a round of prototypes."""
        if self.public is not None and self.public.due(round_):
            return self.public
        return None

    def form(self, round_: int) -> RoundForm:
        """Return what the uploads of a round look like."""
        if self.public_in(round_) is None:
            return self._prototypes
        return self._statistics

    @cached_property
    def _prototypes(self) -> RoundForm:
        return RoundForm(self.classes, self.values, self.precision)

    @cached_property
    def _statistics(self) -> RoundForm:
        public = self.public
        assert public is not None
        return RoundForm(public.rows, public.values, public.precision, public.bound)

    def decide(self, round_: int, before: Memory, uploads: Uploads) -> Decision:
        """Decide a round, given what the round before it left."""
        public = self.public_in(round_)
        if public is None:
            decision = decide(self.detector, self.rule, before.state, before.globals_, uploads)
            return replace(decision, public=before.public)
        last = before.public or public.nothing()
        # Messages do not say how much noise is in them; what was agreed on does.
        checked = replace(uploads.checked(public.bound), noise=public.noise)
        admitted, verdict, statistics = decide_public(
            self.detector, self.clients, public.classes, last, checked
        )
        return Decision(admitted, verdict, before.state, before.globals_, statistics)


@dataclass(frozen=True)
class PrototypeApplication:
    """The committee's application.

    The content of an upload is a client's message as `fixed_point.encode` writes it.
    """

    task: Task

    def start(self) -> Outcome:
        """Return the outcome that the first round starts from: no prototypes, a fresh detector."""
        task = self.task
        no_prototypes = Globals.none(task.classes, task.values)
        fresh_state = codec.encode_state(task.start_state())
        return Outcome(codec.encode_globals(no_prototypes), b"", fresh_state)

    def refuses(self, upload: Upload) -> str | None:
        """Return why an upload cannot be admitted, or None if it can."""
        return self.task.form(upload.round).refuses(upload.round, upload.client, upload.content)

    def refuses_successor(self, content: bytes) -> str | None:
        """Return why a federation cannot follow this one: here none can."""
        return "the federation of a simulated run cannot be changed"

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        """Return a round's outcome: prototypes, verdicts, state, statistics."""
        contents = {upload.client: upload.content for upload in uploads}
        admitted = self.task.form(round_).admit(round_, contents)
        assert not admitted.refused, "refused uploads are never stored, and so never decided on"
        decision = self.task.decide(round_, self.memory(before), admitted)
        verdicts = codec.encode_verdicts(decision.uploads.clients, decision.verdict)
        # What a round does not decide is handed on byte for byte.
        public = self.task.public_in(round_)
        if public is not None:
            assert decision.public is not None
            statistics = codec.encode_public(decision.public, public)
            return before._replace(verdicts=verdicts, public=statistics)
        return Outcome(
            codec.encode_globals(decision.globals_),
            verdicts,
            codec.encode_state(decision.state),
            before.public,
        )

    def memory(self, outcome: Outcome) -> Memory:
        """Return what the next round starts from."""
        globals_ = codec.decode_globals(outcome.globals_, self.task.classes, self.task.values)
        return Memory(codec.decode_state(outcome.state), globals_, self.public(outcome.public))

    def public(self, content: bytes) -> Globals | None:
        """Return the statistics in an outcome's public part; None if there are none."""
        return codec.decode_public(content, self.task.public)
