"""Min-max: attackers go as far from the honest mean as honest prototypes are from each other.

Shejwalkar, Houmansadr, "Manipulating the Byzantine: Optimizing Model Poisoning Attacks and Defenses
for Federated Learning", NDSS 2021.

All attackers send, for a class, mean + γ · (−std) of the honest holders' prototypes, with the
largest γ for which no honest prototype is farther away than the two farthest honest ones are from
each other: what they send is then no outlier by distance. `strength` multiplies that bound
(default 1). Below 1 even the mean may be outside; then they send the mean.

Departures: prototypes take the place of gradients, class by class. Of the paper's three directions
there is only the inverse standard deviation. γ is solved for, because the bound is quadratic in it,
where the paper searches by bisection; rounding to the grid comes after. For a class with fewer than
two honest holders an attacker is honest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import LIMIT, Uploads
from fedrfq.robust.attacks.attack import (
    STRENGTHS,
    Attack,
    Floats,
    Scene,
    honest_moments,
    replaced,
    squared_distances,
)


@dataclass(frozen=True)
class MinMax(Attack):
    """Sends the farthest point that is no outlier by distance."""

    strength: float = option(
        1.0, "Factor of the greatest distance between two honest prototypes", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        honest = scene.honest
        mean_AJV, std_JV = honest_moments(scene)
        values_AJV = scene.theirs.values_KJV.astype(np.float64)
        for j in np.flatnonzero((honest.held_KJ.sum(0) > 1) & scene.theirs.held_KJ.any(0)):
            rows_HV = honest.values_KJV[honest.held_KJ[:, j], j].astype(np.float64)
            gamma = largest(mean_AJV[0, j], -std_JV[j], rows_HV, self.strength)
            values_AJV[:, j] = mean_AJV[:, j] - gamma * std_JV[j]
        return replaced(scene, values_AJV)


def largest(mean_V: Floats, direction_V: Floats, rows_HV: Floats, strength: float) -> float:
    """Return the largest γ ≥ 0 that keeps mean + γ·direction within the bound of every row.

    The bound is ‖mean + γ·direction − row‖ ≤ strength · the greatest distance between rows. Its
    square is a·γ² + 2b·γ + c ≤ 0.
    """
    bound = min(strength, LIMIT) ** 2 * squared_distances(rows_HV).max()
    offset_HV = mean_V - rows_HV
    a = direction_V @ direction_V
    b_H = offset_HV @ direction_V
    c_H = np.square(offset_HV).sum(1) - bound
    if a == 0 or c_H.max() > 0:
        return 0.0
    return float(((np.sqrt(b_H**2 - a * c_H) - b_H) / a).min())
