"""Capture: attackers claim every class, at a place where it is not, and then are honest. Ours.

It is aimed at rules that limit how far a class may move in a round: whoever sends a class first, or
when few others do, may set a place that honest clients are then too far from. Every attacker claims
every class that has a centre (as in `adaptive`), and sends `strength` times the opposite of the
centre that it had in the first round of the attack: always the same place. They do so for `lies`
rounds, and are honest from then on, so that nobody accuses them any more.

They remember the places, and in how many rounds they have lied.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import LIMIT, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.class_centres import centres, claimed
from fedrfq.robust.detectors.detector import State


@dataclass(frozen=True)
class Capture(Attack):
    """Claims every class at a place where it is not, for some rounds."""

    strength: float = option(
        2.0, "How many times the negative of a class's centre attackers claim", STRENGTHS
    )
    lies: int = option(1, "Rounds in which they lie", "1 or more")

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        lied = int(state.get("lied", 0))
        if lied == self.lies or not scene.malicious_K.any():
            return scene.uploads, state
        centre_AJV, known_J = centres(scene)
        place_JV = state.get("place")
        if place_JV is None:
            # A message can carry no more, and an integer no number that is far larger.
            away_JV = np.clip(-self.strength * centre_AJV[0], -LIMIT, LIMIT)
            place_JV = np.rint(away_JV).astype(np.int64)
        claim_AJ = np.broadcast_to(known_J, scene.theirs.held_KJ.shape)
        sent = claimed(scene, claim_AJ, np.broadcast_to(place_JV, centre_AJV.shape))
        return sent, {"lied": np.array(lied + 1, np.int64), "place": place_JV}
