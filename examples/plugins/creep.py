"""Creep: attackers that move what they send a little further every round they are not found.

They remember how far they have gone, and start again from nothing after a round in which one of
them would be dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

import fedrfq
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced
from fedrfq.robust.detectors import State


@fedrfq.register("attack", "creep")
@dataclass(frozen=True)
class Creep(Attack):
    """Adds `strength` more to every value in each round."""

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        steps = int(state.get("steps", 0)) + 1
        # Uploads are fixed-point integers, in which 2**FRACTION_BITS stands for 1.0.
        shift = steps * self.strength * 2**FRACTION_BITS
        sent = replaced(scene, scene.theirs.values_KJV + shift)
        if not scene.all_kept(sent):
            steps = 0
        return sent, {"steps": np.array(steps, np.int64)}
