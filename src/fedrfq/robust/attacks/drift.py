"""Drift: attackers move classes toward their neighbours, a little more every round. Ours.

For each of its classes an attacker sends c + γ · (n − c), with c the centre of the class and n the
nearest centre of another, as in `adaptive`. γ begins at `strength` (default 0.05) and grows by as
much every round, up to 1, which is the other class. They learn from the servers' verdicts alone:
after a round in which one of them is dropped, they take a step back. So no upload differs much from
the last one, and the detector's own record of them looks smooth.

They remember how many steps they have gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene, replaced
from fedrfq.robust.attacks.class_centres import centres, to_nearest
from fedrfq.robust.detectors.detector import State


@dataclass(frozen=True)
class Drift(Attack):
    """Moves classes toward their nearest neighbours, a step a round."""

    strength: float = option(
        0.05, "Share of the way to the nearest other class that is gone in a round", STRENGTHS
    )

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        if not scene.malicious_K.any():
            return scene.uploads, state
        steps = int(state.get("steps", 0))
        # Steps beyond the other class would have to be taken back one by one.
        if steps * self.strength < 1:
            steps += 1
        centre_AJV, known_J = centres(scene)
        direction_AJV = np.array([to_nearest(centre_JV, known_J) for centre_JV in centre_AJV])
        sent = replaced(scene, centre_AJV + min(steps * self.strength, 1.0) * direction_AJV)
        if not scene.all_kept(sent):
            # The next round adds one step again, so it is one step less than this one.
            steps = max(steps - 2, 0)
        return sent, {"steps": np.array(steps, np.int64)}
