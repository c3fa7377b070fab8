"""The cap of claimed counts: neither one sample nor a liar's million outvotes the others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import MAX_COUNT, Ints, Uploads
from fedrfq.robust.detectors.counts import capped
from fedrfq.robust.detectors.none import NoDetection

CLIENTS = 7
CLASSES = 3
COUNTS = arrays.arrays(np.int64, (CLIENTS, CLASSES), elements=st.integers(0, 200))
LIES = arrays.arrays(np.int64, (2, CLASSES), elements=st.integers(0, MAX_COUNT))


def array(rows: list[list[int]]) -> Ints:
    return np.array(rows, np.int64)


def test_the_caps_by_hand() -> None:
    """Clients claim 150, 80, 60, 9 and 1 in all; 100, 80, 40, 5 and 1 of their largest class."""
    counts = array([[50, 100], [80, 0], [20, 40], [4, 5], [0, 1]])
    # Without the largest, 80 and 80: the first has 50 · 80 // 150 and 100 · 80 // 150.
    assert capped(counts, 1).tolist() == [[26, 53], [80, 0], [20, 40], [4, 5], [0, 1]]
    # Without two, 60 in all and 40 of a class.
    assert capped(counts, 2).tolist() == [[20, 40], [40, 0], [20, 40], [4, 5], [0, 1]]


def test_a_million_is_what_an_honest_client_may_have() -> None:
    """Two liars claim a million of everything; a third class has no honest holder at all."""
    lie = [MAX_COUNT] * 3
    counts = array([lie, lie, [0, 60, 0], [30, 20, 0], [1, 49, 0]])
    assert capped(counts, 2).tolist() == [[20] * 3, [20] * 3, *counts[2:].tolist()]
    # All of it in one class: as if an honest client had nothing else.
    counts[:2] = [0, 0, MAX_COUNT]
    assert capped(counts, 2)[:2].tolist() == [[0, 0, 60], [0, 0, 60]]


@given(COUNTS, st.integers(0, CLIENTS))
def test_nobody_loses_where_all_have_alike_and_nothing_grows(counts: Ints, malicious: int) -> None:
    alike = np.tile(counts[0], (CLIENTS, 1))
    assert np.array_equal(capped(alike, malicious), alike)
    assert np.array_equal(capped(counts, 0), counts)
    found = capped(counts, malicious)
    assert (found <= counts).all()
    assert np.array_equal(found > 0, counts > 0)


@settings(deadline=None)
@given(COUNTS, LIES)
def test_liars_weigh_no_more_than_an_honest_client(counts: Ints, lies: Ints) -> None:
    """Two of seven lie, whatever they claim."""
    counts[:2] = lies
    honest = counts[2:]
    if not honest.any():
        return
    found = capped(counts, 2)
    assert found[:2].max() <= honest.max()
    # A count that would be rounded to 0 is 1.
    assert found[:2].sum(1).max() <= honest.sum(1).max() + CLASSES


@settings(deadline=None)
@given(COUNTS)
def test_honest_clients_lose_only_if_they_are_among_the_largest(counts: Ints) -> None:
    found = capped(counts, 2)
    by_total = np.sort(counts.sum(1))[::-1]
    by_class = np.sort(counts.max(1))[::-1]
    losers = (found < counts).any(1)
    assert losers.sum() <= 4
    assert (losers <= ((counts.sum(1) > by_total[2]) | (counts.max(1) > by_class[2]))).all()


def test_a_fifth_of_the_senders_may_be_malicious_unless_another_number_is_set() -> None:
    def most(senders: int, malicious: int = -1) -> int:
        counts = np.ones((senders + 1, 1), np.int64)
        counts[0] = 0  # took part, but sent nothing
        uploads = Uploads(tuple(range(senders + 1)), counts, counts[..., None])
        return NoDetection(malicious=malicious).most_malicious(uploads)

    assert [most(senders) for senders in (0, 1, 5, 6, 20)] == [0, 1, 1, 2, 4]
    assert [most(20, 7), most(5, 7), most(5, 0)] == [7, 5, 0]
    with pytest.raises(UserError, match=r"detector\.malicious must be -1 or more, not -2"):
        NoDetection(malicious=-2)
