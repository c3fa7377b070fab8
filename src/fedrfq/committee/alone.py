"""A single simulated server that misbehaves, to show what it can cost to trust one.

It decides as a trusted server does, without agreement or signatures. `behaviour` says what it
does to its clients:

- `honest`: nothing.
- `lie`: it gives every class another class's global prototype and public statistics.
- `forget`: in round `at`, and in every `at`-th round after it, it loses the global prototypes, the
  public statistics and the detector's state, so that clients train the next round without them.
- `crash`: from round `at` on it answers nothing. No upload counts any more, and clients go on
  with what they got last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound
from fedrfq.errors import check_one_of
from fedrfq.federation import codec
from fedrfq.federation.application import Memory, Task
from fedrfq.files.options import check_ranges, one_of, option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import Verdict

BEHAVIOURS = ("honest", "lie", "forget", "crash")
DOWN = "the server is down"


@dataclass(frozen=True)
class Alone(Committee):
    """One server without others beside it; `at` is the round in which it forgets or crashes."""

    behaviour: str = option(
        "honest", "What the server does to its clients", one_of(BEHAVIOURS, plugins=True)
    )
    at: int = option(
        10,
        "Round from which it crashes, or number of rounds after which it forgets, again and again",
        "1 or more",
    )

    def __post_init__(self) -> None:
        check_one_of("committee.behaviour", self.behaviour, BEHAVIOURS, plugins=True)
        check_ranges("committee", self)

    def about(self) -> str:
        """Describe the server in a few words."""
        when = ""
        if self.behaviour == "forget":
            when = f" every {self.at} rounds"
        elif self.behaviour == "crash":
            when = f" in round {self.at}"
        return f"one server alone ({self.behaviour}{when})"

    def decide(
        self,
        settings: CommitteeSettings,
        round_: int,
        before: PreviousRound,
        uploads: Uploads,
    ) -> AgreedRound:
        """Decide a round as `behaviour` says. Only a liar leaves something in `before.last`."""
        if self.behaviour == "crash" and round_ >= self.at:
            return AgreedRound(_unchanged(before, uploads))
        task = settings.task
        known = before.known()
        # A liar goes on from what is true, not from what it handed out.
        if before.last:
            known = _decode_truth(task, before.last)._replace(state=before.memory)
        decision = task.decide(round_, known, uploads)
        if self.behaviour == "lie":
            return AgreedRound(_lie(task, decision), _encode_truth(task, decision))
        if self.behaviour == "forget" and round_ % self.at == 0:
            decision = replace(
                decision,
                state=task.start_state(),
                globals_=Globals.none(task.classes, task.values),
                public=None,
            )
        return AgreedRound(decision)


def _unchanged(before: PreviousRound, uploads: Uploads) -> Decision:
    """Return the decision that takes no upload and leaves everything as it was."""
    none_K = np.zeros(len(uploads.clients), np.bool_)
    refused = {**uploads.refused, **dict.fromkeys(uploads.clients, DOWN)}
    verdict = Verdict.on_nobody(before.globals_.values_JV.shape[0])
    nobody = replace(uploads.only(none_K), refused=refused)
    return Decision(nobody, verdict, before.memory, before.globals_, before.public)


def _encode_truth(task: Task, decision: Decision) -> bytes:
    """Return what was decided, for the next round: the prototypes, then the public statistics."""
    truth = codec.encode_globals(decision.globals_)
    if task.public is not None and decision.public is not None:
        truth += codec.encode_public(decision.public, task.public)
    return truth


def _decode_truth(task: Task, truth: bytes) -> Memory:
    # Prototypes always have the same length.
    length = len(codec.encode_globals(Globals.none(task.classes, task.values)))
    globals_ = codec.decode_globals(truth[:length], task.classes, task.values)
    return Memory({}, globals_, codec.decode_public(truth[length:], task.public))


def _lie(task: Task, decision: Decision) -> Decision:
    lie = replace(decision, globals_=_swap(decision.globals_, task.classes))
    if task.public is None or decision.public is None:
        return lie
    return replace(lie, public=_swap(decision.public, task.public.classes))


def _swap(globals_: Globals, classes: int) -> Globals:
    """Give each class that has a row that of the one before it, and the first the last's."""
    present = np.flatnonzero(globals_.present_J[:classes])
    values_JV = globals_.values_JV.copy()
    values_JV[present] = globals_.values_JV[np.roll(present, 1)]
    return replace(globals_, values_JV=values_JV)
