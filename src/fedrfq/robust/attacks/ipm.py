"""Inner-product manipulation: attackers send the opposite of the honest mean.

Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
Manipulation", UAI 2019.

All attackers send −`strength` × the mean of the honest holders' prototypes of the class, so that
the average points away from the true one, or is at least shorter. The paper's ε is `strength`
(default 1).

Departures: prototypes take the place of gradients, class by class. For a class without an honest
holder, an attacker takes its own prototype for the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, honest_moments, replaced


@dataclass(frozen=True)
class Ipm(Attack):
    """Sends the negated mean of the honest prototypes."""

    strength: float = option(
        1.0,
        "Factor of the negated honest mean that attackers send (the paper's ε)",
        STRENGTHS,
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        mean_AJV, _ = honest_moments(scene)
        return replaced(scene, -self.strength * mean_AJV)
