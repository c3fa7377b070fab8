"""A rule and a detector that remember, and whose results depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.centres import CENTRES, FULL
from fedrfq.robust.detectors import Detector, Reason, State, Verdict
from fedrfq.robust.rules import Rule


@dataclass(frozen=True)
class Slow(Rule):
    """Moves a centre from where it was by at most `most` for each round it has seen."""

    exact = True
    most: int = 10

    def start(self, classes: int, values: int) -> State:
        return {"rounds": np.zeros(classes, np.int64)}

    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        centre_JV = CENTRES["weighted"](uploads, weight_KJ)
        most_J1 = self.most * state["rounds"][:, None]
        near_JV = np.clip(centre_JV, last.values_JV - most_J1, last.values_JV + most_J1)
        moved_JV = np.where(last.present_J[:, None], near_JV, centre_JV)
        return {"rounds": state["rounds"] + 1}, moved_JV


@dataclass(frozen=True)
class Halving(Detector):
    """Halves the weight of the client whose turn it is, and brings a rule of its own."""

    exact = True
    most: int = 10

    def start(self, clients: int) -> State:
        return {"rounds": np.zeros(clients, np.int64)}

    def rule(self, name: str) -> Rule:
        return Slow(self.most)

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        rounds = state["rounds"]
        weight_KJ = np.full(uploads.counts_KJ.shape, FULL)
        turn = np.array(uploads.clients) == (rounds[0] + 1) % len(rounds)
        weight_KJ[turn] = FULL // 2
        score_K = np.zeros(len(uploads.clients), np.int64)
        verdict = Verdict.of_weights(uploads, weight_KJ, score_K, Reason.FAR)
        return {"rounds": rounds + 1}, verdict
