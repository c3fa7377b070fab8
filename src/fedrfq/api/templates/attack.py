"""example-attack: attackers that drift further from the truth with every round, and remember it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

import fedrfq
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced
from fedrfq.robust.state import State


@fedrfq.register("attack", "example-attack")
@dataclass(frozen=True)
class ExampleAttack(Attack):
    """Adds `strength` more to every value in each round."""

    on_uploads: ClassVar[bool] = True  # it needs prototypes to be exchanged

    # An attack without memory overrides `forge(scene, rng)` instead; one on labels, `poison`.
    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        """Return what is sent, and what the attackers remember: named arrays of integers."""
        rounds = int(state.get("rounds", 0)) + 1
        # Uploads are fixed-point integers, in which 2**FRACTION_BITS stands for 1.0.
        shift = rounds * self.strength * 2**FRACTION_BITS
        # `replaced` changes the attackers' rows alone, to the nearest that can be sent.
        sent = replaced(scene, scene.theirs.values_KJV + shift)
        return sent, {"rounds": np.array(rounds, np.int64)}
