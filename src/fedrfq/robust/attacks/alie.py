"""ALIE: attackers send what is just inside the honest spread.

Baruch, Baruch, Goldberg, "A Little Is Enough: Circumventing Defenses For Distributed Learning",
NeurIPS 2019.

All attackers send the same for a class: in every coordinate the mean of the honest holders'
prototypes minus z standard deviations. That is inside the honest spread and, because all attackers
are on one side, still moves the result. z is `strength` (default 1.5).

Departures: prototypes take the place of gradients, class by class. Mean and deviation are those of
the honest holders, where the paper estimates them from the attackers' data. z is given, where the
paper derives it from the number of attackers. For a class without an honest holder, an attacker is
honest.
"""

from __future__ import annotations

from dataclasses import dataclass

from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, honest_moments, replaced


@dataclass(frozen=True)
class Alie(Attack):
    """Sends the honest mean less some standard deviations."""

    strength: float = option(
        1.5, "Standard deviations below the honest mean (the paper's z)", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        mean_AJV, std_JV = honest_moments(scene)
        return replaced(scene, mean_AJV - self.strength * std_JV)
