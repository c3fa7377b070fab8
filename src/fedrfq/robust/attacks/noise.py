"""Noise: attackers add Gaussian noise to their prototypes.

The noise on each value of a class's prototype has the standard deviation `strength` × the root mean
square of that prototype: with the default of 1 it is as large as the prototype itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced


@dataclass(frozen=True)
class GaussianNoise(Attack):
    """Adds noise in proportion to each prototype."""

    strength: float = option(
        1.0,
        "Standard deviation of the noise, in root mean squares of the prototype",
        STRENGTHS,
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        own_AJV = scene.theirs.values_KJV
        size_AJ1 = np.sqrt(np.square(own_AJV).mean(-1, keepdims=True))
        noise_AJV = self.strength * size_AJ1 * rng.standard_normal(own_AJV.shape)
        return replaced(scene, own_AJV + noise_AJV)
