"""Inner-product manipulation: Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
Manipulation", UAI 2019.

All attackers send −`strength` × the mean of the honest holders' prototypes of the class, so that the average points
away from the true one, or is at least shorter. The paper's ε is `strength`: 1 unless set.

Departures: prototypes in place of gradients, class by class. For a class without an honest holder, an attacker takes its
own prototype for the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import Attack, Scene, honest_moments, replaced


@dataclass(frozen=True)
class Ipm(Attack):
    strength: float = option(
        1.0,
        "Factor of the negated honest mean that attackers send (the paper's ε)",
        "0 to 1,000,000",
    )

    on_uploads: ClassVar[bool] = True

    def corrupt(self, scene: Scene, rng: Generator) -> Uploads:
        mean_AJV, _ = honest_moments(scene)
        return replaced(scene, -self.strength * mean_AJV)
