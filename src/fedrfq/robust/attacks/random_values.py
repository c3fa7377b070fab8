"""Random values: attackers send noise in place of their prototypes.

Every value is drawn uniformly from the range, from the lowest to the highest, of all values that
would honestly be sent in the round. `strength` stretches the range about its middle (default 1).
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced


@dataclass(frozen=True)
class RandomValues(Attack):
    """Sends uniform noise from the range of honest values."""

    strength: float = option(
        1.0, "Factor by which the honest range of values is stretched", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        if not scene.theirs.held_KJ.any():
            return scene.uploads
        values = scene.uploads.values_KJV[scene.uploads.held_KJ]
        middle = (values.max() + values.min()) / 2
        half = (values.max() - values.min()) / 2
        noise_AJV = rng.uniform(-1, 1, scene.theirs.values_KJV.shape)
        return replaced(scene, middle + self.strength * half * noise_AJV)
