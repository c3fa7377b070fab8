"""Classes that a single client sent: does one lie on top of another class?

Nobody can compare what a class's only holder sends. But if it lies where another class is, samples
of that one would be taken for it. It is *on top* of the nearest other class if it is less than half
as far from it as classes usually are from their nearest neighbours.

Only classes of two or more holders count as other classes and for what is usual, so that the only
holder of one class has no say in whether that of another is believed. Of what is usual every client
has one vote, however many classes it claims.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.centres import median
from fedrfq.robust.detectors.detector import Reason, Verdict
from fedrfq.robust.detectors.reasons import toward
from fedrfq.robust.distances import Points, isqrt, typical

# A class that lies on top of no other.
NOWHERE = -1


def without_those_on_top(verdict: Verdict, globals_: Globals, uploads: Uploads) -> Verdict:
    """Return the verdict, with no weight for lone classes that lie on top of others."""
    lies_on_J = lies_on(globals_, uploads)
    on_top_KJ = uploads.held_KJ & (lies_on_J != NOWHERE)
    return replace(
        verdict,
        weight_KJ=np.where(on_top_KJ, 0, verdict.weight_KJ),
        reason_KJ=np.where(on_top_KJ, toward(Reason.ON_TOP, lies_on_J), verdict.reason_KJ),
    )


def lies_on(globals_: Globals, uploads: Uploads) -> Ints:
    """Return on which other class each lone class lies; NOWHERE for all other classes."""
    holders_J = uploads.held_KJ.sum(0)
    lone = np.flatnonzero(holders_J == 1)
    shared = np.flatnonzero(holders_J > 1)
    lies_on_J = np.full(len(holders_J), NOWHERE)
    # Of two classes at least there is a usual distance.
    if not len(lone) or len(shared) < 2:
        return lies_on_J
    now_JV = median(uploads)
    known_JV = np.where(globals_.present_J[:, None], globals_.values_JV, now_JV)
    centres = Points.of(known_JV[shared])
    client_N, shared_N = np.nonzero(uploads.held_KJ[:, shared])
    usual = typical(_to_nearest(isqrt(centres.squares_to(centres)))[shared_N], client_N)
    distance_LS = isqrt(Points.of(now_JV[lone]).squares_to(centres))
    on_top_L = 2 * distance_LS.min(1) < usual
    lies_on_J[lone] = np.where(on_top_L, shared[distance_LS.argmin(1)], NOWHERE)
    return lies_on_J


def _to_nearest(distance_SS: Ints) -> Ints:
    """Return the distance of each class to the nearest other one."""
    farthest = np.iinfo(np.int64).max
    nearest_S: Ints = np.where(np.eye(len(distance_SS)) > 0, farthest, distance_SS).min(1)
    return nearest_S
