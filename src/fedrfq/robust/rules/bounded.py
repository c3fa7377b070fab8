"""Bounded: what an upload does to its class is limited, whoever sent it. Ours.

Every upload pulls the centre of its class from the last certified place to its own. Two limits
shorten the pull, and leave its direction as it is. Up to a limit a pull counts in full. The farther
an upload is beyond it, the *less* it pulls, as in the redescending estimators of robust statistics:

- *toward a rival*: it may go 3/16 of the way toward the last centre of any other class. All
  spread but that along the line between the two classes cancels, so honest uploads, who deviate in
  all directions, seldom reach the limit, while a swapped class is cut to 1/28.
- *a step*: it may go twice as far as is typical in the round. Typical is the median over clients of
  each one's own median over its classes, so a client has one vote, however many classes it claims.

What is left is combined by the method's rule. So nobody is accused here, and nobody needs to be
outvoted: it works in classes that only a few clients hold, where liars may be the majority. Those
can move a class, but only by 3/16 of the way a round.

A class without a certified centre starts from the median of its uploads.

Where clients add noise for their samples' privacy, an upload may go by what its noise explains
besides. The median counts samples then: noise moves a mean the less, the more samples it is of, and
a client may send nothing but noise of a class, to hide that it holds none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads
from fedrfq.robust.centres import CENTRES, median
from fedrfq.robust.distances import LEAST, Points, isqrt, lower_median
from fedrfq.robust.honest_noise import SPARE_BITS, noise_squares
from fedrfq.robust.rules.rule import Rule
from fedrfq.robust.state import State

# Shares are fixed-point numbers: this is 1.
UNIT = 1 << 10
# The farthest that an upload may go toward another class.
TOWARD_RIVAL = 3 * UNIT // 16
# The farthest that it may go at all, in typical distances.
STEPS = 2
# How fast a share falls beyond a limit. Honest uploads do go toward rivals while features still
# form: there a higher power would cost accuracy in peace.
RIVAL_POWER = 2
STEP_POWER = 4


@dataclass(frozen=True)
class Bounded(Rule):
    """Limits how far each upload pulls, then combines them by another rule."""

    exact: ClassVar[bool] = True
    centre: str = "weighted"  # one of CENTRES

    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        counted_KJ = uploads.held_KJ & (weight_KJ > 0)
        voting_KJ = weight_KJ if uploads.noise is None else weight_KJ * uploads.counts_KJ
        start = Globals(
            last.present_J | counted_KJ.any(0),
            np.where(last.present_J[:, None], last.values_JV, median(uploads, voting_KJ)),
        )
        near = replace(uploads, values_KJV=limited(start, uploads, counted_KJ))
        return state, CENTRES[self.centre](near, weight_KJ)


def limited(start: Globals, uploads: Uploads, counted_KJ: Bools) -> Ints:
    """Return the uploads, moved toward where their classes start as far as the limits ask."""
    client_N, class_N = np.nonzero(counted_KJ)
    values_NV = uploads.values_KJV[client_N, class_N]
    pull_NV = values_NV - start.values_JV[class_N]
    noise_N = noise_squares(uploads)[client_N, class_N] << SPARE_BITS
    share_N = _shares(start, values_NV, noise_N, client_N, class_N)
    near_KJV = uploads.values_KJV.copy()
    # Rounded toward the start, on either side of it.
    shortened_NV = np.sign(pull_NV) * (np.abs(pull_NV) * share_N[:, None] // UNIT)
    near_KJV[client_N, class_N] = start.values_JV[class_N] + shortened_NV
    return near_KJV


def _shares(
    start: Globals, values_NV: Ints, noise_N: Ints, client_N: Ints, class_N: Ints
) -> Ints:
    """Return the share of each upload's pull that is within the limits: 0 to UNIT."""
    centres = Points.of(start.values_JV)
    square_NJ = Points.of(values_NV).squares_to(centres)
    between_JJ = np.maximum(centres.squares_to(centres), LEAST**2)
    own_N = square_NJ[np.arange(len(class_N)), class_N]
    # By the law of cosines: 0 at the start, UNIT at the other class. Divided in two steps, because
    # the squares times UNIT might not fit 64 bits.
    unit_NJ = between_JJ[class_N] * 2 // UNIT
    way_NJ = (own_N[:, None] + between_JJ[class_N] - square_NJ) // unit_NJ
    rivals_JJ = start.present_J & ~np.eye(len(start.present_J), dtype=np.bool_)
    free_NJ = _free_ways(rivals_JJ, isqrt(between_JJ))[class_N]
    toward_NJ = _fading(free_NJ, way_NJ, RIVAL_POWER)
    toward_N = np.where(rivals_JJ[class_N], toward_NJ, UNIT).min(1, initial=UNIT)
    # What is left of the distance without noise is typical of the uploads' samples.
    usual = max(typical(isqrt(np.maximum(own_N - noise_N, 0)), client_N), LEAST)
    step_N = _fading(STEPS * (usual + isqrt(noise_N)), isqrt(own_N), STEP_POWER)
    share_N: Ints = np.minimum(toward_N, step_N)
    return share_N


def _fading(limit: Ints, size: Ints, power: int) -> Ints:
    """Return the share of pulls of this size that counts: UNIT up to the limit, then less."""
    share = UNIT * limit // np.maximum(size, limit)
    faded: Ints = share**power // UNIT ** (power - 1)
    return faded


def _free_ways(rivals_JJ: Bools, distance_JJ: Ints) -> Ints:
    """Return how far uploads of a class may go toward each other class: a share of the way.

    It is 3/16, or less where the two would come closer than half the usual distance of nearest
    neighbours. It is never 0, because a way is divided by it.
    """
    nearest_J = np.where(rivals_JJ, distance_JJ, np.iinfo(np.int64).max).min(1)
    # Only classes that have a rival and are one.
    room = lower_median(nearest_J[rivals_JJ.any(1) & rivals_JJ.any(0)]) // 2
    left_JJ = UNIT * np.maximum(distance_JJ - room, 0) // distance_JJ
    return np.clip(left_JJ, 1, TOWARD_RIVAL)


def typical(distance_N: Ints, client_N: Ints) -> int:
    """Return the median over clients of each one's own median: one client, one vote."""
    order = np.lexsort((distance_N, client_N))
    _, first, counts = np.unique(client_N[order], return_index=True, return_counts=True)
    own_medians = distance_N[order][first + (counts - 1) // 2]
    return lower_median(own_medians)
