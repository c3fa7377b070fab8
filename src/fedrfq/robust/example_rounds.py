"""Rounds of uploads drawn about class centres, on which detectors, rules and attacks are tried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads

ONE = 2**14


def sent(values: Ints, counts: Ints | None = None, clients: Sequence[int] = ()) -> Uploads:
    """Return uploads of all classes, 10 samples each, by clients 0, 1, … unless given otherwise."""
    if counts is None:
        counts = np.full(values.shape[:2], 10, np.int64)
    return Uploads(tuple(clients) or tuple(range(len(values))), counts, values)


def nowhere(uploads: Uploads) -> Globals:
    """Return the global prototypes before the first round: none."""
    return Globals.none(*uploads.values_KJV.shape[1:])


def flipped(uploads: Uploads, liars: Sequence[int]) -> Uploads:
    """Return the uploads with the signs of some clients' values turned."""
    values_KJV = uploads.values_KJV.copy()
    values_KJV[list(liars)] *= -1
    return replace(uploads, values_KJV=values_KJV)


class Clusters:
    """Twenty clients with two to five of ten classes, whose uploads lie about the class centres."""

    def __init__(self, seed: int, spread: float = 0.1) -> None:
        self.rng = np.random.default_rng(seed)
        self.spread = spread
        self.centres_JV = self.rng.uniform(0.2, 1, (10, 24))
        held = [self.rng.permutation(10)[: self.rng.integers(2, 6)] for _ in range(20)]
        self.held_KJ = np.array([[j in classes for j in range(10)] for classes in held])

    def round(self) -> Uploads:
        """Return the uploads of one more round."""
        values = self.centres_JV + self.spread * self.rng.standard_normal((20, 10, 24))
        return sent(np.rint(values * ONE).astype(np.int64), 10 * self.held_KJ.astype(np.int64))

    def globals_(self) -> Globals:
        """Return the centres themselves as global prototypes."""
        return Globals(np.ones(10, np.bool_), np.rint(self.centres_JV * ONE).astype(np.int64))
