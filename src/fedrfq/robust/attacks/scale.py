"""Scaling: attackers send `strength` × their own prototypes (default 5)."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced


@dataclass(frozen=True)
class Scale(Attack):
    """Multiplies the attacker's own prototypes."""

    strength: float = option(
        5.0, "Factor by which attackers multiply their own prototypes", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        return replaced(scene, self.strength * scene.theirs.values_KJV)
