"""Optimal ALIE: `alie` with the number of standard deviations searched in every round.

Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
NeurIPS 2019; the search is that of Shejwalkar and Houmansadr, NDSS 2021, as in ByzFL.

All attackers send the honest mean minus z standard deviations. They try values of z up to
`strength` (default 10), compute what the servers would decide on each, and take the one that moves
the certified centres most without any of them being dropped (`search.py`).

Departures: as in `alie`. Only this round's verdict counts, not what an upload does to the
attackers' record. If every z has one of them dropped, they are honest.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, honest_moments
from fedrfq.robust.attacks.search import farthest


@dataclass(frozen=True)
class OptimalAlie(Attack):
    """Sends the honest mean less as many standard deviations as do most harm."""

    strength: float = option(
        10.0, "Most standard deviations below the honest mean that are tried", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        mean_AJV, std_JV = honest_moments(scene)
        return farthest(scene, mean_AJV, -std_JV, self.strength)
