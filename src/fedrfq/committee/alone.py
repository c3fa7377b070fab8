"""A single simulated server that misbehaves, to show what it can cost to trust one.

It decides as a trusted server does, without agreement or signatures. `behaviour` says what it
does to its clients:

- `honest`: nothing.
- `lie`: it gives every class another class's global prototype.
- `forget`: in round `at`, and in every `at`-th round after it, it loses the global prototypes and
  the detector's state, so that clients train the next round without prototypes.
- `crash`: from round `at` on it answers nothing. No upload counts any more, and clients go on
  with what they got last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings, PreviousRound
from fedrfq.errors import UserError, did_you_mean
from fedrfq.federation import codec
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision, decide
from fedrfq.robust.detectors import Verdict

BEHAVIOURS = ("honest", "lie", "forget", "crash")
DOWN = "the server is down"


@dataclass(frozen=True)
class Alone(Committee):
    """One server without others beside it; `at` is the round in which it forgets or crashes."""

    behaviour: str = option("honest", "What the server does to its clients", one_of(BEHAVIOURS))
    at: int = option(
        10,
        "Round from which it crashes, or number of rounds after which it forgets, again and again",
        "1 or more",
    )

    def __post_init__(self) -> None:
        if self.behaviour not in BEHAVIOURS:
            raise UserError(
                f"committee.behaviour must be one of {', '.join(BEHAVIOURS)},"
                f" not '{self.behaviour}'{did_you_mean(self.behaviour, BEHAVIOURS)}"
            )
        if self.at < 1:
            raise UserError(f"committee.at must be a round, 1 or later, not {self.at}")

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
        # A liar goes on from the true prototypes, not from those that it handed out.
        true_globals = before.globals_
        if before.last:
            true_globals = codec.decode_globals(before.last, task.classes, task.values)
        decision = decide(task.detector, task.rule, before.memory, true_globals, uploads)
        if self.behaviour == "lie":
            lie = replace(decision, globals_=_swap(decision.globals_))
            return AgreedRound(lie, codec.encode_globals(decision.globals_))
        if self.behaviour == "forget" and round_ % self.at == 0:
            decision = replace(
                decision,
                state=task.detector.start(task.clients),
                globals_=Globals.none(task.classes, task.values),
            )
        return AgreedRound(decision)


def _unchanged(before: PreviousRound, uploads: Uploads) -> Decision:
    """Return the decision that takes no upload and leaves everything as it was."""
    none_K = np.zeros(len(uploads.clients), np.bool_)
    refused = {**uploads.refused, **dict.fromkeys(uploads.clients, DOWN)}
    verdict = Verdict(np.zeros(0, np.bool_), np.zeros(0, np.int64))
    return Decision(
        replace(uploads.only(none_K), refused=refused), verdict, before.memory, before.globals_
    )


def _swap(globals_: Globals) -> Globals:
    """Give each class with a prototype that of the one before it, and the first the last's."""
    present = np.flatnonzero(globals_.present_J)
    values_JV = globals_.values_JV.copy()
    values_JV[present] = globals_.values_JV[np.roll(present, 1)]
    return replace(globals_, values_JV=values_JV)
