"""Bounded: what an upload does to its class is limited, whoever sent it. Ours.

Every upload pulls the centre of its class from the last certified place to its own. Three limits
shorten the pull, and leave its direction as it is:

- *toward a rival*: it may go half of the way toward the last centre of any other class, or another
  share (`detector.toward`). All spread but that along the line between the two classes cancels, so
  honest uploads, who deviate in all directions, seldom reach the limit, while a swapped class is
  cut to a quarter.
- *alone*: it may be twice as far as is typical in the round from the middle of its class's uploads,
  the median by samples. There no client counts for more of them than is typical in the round.
- *a step*: it may go twice as far as is typical in the round from the last centre.

Typical is the median over clients of each one's own median over its classes, so a client has one
vote, however many classes it claims. Up to a limit a pull counts in full. What goes farther than a
step is cut to one. Beyond the other two limits an upload pulls the *less*, the farther it is, as in
the redescending estimators of robust statistics.

What is left is combined by the method's rule. So nobody is accused here, and nobody needs to be
outvoted: it works in classes that only a few clients hold, where liars may be the majority. Those
can move a class, but only by half of the way a round.

The last centre may be a lie itself: of somebody who was there first, or was alone. So where all
uploads of a class are farther than a step from it, it starts afresh, as a class without a last
centre does: from their middle. And a class that somebody holds back comes home by a step a round.

Where clients add noise for their samples' privacy, an upload may be as far as its noise explains
besides.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads
from fedrfq.robust.centres import CENTRES, median
from fedrfq.robust.distances import LEAST, Points, isqrt, typical
from fedrfq.robust.honest_noise import SPARE_BITS, noise_squares
from fedrfq.robust.rules.rule import Rule
from fedrfq.robust.state import State

# Shares are fixed-point numbers: this is 1.
UNIT = 1 << 10
PERCENT = 100
# The farthest that an upload may go toward another class, in percent of the way.
TOWARD = 50
# The farthest that it may go at all, or be from its class's other uploads, in typical distances.
STEPS = 2
# How fast a share falls beyond a limit. Honest uploads do go toward rivals while features still
# form: there a higher power would cost accuracy in peace.
RIVAL_POWER = 2
ALONE_POWER = 4


@dataclass(frozen=True)
class Bounded(Rule):
    """Limits how far each upload pulls, then combines them by another rule."""

    exact: ClassVar[bool] = True
    centre: str = "weighted"  # one of CENTRES
    toward: int = TOWARD

    def combine(
        self, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
    ) -> tuple[State, Ints]:
        near = limited(last, uploads, weight_KJ, self.toward)
        return state, CENTRES[self.centre](near, weight_KJ)


def limited(last: Globals, uploads: Uploads, weight_KJ: Ints, toward: int = TOWARD) -> Uploads:
    """Return the uploads, moved toward where their classes start as far as the limits ask."""
    pulls = _Pulls.of(uploads, weight_KJ)
    # By samples, so that who claims a class with few of them does not set its middle; but no more
    # of them than is typical, or a few who claim very many would.
    usual = typical(uploads.counts_KJ[pulls.client_N, pulls.class_N], pulls.client_N)
    middle_JV = median(uploads, np.minimum(uploads.counts_KJ, usual) * weight_KJ)
    near_KJV = uploads.values_KJV.copy()
    near_KJV[pulls.client_N, pulls.class_N] = pulls.shortened(
        pulls.start(last, middle_JV), middle_JV, toward
    )
    return replace(uploads, values_KJV=near_KJV)


@dataclass(frozen=True)
class _Pulls:
    """The uploads that count, one for each client and class: N of them."""

    client_N: Ints
    class_N: Ints
    values_NV: Ints
    noise_N: Ints  # the mean square of what noise does to them

    @staticmethod
    def of(uploads: Uploads, weight_KJ: Ints) -> _Pulls:
        client_N, class_N = np.nonzero(uploads.held_KJ & (weight_KJ > 0))
        noise_N = noise_squares(uploads)[client_N, class_N] << SPARE_BITS
        return _Pulls(client_N, class_N, uploads.values_KJV[client_N, class_N], noise_N)

    def start(self, last: Globals, middle_JV: Ints) -> Globals:
        """Return the last centres, or the middle of a class's uploads.

        That is for classes without a last centre, and for those that all uploads have left.
        """
        known_JV = np.where(last.present_J[:, None], last.values_JV, middle_JV)
        square_N = self._squares(known_JV)
        near_N = isqrt(square_N) <= self._most(square_N)
        sent_J = _among(self.class_N, len(known_JV))
        left_J = sent_J & ~_among(self.class_N[near_N], len(known_JV))
        start_JV = np.where(left_J[:, None], middle_JV, known_JV)
        return Globals(last.present_J | sent_J, start_JV)

    def shortened(self, start: Globals, middle_JV: Ints, toward: int) -> Ints:
        """Return the uploads, moved toward where their classes start as far as the limits ask."""
        start_NV = start.values_JV[self.class_N]
        pull_NV = self.values_NV - start_NV
        share_N = self._toward_rivals(start, UNIT * toward // PERCENT)
        for centre_JV, power in ((start.values_JV, 1), (middle_JV, ALONE_POWER)):
            square_N = self._squares(centre_JV)
            within_N = _fading(self._most(square_N), isqrt(square_N), power)
            share_N = np.minimum(share_N, within_N)
        # Rounded toward the start, on either side of it.
        near_NV: Ints = start_NV + np.sign(pull_NV) * (np.abs(pull_NV) * share_N[:, None] // UNIT)
        return near_NV

    def _squares(self, centre_JV: Ints) -> Ints:
        """Return the squared distance of each upload from the centre of its class."""
        difference_NV = self.values_NV - centre_JV[self.class_N]
        square_N: Ints = np.einsum("nv,nv->n", difference_NV, difference_NV)
        return square_N

    def _most(self, square_N: Ints) -> Ints:
        """Return how far each upload may be, if these are the squares of how far they are."""
        # What is left of a square without noise is typical of the uploads' samples.
        sampled_N = isqrt(np.maximum(square_N - self.noise_N, 0))
        usual = max(typical(sampled_N, self.client_N), LEAST)
        most_N: Ints = STEPS * (usual + isqrt(self.noise_N))
        return most_N

    def _toward_rivals(self, start: Globals, most: int) -> Ints:
        """Return the share of each pull that rivals leave, if it may go so far toward each."""
        centres = Points.of(start.values_JV)
        square_NJ = Points.of(self.values_NV).squares_to(centres)
        between_JJ = np.maximum(centres.squares_to(centres), LEAST**2)
        own_N = square_NJ[np.arange(len(self.class_N)), self.class_N]
        # By the law of cosines: 0 at the start, UNIT at the other class. Divided in two steps,
        # because the squares times UNIT might not fit 64 bits.
        unit_NJ = between_JJ[self.class_N] * 2 // UNIT
        way_NJ = (own_N[:, None] + between_JJ[self.class_N] - square_NJ) // unit_NJ
        rivals_JJ = start.present_J & ~np.eye(len(start.present_J), dtype=np.bool_)
        free_NJ = self._free_ways(rivals_JJ, isqrt(between_JJ), most)
        toward_NJ = _fading(free_NJ, way_NJ, RIVAL_POWER)
        share_N: Ints = np.where(rivals_JJ[self.class_N], toward_NJ, UNIT).min(1, initial=UNIT)
        return share_N

    def _free_ways(self, rivals_JJ: Bools, distance_JJ: Ints, most: int) -> Ints:
        """Return how far each upload may go toward each other class: a share of the way.

        It is less than `most` where the two would come closer than half the usual distance of
        nearest neighbours. It is never 0, because a way is divided by it.
        """
        nearest_J = np.where(rivals_JJ, distance_JJ, np.iinfo(np.int64).max).min(1)
        # Without any rival there is no way to limit.
        room = int(np.sort(nearest_J)[(len(nearest_J) - 1) // 2]) // 2
        left_JJ = UNIT * np.maximum(distance_JJ - room, 0) // distance_JJ
        free_NJ: Ints = np.clip(left_JJ, 1, most)[self.class_N]
        return free_NJ


def _among(class_N: Ints, classes: int) -> Bools:
    """Return which of so many classes are among these."""
    among_J = np.zeros(classes, np.bool_)
    among_J[class_N] = True
    return among_J


def _fading(limit: Ints, size: Ints, power: int) -> Ints:
    """Return the share of pulls of this size that counts: UNIT up to the limit, then less."""
    share = UNIT * limit // np.maximum(size, limit)
    faded: Ints = share**power // UNIT ** (power - 1)
    return faded
