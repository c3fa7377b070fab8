"""Class swap: attackers send each of their classes the prototype of another.

The classes' centres then mix. An attacker's own prototypes move on by one place along a random
cycle of the classes it holds. An attacker with a single class sends the global prototype of another
class, at random, and is honest while there is none. `strength` is how far the prototypes move on
the line from the true one to the false one: 1 (default) is all the way, 0.5 the middle.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced


@dataclass(frozen=True)
class Swap(Attack):
    """Exchanges the prototypes of the attacker's classes."""

    strength: float = option(
        1.0,
        "Share of the way from the true to the false prototype; 1 is all of it",
        STRENGTHS,
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        own_AJV = scene.theirs.values_KJV
        return replaced(scene, own_AJV + self.strength * (swapped(scene, rng) - own_AJV))


def swapped(scene: Scene, rng: Generator) -> Ints:
    """Return the attackers' values, those of each class taken from another class."""
    rows = [
        _swapped(*row, scene.globals_, rng)
        for row in zip(scene.theirs.held_KJ, scene.theirs.values_KJV, strict=True)
    ]
    return np.array(rows, np.int64).reshape(scene.theirs.values_KJV.shape)


def _swapped(held_J: Bools, own_JV: Ints, globals_: Globals, rng: Generator) -> Ints:
    """Return one attacker's values."""
    values_JV = own_JV.copy()
    cycle = rng.permutation(np.flatnonzero(held_J))
    others = np.flatnonzero(globals_.present_J & ~held_J)
    if len(cycle) > 1:
        values_JV[cycle] = own_JV[np.roll(cycle, 1)]
    elif len(others):
        values_JV[cycle] = globals_.values_JV[rng.choice(others)]
    return values_JV
