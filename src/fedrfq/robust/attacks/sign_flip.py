"""Sign flip: attackers send −`strength` × their own prototypes (default 1)."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced


@dataclass(frozen=True)
class SignFlip(Attack):
    """Negates the attacker's own prototypes."""

    strength: float = option(
        1.0, "Factor of the negated own prototypes that attackers send", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        return replaced(scene, -self.strength * scene.theirs.values_KJV)
