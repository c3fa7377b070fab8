"""Adaptive: attackers who know the detector and go as far as it lets them. Ours.

For each of its classes an attacker sends c + γ · (n − c). Here c is the centre of the class, the
mean over its honest holders (without any, its global prototype, or else the attacker's own
prototype), and n is the nearest centre of another class. γ = 1 is that other class: in this
direction a class is mistaken for another soonest. All attackers use one γ, the largest up to
`strength` (default 3) with which the detector keeps them all. They ask the detector itself, at most
ten times, with the honest uploads, the state and the global prototypes of the round. If they are
not even kept at γ = 0, they send their honest prototypes.

Departures from the largest γ: it is found by bisection, so to within strength / 256, and as if a
detector that keeps some γ also kept every smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced
from fedrfq.robust.attacks.class_centres import centres, to_nearest

HALVINGS = 8


@dataclass(frozen=True)
class AdaptiveAttack(Attack):
    """Moves classes toward their nearest neighbours, as far as the detector tolerates."""

    strength: float = option(
        3.0,
        "Most that attackers move toward the nearest other class; 1 is that class",
        STRENGTHS,
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        if not scene.malicious_K.any():
            return scene.uploads
        centre_AJV, known_J = centres(scene)
        direction_AJV = np.array([to_nearest(centre_JV, known_J) for centre_JV in centre_AJV])

        def uploads(gamma: float) -> Uploads:
            return replaced(scene, centre_AJV + gamma * direction_AJV)

        low = 0.0
        high = self.strength
        if not all_kept(scene, uploads(low)):
            return scene.uploads
        if all_kept(scene, uploads(high)):
            return uploads(high)
        # Invariant: the attackers are all kept at `low`, and not at `high`.
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if all_kept(scene, uploads(middle)):
                low = middle
            else:
                high = middle
        return uploads(low)


def all_kept(scene: Scene, uploads: Uploads) -> bool:
    """Return whether the detector keeps all attackers if these uploads are sent."""
    detector = scene.detector
    _, verdict = detector.judge(scene.state, scene.globals_, detector.admitted(uploads))
    return bool(verdict.kept_K[scene.malicious_K].all())
