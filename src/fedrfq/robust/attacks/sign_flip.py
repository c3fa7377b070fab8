"""Sign flip: attackers send −`strength` × their own prototypes, by default their exact opposites (1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, replaced


@dataclass(frozen=True)
class SignFlip(Attack):
    on_uploads: ClassVar[bool] = True

    def corrupt(self, scene: Scene, rng: Generator) -> Uploads:
        return replaced(scene, -self.strength * scene.theirs.values_KJV)
