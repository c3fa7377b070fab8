"""One server with nobody beside it that misbehaves, simulated: what it can cost to trust one.

It decides as a trusted server does, with no agreement and no signatures, and `behaviour` says what it does to its clients:

- `honest`: nothing.
- `lie`: every class gets another class's global prototype.
- `forget`: in round `at`, and in every `at`-th after it, it loses the global prototypes and the detector's memory: clients
  train the next round without.
- `crash`: from round `at` on it answers nothing. No upload counts any more, and clients go on with what they got last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.committee.committee import AgreedRound, Committee, CommitteeSettings
from fedrfq.errors import UserError, nearest
from fedrfq.federation import codec
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import Decision, decide
from fedrfq.robust.detectors import State, Verdict

BEHAVIOURS = ("honest", "lie", "forget", "crash")
DOWN = "the server is down"


@dataclass(frozen=True)
class Alone(Committee):
    behaviour: str = option("honest", "What the server does to its clients", one_of(BEHAVIOURS))
    at: int = option(
        10,
        "Round from which it crashes, or number of rounds after which it forgets, again and again",
        "1 or more",
    )

    def __post_init__(self) -> None:
        if self.behaviour not in BEHAVIOURS:
            found = self.behaviour
            raise UserError(
                f"committee.behaviour is one of {', '.join(BEHAVIOURS)}, not '{found}'{nearest(found, BEHAVIOURS)}"
            )
        if self.at < 1:
            raise UserError(f"committee.at is a round, from 1 on, not {self.at}")

    def about(self) -> str:
        when = {"forget": f" every {self.at} rounds", "crash": f" in round {self.at}"}.get(
            self.behaviour, ""
        )
        return f"one server alone ({self.behaviour}{when})"

    def decide(
        self,
        mandate: CommitteeSettings,
        round_: int,
        last: bytes,
        memory: State,
        globals_: Globals,
        uploads: Uploads,
    ) -> AgreedRound:
        if self.behaviour == "crash" and round_ >= self.at:
            return AgreedRound(_unanswered(memory, globals_, uploads))
        task = mandate.task
        if last:
            known = codec.decode_globals(last, task.classes, task.values)
        else:
            known = globals_
        right = decide(task.detector, task.rule, memory, known, uploads)
        if self.behaviour == "lie":  # it goes on from what is right, not from what it said
            return AgreedRound(
                replace(right, globals_=_swapped(right.globals_)),
                codec.encode_globals(right.globals_),
            )
        if self.behaviour == "forget" and round_ % self.at == 0:
            nothing = Globals.none(task.classes, task.values)
            return AgreedRound(
                replace(right, state=task.detector.start(task.clients), globals_=nothing)
            )
        return AgreedRound(right)


def _unanswered(memory: State, globals_: Globals, uploads: Uploads) -> Decision:
    """No upload was taken, and everything is as it was."""
    nobody = uploads.only(np.zeros(len(uploads.clients), np.bool_))
    refused = {**uploads.refused, **dict.fromkeys(uploads.clients, DOWN)}
    verdict = Verdict(np.zeros(0, np.bool_), np.zeros(0, np.int64))
    return Decision(replace(nobody, refused=refused), verdict, memory, globals_)


def _swapped(globals_: Globals) -> Globals:
    """Each class that has a prototype gets that of the one before it, the first one the last one's."""
    present = np.flatnonzero(globals_.present_J)
    values_JV = globals_.values_JV.copy()
    values_JV[present] = globals_.values_JV[np.roll(present, 1)]
    return replace(globals_, values_JV=values_JV)
