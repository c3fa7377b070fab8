"""Reasons: numbers that servers agree on, and the words that people read."""

from __future__ import annotations

import numpy as np
import pytest

from fedrfq.robust.centres import FULL
from fedrfq.robust.detectors.reasons import RIVALLED, Reason, explained, is_reason, toward, words


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason])
def test_every_reason_has_words_of_its_own(reason: Reason) -> None:
    numbers = [int(reason)]
    if reason in RIVALLED:
        numbers = [int(toward(reason, rival)) for rival in (0, 4)]
    said = [words(number) for number in numbers]
    others = [words(int(other)) for other in Reason if other not in (0, reason, *RIVALLED)]
    assert not set(said) & set(others)
    assert len(set(said)) == len(numbers)
    assert all(is_reason(number, 5) for number in numbers)


def test_other_numbers_are_no_reasons() -> None:
    assert words(int(toward(Reason.TOWARD, 4))) == "on the way to class 4"
    assert not is_reason(0, 5)
    assert not is_reason(200, 5)
    assert not is_reason(int(toward(Reason.TOWARD, 5)), 5)  # classes end at 4
    assert not is_reason(int(Reason.TOWARD), 5)  # toward what?
    assert not is_reason(int(Reason.FAR) + (1 << 8), 5)  # names a class, but is not about one


def test_a_client_is_explained_in_one_line_the_least_weight_first() -> None:
    weight_J = np.array([FULL, 512, 0, 0, FULL, 0])
    reason_J = np.array(
        [0, toward(Reason.TOWARD, 4), Reason.FAR, Reason.FAR, Reason.COUNT, Reason.ALONE]
    )
    assert explained(weight_J, reason_J) == (
        "classes 2, 3: far from the other holders (weight 0 %); "
        "class 5: nobody else holds the class (weight 0 %); "
        "class 1: on the way to class 4 (weight 50 %); "
        "class 4: claims more samples than may count"
    )
    assert explained(weight_J, np.zeros(6, np.int64)) == ""
    assert explained(weight_J, reason_J, "abcdef").startswith("classes c, d: far from")
    assert "class b: on the way to class e" in explained(weight_J, reason_J, "abcdef")


def test_a_line_stays_short_whatever_happened() -> None:
    many = np.full(1000, Reason.FAR)
    assert explained(np.zeros(1000, np.int64), many).startswith(
        "classes 0, 1, 2, 3, 4, 5, 6, 7 and"
    )
    different = explained(np.arange(1000), many)
    assert different.endswith("and more in 1000 classes in all")
    assert len(different) < 600
