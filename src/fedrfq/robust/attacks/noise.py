"""Noise: attackers add Gaussian noise to their prototypes.

Each value of a class's prototype gets noise with the standard deviation `strength` × the root mean square of that
prototype, so that the noise is as large as the prototype itself with the default strength of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced


@dataclass(frozen=True)
class GaussianNoise(Attack):
    on_uploads: ClassVar[bool] = True

    def corrupt(self, scene: Scene, rng: Generator) -> Uploads:
        own_AJV = scene.theirs.values_KJV
        size_AJ1 = np.sqrt(np.square(own_AJV).mean(-1, keepdims=True))
        return replaced(
            scene, own_AJV + self.strength * size_AJ1 * rng.standard_normal(own_AJV.shape)
        )
