"""The cap of claimed counts: neither one sample nor a liar's million outvotes the others."""

from __future__ import annotations

from math import isqrt

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


def test_the_cap_by_hand() -> None:
    """The votes are 100, 60, 9, 4, 1; without the largest, 60 is what a client may have."""
    counts = array([[100, 0], [4, 60], [1, 9], [4, 0], [0, 1]])
    # The lower median of class 0 is 4, of class 1 it is 9: √(60 · 4) = 15 and √(60 · 9) = 23.
    assert capped(counts, 1).tolist() == [[15, 0], [4, 23], [1, 9], [4, 0], [0, 1]]
    # Two votes less: √(9 · 4) = 6 and √(9 · 9) = 9.
    assert capped(counts, 2).tolist() == [[6, 0], [4, 9], [1, 9], [4, 0], [0, 1]]


def test_a_million_claimed_by_a_class_s_only_holders_is_what_an_honest_client_may_have() -> None:
    counts = array([[MAX_COUNT, 0], [MAX_COUNT, 0], [0, 30], [0, 50], [0, 40]])
    assert capped(counts, 2).tolist() == [[50, 0], [50, 0], [0, 30], [0, 44], [0, 40]]


@given(COUNTS, st.integers(0, CLIENTS))
def test_nobody_loses_where_all_have_alike_and_nothing_grows(counts: Ints, malicious: int) -> None:
    alike = np.where(counts > 0, 20, 0)
    assert np.array_equal(capped(alike, malicious), alike)
    found = capped(counts, malicious)
    assert (found <= counts).all()
    assert np.array_equal(found > 0, counts > 0)


@settings(deadline=None)
@given(COUNTS, LIES)
def test_liars_weigh_no_more_than_an_honest_client_may(counts: Ints, lies: Ints) -> None:
    """Two of seven lie, whatever they claim. Where honest holders are most, the class says more."""
    counts[:2] = lies
    honest = counts[2:]
    if (honest.max(1) > 0).sum() < 1:
        return
    found = capped(counts, 2)
    largest = int(honest.max())
    assert found[:2].max() <= largest
    for j in range(CLASSES):
        holders = int((honest[:, j] > 0).sum())
        if holders > int((lies[:, j] > 0).sum()):
            assert found[:2, j].max() <= isqrt(largest * int(honest[:, j].max()))


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
