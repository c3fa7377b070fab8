"""Sign flip: attackers send −`strength` × their own prototypes, by default their exact opposites (1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced


@dataclass(frozen=True)
class SignFlip(Attack):
    strength: float = option(
        1.0, "Factor of the negated own prototypes that attackers send", "0 to 1,000,000"
    )

    on_uploads: ClassVar[bool] = True

    def corrupt(self, scene: Scene, rng: Generator) -> Uploads:
        return replaced(scene, -self.strength * scene.theirs.values_KJV)
