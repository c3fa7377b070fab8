"""A round's uploads seen from the centres that trusted clients make, in whole numbers.

A class's centre is the coordinate-wise median of the trusted clients' uploads and of the last
global prototype, which is one more vote. Identical uploads count once: copies of a client would
otherwise be the median.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import LIMIT, Bools, Globals, Ints, Uploads
from fedrfq.robust.detectors.distances import Points

# The base of the digests: its powers are spread over all 64 bits.
_WEIGHT = np.int64(0x1E3779B97F4A7C15)


@dataclass(frozen=True)
class Observed:
    """N prototypes, each of one client and one class, as they lie to the J centres."""

    shape: tuple[int, int, int]  # clients, classes, values
    client_N: Ints
    class_N: Ints
    trusted_N: Bools
    originals: Ints  # rows among the N, without copies of other rows
    voters_J: Ints  # votes on each class, including that of its global prototype
    judged_N: Bools  # another trusted client has a vote on the class
    square_NJ: Ints  # squared distances, from each upload to each centre
    between_JJ: Ints  # … and from centre to centre

    @property
    def own_N(self) -> Ints:
        """Return each prototype's squared distance to the centre of its own class."""
        own_N: Ints = self.square_NJ[np.arange(len(self.class_N)), self.class_N]
        return own_N

    @property
    def rivals_JJ(self) -> Bools:
        """Return which other classes have a centre."""
        rivals_JJ: Bools = (self.voters_J > 0) & ~np.eye(len(self.voters_J), dtype=np.bool_)
        return rivals_JJ

    def typical(self, values_N: Ints) -> int:
        """Return the median over all that can be judged, trusted or not.

        Over the trusted ones only, the few who agree best could shut the others out.
        """
        return median(values_N[self.originals[self.judged_N[self.originals]]])

    def spread(self, values_N: Ints) -> Ints:
        """Return the values by client and class; 0 where there is nothing to judge."""
        values_KJ = np.zeros(self.shape[:2], np.int64)
        values_KJ[self.client_N, self.class_N] = values_N * self.judged_N
        return values_KJ


@dataclass(frozen=True)
class Sent:
    """What clients sent, laid out so that it can be judged more than once."""

    shape: tuple[int, int, int]
    client_N: Ints
    class_N: Ints
    content_N: Ints  # the same for identical uploads of a class
    originals: Ints
    points: Points
    present_J: Bools
    votes_JVK: NDArray[np.int32]  # everyone's values and, last, those of the global prototypes

    @staticmethod
    def of(globals_: Globals, uploads: Uploads) -> Sent:
        """Lay out a round's uploads, with the global prototypes of the round before."""
        clients, classes, values = uploads.values_KJV.shape
        client_N, class_N = np.nonzero(uploads.held_KJ)
        values_NV = uploads.values_KJV[client_N, class_N]
        votes_JVK = np.empty((classes, values, clients + 1), np.int32)
        votes_JVK[..., :-1] = uploads.values_KJV.transpose(1, 2, 0)
        votes_JVK[..., -1] = globals_.values_JV
        content_N = _contents(class_N, values_NV)
        return Sent(
            shape=uploads.values_KJV.shape,
            client_N=client_N,
            class_N=class_N,
            content_N=content_N,
            originals=np.unique(content_N, return_index=True)[1],
            points=Points.of(values_NV),
            present_J=globals_.present_J,
            votes_JVK=votes_JVK,
        )

    def seen_by(self, trusted_K: Bools) -> Observed:
        """Return the uploads against the centres that the trusted clients make."""
        trusted_N = trusted_K[self.client_N]
        candidates = np.flatnonzero(trusted_N)
        votes = candidates[np.unique(self.content_N[candidates], return_index=True)[1]]
        votes_JK = np.zeros((len(self.present_J), len(trusted_K) + 1), np.bool_)
        votes_JK[self.class_N[votes], self.client_N[votes]] = True
        # Before the global prototypes get their votes: nobody is judged by these alone.
        judged_N = votes_JK.sum(1)[self.class_N] > trusted_N
        votes_JK[:, -1] = self.present_J
        centres = Points.of(self._medians(votes_JK))
        return Observed(
            shape=self.shape,
            client_N=self.client_N,
            class_N=self.class_N,
            trusted_N=trusted_N,
            originals=self.originals,
            voters_J=votes_JK.sum(1),
            judged_N=judged_N,
            square_NJ=self.points.squares_to(centres),
            between_JJ=centres.squares_to(centres),
        )

    def _medians(self, votes_JK: Bools) -> Ints:
        """Return the medians of the votes, value by value; 0 for a class without any.

        The median of an even number of votes is the mean of the middle two.
        """
        # LIMIT is above every value, so those without a vote are sorted to the end.
        ordered_JVK = np.sort(np.where(votes_JK[:, None], self.votes_JVK, np.int32(LIMIT)), axis=-1)
        classes = np.arange(len(votes_JK))
        voters_J = votes_JK.sum(1)
        last_J = np.maximum(voters_J - 1, 0)
        middle_JV = (
            ordered_JVK[classes, :, last_J // 2].astype(np.int64)
            + ordered_JVK[classes, :, (last_J + 1) // 2]
        )
        return np.where(voters_J[:, None] > 0, middle_JV // 2, 0)


def _contents(class_N: Ints, values_NV: Ints) -> Ints:
    """Return a number for each different upload, the same for identical ones.

    Uploads are told apart by digests. An attacker can make digests collide, so where they agree the
    bytes are compared.
    """
    digest_N = values_NV @ np.cumprod(np.full(values_NV.shape[1], _WEIGHT))
    content_N: Ints
    _, content_N, times = np.unique(digest_N, return_inverse=True, return_counts=True)
    numbers: dict[tuple[int, bytes], int] = {}
    for n in np.flatnonzero(times[content_N] > 1):
        content = (int(class_N[n]), values_NV[n].tobytes())
        # Above all numbers given by digests, of which there are at most N.
        content_N[n] = len(class_N) + numbers.setdefault(content, len(numbers))
    return content_N


def median(values: Ints) -> int:
    """Return the median: the lower of the middle two of an even number, and 0 of none."""
    if not len(values):
        return 0
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle])
