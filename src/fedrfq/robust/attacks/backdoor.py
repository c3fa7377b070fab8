"""Backdoor: all attackers together move one class toward another, and are honest in all others.

The aim is that of Bagdasaryan et al., "How To Backdoor Federated Learning", AISTATS 2020: a victim
class is taken for a target class, and nothing else changes that could be noticed.

Every attacker claims the class `victim`, with as many samples as it has of its largest class, and
sends c + `strength` · (t − c): c is the centre of the victim class and t that of the class `target`
(centres as in `adaptive`). With a strength of 1 (default) that is the target's centre. By default
the victim is the class with the most honest holders, and the target the nearest other class.

Departures: prototypes take the place of models, so the whole class is the backdoor's trigger, and
there is no scaling to replace the aggregate. While nobody has sent one of the two classes yet, the
attackers are honest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Bools, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Floats, Scene
from fedrfq.robust.attacks.class_centres import (
    THEIR_CHOICE,
    centres,
    check_class,
    claimed,
    nearest,
    victim_class,
)


@dataclass(frozen=True)
class Backdoor(Attack):
    """Moves one class toward another."""

    strength: float = option(
        1.0, "Share of the way from the victim class to the target; 1 is all of it", STRENGTHS
    )
    victim: int = option(
        THEIR_CHOICE, "Class that is moved; -1: the one with the most honest holders", "-1 or more"
    )
    target: int = option(
        THEIR_CHOICE, "Class toward which it is moved; -1: the nearest", "-1 or more"
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        victim = victim_class(scene, self.victim)
        if not scene.malicious_K.any():
            return scene.uploads
        centre_AJV, known_J = centres(scene)
        # All attackers see the same centre of a class that is known.
        centre_JV = centre_AJV[0, : scene.classes]
        target = self._target(scene, centre_JV, known_J[: scene.classes], victim)
        if target is None or not known_J[victim]:
            return scene.uploads
        moved_V = centre_JV[victim] + self.strength * (centre_JV[target] - centre_JV[victim])
        claim_AJ = np.zeros_like(scene.theirs.held_KJ)
        claim_AJ[:, victim] = True
        return claimed(scene, claim_AJ, np.broadcast_to(moved_V, centre_AJV.shape))

    def _target(self, scene: Scene, centre_JV: Floats, known_J: Bools, victim: int) -> int | None:
        """Return the class toward which the victim is moved; None while it is not known."""
        check_class(scene, "attack.target", self.target)
        nearest_J, reachable_J = nearest(centre_JV, known_J)
        if self.target == THEIR_CHOICE and reachable_J[victim]:
            return int(nearest_J[victim])
        if self.target != THEIR_CHOICE and known_J[self.target]:
            return self.target
        return None
