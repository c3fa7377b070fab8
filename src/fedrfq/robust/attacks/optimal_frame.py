"""Optimal framing: attackers search for what has most honest uploads dropped. Ours.

Each attacker claims every class that has a centre. For each class all of them send c + γ · d, every
value moved by up to one step of the grid so that they are no copies of each other. c is the
centre of the class (as in `adaptive`), and d is one of two directions:

- the way from c back to the last global prototype, as `frame` (where γ is 1): honest clients, who
  have gone on learning, seem to stray;
- the opposite of an honest client's deviation from c, in each of the classes that it holds: the
  centre moves away from this client.

They try both, with several γ up to `strength` (default 8) and up to 16 honest clients drawn at
random, and compute what the servers would decide. They take what costs honest uploads most weight;
if several cost as much, what gives the honest ones the worst scores, because detectors remember.
They do not mind being dropped themselves, but dropped attackers seldom have an effect.

Without global prototypes, in the first round, only the second direction is tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Floats, Scene
from fedrfq.robust.attacks.class_centres import centres, claimed
from fedrfq.robust.detectors.detector import FULL

# The parts of `strength` that are tried.
PARTS = (1, 1 / 2, 1 / 4, 1 / 8)
# The most honest clients that are tried as victims in a round.
VICTIMS = 16


@dataclass(frozen=True)
class OptimalFrame(Attack):
    """Sends what costs honest uploads most weight."""

    strength: float = option(
        8.0, "Farthest that attackers go, in ways back to the last prototype", STRENGTHS
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        best = scene.uploads
        if not scene.malicious_K.any():
            return best
        centre_AJV, known_J = centres(scene)
        step = scene.uploads.precision.step
        moved_AJV = step * rng.integers(-1, 1, centre_AJV.shape, endpoint=True)
        claim_AJ = np.broadcast_to(known_J, scene.theirs.held_KJ.shape)
        worst = harm(scene, best)
        for direction_JV in directions(scene, centre_AJV[0], rng):
            for part in PARTS:
                way_JV = part * self.strength * direction_JV
                sent = claimed(scene, claim_AJ, centre_AJV + way_JV + moved_AJV)
                found = harm(scene, sent)
                if found > worst:
                    best = sent
                    worst = found
        return best


def directions(scene: Scene, centre_JV: Floats, rng: Generator) -> Iterator[Floats]:
    """Yield the directions that are tried, for each class; 0 for classes that stay in place."""
    present_J1 = scene.globals_.present_J[:, None]
    yield np.where(present_J1, scene.globals_.values_JV - centre_JV, 0.0)
    honest = scene.honest
    for row in rng.permutation(len(honest.clients))[:VICTIMS]:
        yield np.where(honest.held_KJ[row][:, None], centre_JV - honest.values_KJV[row], 0.0)


def harm(scene: Scene, sent: Uploads) -> tuple[int, int]:
    """Return how much weight honest uploads would lose, and the sum of the honest scores."""
    foreseen = scene.foresee(sent)
    honest_K = ~scene.malicious_K
    classes = foreseen.weight_KJ.shape[1]
    full = FULL * int(sent.held_KJ[honest_K, :classes].sum())
    lost = full - int(foreseen.weight_KJ[honest_K].sum())
    return lost, int(foreseen.score_K[honest_K].sum())
