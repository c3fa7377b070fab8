"""Optimal swap: attackers who know the whole defence move classes toward each other. Ours.

For each of its classes an attacker sends c + γ · (n − c). Here c is the centre of the class, as in
`adaptive`, and n is the nearest centre of another class. `adaptive` asks the detector how far it
may go, and so overshoots where a rule limits what is kept. These attackers compute what the servers
would decide on each γ up to `strength` (default 3), and take the one that moves the certified
centres most without any of them being dropped (`search.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.class_centres import centres, to_nearest
from fedrfq.robust.attacks.search import farthest


@dataclass(frozen=True)
class OptimalSwap(Attack):
    """Moves classes toward their nearest neighbours, by the factor that does most harm."""

    strength: float = option(
        3.0,
        "Most that attackers move toward the nearest other class; 1 is that class",
        STRENGTHS,
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        centre_AJV, known_J = centres(scene)
        direction_AJV = np.array([to_nearest(centre_JV, known_J) for centre_JV in centre_AJV])
        return farthest(scene, centre_AJV, direction_AJV, self.strength)
