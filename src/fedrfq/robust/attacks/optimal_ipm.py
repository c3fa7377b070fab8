"""Optimal inner-product manipulation: `ipm` with the factor searched in every round.

Xie, Koyejo, Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product
Manipulation", UAI 2019; the search is that of Shejwalkar and Houmansadr, NDSS 2021, as in ByzFL.

All attackers send −ε × the mean of the honest holders' prototypes of the class. They try values of
ε between −1, which is the honest mean itself, and `strength` (default 10), compute what the servers
would decide on each, and take the one that moves the certified centres most without any of them
being dropped (`search.py`).

Departures: as in `ipm`. Negative ε, which shortens the mean without turning it around, is tried as
well, because detectors drop what points the other way. Only this round's verdict counts, not what
an upload does to the attackers' record. If every ε has one of them dropped, they are honest.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, honest_moments
from fedrfq.robust.attacks.search import farthest


@dataclass(frozen=True)
class OptimalIpm(Attack):
    """Sends the negated honest mean, by the factor that does most harm."""

    strength: float = option(
        10.0, "Largest factor of the negated honest mean that is tried", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        mean_AJV, _ = honest_moments(scene)
        return farthest(scene, mean_AJV, -mean_AJV, self.strength + 1)
