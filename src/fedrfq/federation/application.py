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
from fedrfq.federation.retained import (
    Retained,
    is_replacing,
    judged,
    own_state,
    retained_in,
    retaining,
    revised,
    statistics_of,
    verdict_on,
)
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import (
    Bound,
    Globals,
    Precision,
    Uploads,
    admit,
    refuses,
)
from fedrfq.prototypes.noise_scale import NoiseScale
from fedrfq.prototypes.norm_bound import NormBound
from fedrfq.robust.aggregation import Decision, admitted, decide, decide_public, start
from fedrfq.robust.detectors import Detector, State

__all__ = ["Memory", "PrototypeApplication", "PublicTask", "RoundForm", "Task"]


@dataclass(frozen=True)
class RoundForm:
    """What the uploads of a round look like: their rows, values, precision and bound."""

    rows: int
    values: int
    precision: Precision
    bound: Bound | None = None
    # The form of statistics that replace a client's last ones; None where they cannot.
    replacing: RoundForm | None = None

    def refuses(self, round_: int, client: int, content: bytes) -> str | None:
        """Return why a client's upload cannot be admitted, or None if it can."""
        if self.replacing is not None and is_replacing(content):
            return self.replacing.refuses(round_, client, statistics_of(content))
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
        replaced = {
            k: content
            for k, content in contents.items()
            if self._replaces(content) and self.refuses(round_, k, content) is None
        }
        others = {k: content for k, content in contents.items() if k not in replaced}
        found = admit(round_, others, self.rows, self.values, self.precision, self.bound)
        return found.replacing(replaced)

    def _replaces(self, content: bytes) -> bool:
        return self.replacing is not None and is_replacing(content)


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

    def __post_init__(self) -> None:
        # Here and not in a round: it raises where the noise does not suit the grid.
        assert self.noise is None or self.privacy is not None

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
        replacing = None
        if self.is_revocable:
            replacing = self._statistics
        return RoundForm(self.classes, self.values, self.precision, self._bound, replacing)

    @property
    def privacy(self) -> Privacy | None:
        """What was agreed on about privacy; None without noise."""
        return self.public.privacy if self.public is not None else None

    @cached_property
    def noise(self) -> NoiseScale | None:
        """The noise in honest prototypes; None without."""
        if self.privacy is None:
            return None
        return self.privacy.prototype_scale(self.values)

    @cached_property
    def _bound(self) -> NormBound | None:
        """How long prototypes may be; with noise, the samples' features are clipped to a norm."""
        if self.privacy is None or self.noise is None:
            return None
        norm = self.privacy.prototype_norm
        bound = NormBound.of(norm, self.classes, 0, self.values, self.precision, self.noise)
        return replace(bound, all_classes=self.privacy.classes == "all")

    @cached_property
    def _statistics(self) -> RoundForm:
        public = self.public
        assert public is not None
        form = RoundForm(public.rows, public.values, public.precision, public.bound)
        if not public.revocable:
            return form
        return replace(form, replacing=form)

    @property
    def is_revocable(self) -> bool:
        """Whether clients can take back the statistics that they sent."""
        return self.public is not None and self.public.revocable

    def decide(self, round_: int, before: Memory, uploads: Uploads) -> Decision:
        """Decide a round, given what the round before it left."""
        public = self.public_in(round_)
        if self.is_revocable:
            return self._decide_revocable(round_, before, uploads)
        if public is None:
            return self._decide_prototypes(before, uploads)
        last = before.public or public.nothing()
        # Messages do not say how much noise is in them; what was agreed on does.
        checked = replace(uploads.checked(public.bound), noise=public.noise)
        counted, verdict, statistics = decide_public(
            self.detector, self.clients, public.classes, last, checked
        )
        return Decision(counted, verdict, before.state, before.globals_, statistics)

    def _decide_prototypes(self, before: Memory, uploads: Uploads) -> Decision:
        uploads = replace(uploads.checked(self._bound), noise=self.noise)
        decision = decide(self.detector, self.rule, before.state, before.globals_, uploads)
        return replace(decision, public=before.public)

    def _decide_revocable(self, round_: int, before: Memory, uploads: Uploads) -> Decision:
        """Decide a round in which clients may take statistics back, and perhaps send them."""
        public = self.public
        assert public is not None
        due = public.due(round_)
        if due:
            uploads = replace(uploads.checked(public.bound), noise=public.noise)
        kept = revised(retained_in(before.state), round_, uploads, due)
        statistics = before.public
        if due or uploads.replaced:
            verdict, statistics = judged(kept, public, self.detector, self.clients)
        if due:
            counted = admitted(self.detector, public.classes, uploads)
            verdict = verdict_on(uploads.clients, kept, verdict)
            decision = Decision(counted, verdict, own_state(before.state), before.globals_)
        else:
            decision = self._decide_prototypes(before, uploads)
        state = {**decision.state, **retaining(kept)}
        return replace(decision, state=state, public=statistics)


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
        found = self.task.form(round_).admit(round_, contents)
        assert not found.refused, "refused uploads are never stored, and so never decided on"
        decision = self.task.decide(round_, self.memory(before), found)
        verdicts = codec.encode_verdicts(decision.uploads.clients, decision.verdict)
        # What a round does not decide is handed on byte for byte.
        outcome = before._replace(verdicts=verdicts)
        due = self.task.public_in(round_) is not None
        if due or found.replaced:
            outcome = outcome._replace(public=self._encode_public(decision))
        if not due:
            outcome = outcome._replace(globals_=codec.encode_globals(decision.globals_))
        if not due or self.task.is_revocable:
            outcome = outcome._replace(state=codec.encode_state(decision.state))
        return outcome

    def statistics(self, kept: Retained) -> bytes:
        """Return the public part that follows from what is kept of clients' statistics."""
        task = self.task
        assert task.public is not None
        _, found = judged(kept, task.public, task.detector, task.clients)
        return codec.encode_public(found, task.public)

    def _encode_public(self, decision: Decision) -> bytes:
        assert self.task.public is not None
        assert decision.public is not None
        return codec.encode_public(decision.public, self.task.public)

    def memory(self, outcome: Outcome) -> Memory:
        """Return what the next round starts from."""
        globals_ = codec.decode_globals(outcome.globals_, self.task.classes, self.task.values)
        return Memory(codec.decode_state(outcome.state), globals_, self.public(outcome.public))

    def public(self, content: bytes) -> Globals | None:
        """Return the statistics in an outcome's public part; None if there are none."""
        return codec.decode_public(content, self.task.public)
