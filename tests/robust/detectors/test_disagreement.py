"""How far clients disagree, and what liars cannot have made up: worked examples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedrfq.prototypes.fixed_point import LIMIT
from fedrfq.robust.detectors.disagreement import allowed, charged, disagreements, partners, proven
from support.judging import lines, sent


def test_by_hand() -> None:
    """Clients 0 and 1 have both classes in common, 3 and 4 apart: √((9 + 16) / 2) = 3.5."""
    uploads = lines([[0, 0, None], [3, 4, None], [None, 10, 5], [None, None, 7]])
    assert disagreements(uploads).tolist() == [
        [0, 3, 10, 0],
        [3, 0, 6, 0],
        [10, 6, 0, 2],
        [0, 0, 2, 0],
    ]
    assert partners(uploads).tolist() == [2, 2, 3, 1]


def test_values_of_classes_not_held_do_not_count() -> None:
    uploads = lines([[0, None], [3, 4]])
    uploads.values_KJV[0, 1] = 1000
    assert disagreements(uploads)[0, 1] == 3


def test_proven_and_allowed_by_hand() -> None:
    disagreement_KK = np.array([[0, 9, 5], [9, 0, 7], [5, 7, 0]])
    assert proven(disagreement_KK, 0).tolist() == [9, 9, 7]
    assert proven(disagreement_KK, 1).tolist() == [5, 7, 5]
    assert proven(disagreement_KK, 3).tolist() == [0, 0, 0]
    assert allowed(np.array([5, 7, 5]), 0) == 7
    assert allowed(np.array([5, 7, 5]), 1) == 5
    assert allowed(np.array([5, 7, 5]), 3) == 0


def test_a_charge_by_hand() -> None:
    """Of one liar, the third largest: the diagonal is no disagreement."""
    disagreement_KK = np.array([[0, 9, 5, 3], [9, 0, 7, 1], [5, 7, 0, 2], [3, 1, 2, 0]])
    assert charged(disagreement_KK, 0).tolist() == proven(disagreement_KK, 0).tolist()
    assert charged(disagreement_KK, 1).tolist() == [3, 1, 2, 1]
    assert charged(disagreement_KK, 2).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("values", [3, 5000])
def test_the_largest_numbers_are_exact(values: int) -> None:
    """Two classes of 5,000 values are summed in pieces of a bit less; whole steps stay exact."""
    rng = np.random.default_rng(values)
    rows = rng.choice([1 - LIMIT, LIMIT - 4, 0, 4096], (4, 2, values))
    rows -= rows % 4
    found = disagreements(sent(rows))
    for i, one in enumerate(rows.tolist()):
        for j, other in enumerate(rows.tolist()):
            squares = [
                sum((a - b) ** 2 for a, b in zip(x, y, strict=True))
                for x, y in zip(one, other, strict=True)
            ]
            assert abs(found[i, j] - math.isqrt(sum(squares) // 2)) < 4
