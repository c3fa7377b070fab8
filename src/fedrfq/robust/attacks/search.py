"""A search for how far attackers can go: they try what would come of each upload, and compare.

Shejwalkar and Houmansadr (NDSS 2021) optimise a factor against a known rule in this way; ByzFL
calls such attacks optimal.
"""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.attacks.attack import Floats, Scene, replaced

# Factors that are tried in a round, each 2^(−1/3) = 0.79 times the one before: the last is 1/203
# of the first.
TRIES = 24
STEP = 2 ** (-1 / 3)


def farthest(scene: Scene, base_AJV: Floats, direction_AJV: Floats, most: float) -> Uploads:
    """Return base + factor · direction, by the factor that moves the certified centres most.

    The factor is at most `most`, the same for all attackers and classes, and none of them may be
    dropped for it. Centres are moved from where they would be if the attackers were honest. Where
    no factor will do, the attackers are honest.
    """
    best = scene.uploads
    if not scene.malicious_K.any():
        return best
    expected = scene.foresee(scene.uploads).globals_
    farthest_so_far = 0
    for i in range(TRIES):
        sent = replaced(scene, base_AJV + most * STEP**i * direction_AJV)
        foreseen = scene.foresee(sent)
        moved = displacement(expected, foreseen.globals_)
        if foreseen.kept_K[scene.malicious_K].all() and moved > farthest_so_far:
            best = sent
            farthest_so_far = moved
    return best


def displacement(expected: Globals, found: Globals) -> int:
    """Return the squared distance between two sets of centres, over the classes in both."""
    both_J = expected.present_J & found.present_J
    return int(np.square(found.values_JV[both_J] - expected.values_JV[both_J]).sum())
