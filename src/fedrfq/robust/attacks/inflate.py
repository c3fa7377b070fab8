"""Inflated counts: attackers claim many more samples than they have, and swap their classes.

Claimed counts are the weights of the average, so they give an attacker control over a class. That
only hurts if it sends something bad, so the values are those of `swap`. Counts are multiplied by
`strength` (default 1000) and cut to what a message can carry.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import MAX_COUNT, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced
from fedrfq.robust.attacks.swap import swapped


@dataclass(frozen=True)
class Inflate(Attack):
    """Swaps classes and multiplies the claimed counts."""

    strength: float = option(
        1000.0, "Factor by which claimed sample counts are multiplied", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        counts_KJ = scene.uploads.counts_KJ
        inflated_KJ = np.clip(np.rint(self.strength * counts_KJ), 1, MAX_COUNT).astype(np.int64)
        chosen_KJ = scene.malicious_K[:, None] & scene.uploads.held_KJ
        sent = replaced(scene, swapped(scene, rng))
        return replace(sent, counts_KJ=np.where(chosen_KJ, inflated_KJ, counts_KJ))
