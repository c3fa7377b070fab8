"""Framing: attackers hold on to the past, so that honest clients seem to stray. Ours.

Each attacker claims every class that has a global prototype, with as many samples as it has of its
largest class. It sends that prototype back with every value moved by up to `strength` steps of the
grid (default 1), so that the attackers are no copies of each other. They need not see what others
send. The centres that a detector takes from all uploads then stay where they were, while honest
clients go on learning, and are dropped. In the first round there is nothing to hold on to, and the
attackers are honest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import LIMIT, Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.class_centres import claimed


@dataclass(frozen=True)
class Frame(Attack):
    """Sends the last global prototypes back, slightly changed."""

    strength: float = option(
        1.0, "Most steps of the fixed-point grid by which each value is moved", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        theirs = scene.theirs
        steps = min(round(self.strength), LIMIT)
        moved_AJV = rng.integers(-steps, steps, theirs.values_KJV.shape, endpoint=True)
        moved_AJV *= theirs.precision.step
        claim_AJ = np.broadcast_to(scene.globals_.present_J, theirs.held_KJ.shape)
        return claimed(scene, claim_AJ, scene.globals_.values_JV + moved_AJV)
