"""Noise: attackers add Gaussian noise to their prototypes.

Each value of a class's prototype gets noise with the standard deviation `strength` × the root mean square of that
prototype, so that the noise is as large as the prototype itself with the default strength of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced


@dataclass(frozen=True)
class GaussianNoise(Attack):
    strength: float = option(
        1.0,
        "Standard deviation of the noise, in root mean squares of the prototype",
        "0 to 1,000,000",
    )

    on_uploads: ClassVar[bool] = True

    def corrupt(self, scene: Scene, rng: Generator) -> Uploads:
        own_AJV = scene.theirs.values_KJV
        size_AJ1 = np.sqrt(np.square(own_AJV).mean(-1, keepdims=True))
        return replaced(
            scene, own_AJV + self.strength * size_AJ1 * rng.standard_normal(own_AJV.shape)
        )
