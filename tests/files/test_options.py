"""The range that an option declares is the one that is checked."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, nan
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.files.options import check_range, check_ranges, one_of, option


def refused(words: str, value: Any) -> bool:
    @dataclass
    class Options:
        it: Any = option(value, "It", words)

    try:
        check_range("it", value, fields(Options)[0])
    except UserError:
        return True
    return False


@pytest.mark.parametrize(
    ("words", "good", "bad"),
    [
        ("1 or more", [1, 7.5, 1e38], [0, 0.99, -1, nan, inf]),
        ("-1 or more", [-1, 0], [-2]),
        ("above 0", [1e-30, 5], [0, -1, nan, inf]),
        ("above 0, at most 1", [0.1, 1], [0, 1.01]),
        ("above 0, below 1", [0.1, 0.99], [0, 1]),
        ("0 to 1,000,000", [0, 1_000_000], [-1, 1_000_001]),
        ("1e-9 to below 1", [1e-9, 0.5], [1e-10, 1]),
        ("0 to 1e+38", [0.0, 1e38], [-0.1, 1.1e38, nan, inf]),
        ("0, or 4 to 1000", [0, 4, 1000], [-1, 1, 3, 1001, nan]),
        ("-1.5 to 2.25", [-1.5, 2.25], [-1.6, 2.26]),
        # An end in words is somebody else's to check, and so is what follows a semicolon.
        ("0 to clients", [0, 1000], [-1]),
        ("4 to 24; 12 or more with moments", [4], [3, 25]),
        # No range of numbers at all.
        ("written when the module is given", [-1, 0, nan], []),
        ("2 or more clients", [0], []),
        ("5", [0], []),
        ("", [-1], []),
        ("one of own, same", ["own"], ["", "other", "own, same"]),
        (one_of(["own"], plugins=True), ["own", "other"], []),
        ("1 or more", ["a text", None], []),
    ],
)
def test_words_mean_what_they_say(words: str, good: list[Any], bad: list[Any]) -> None:
    assert not [value for value in good if refused(words, value)]
    assert [value for value in bad if refused(words, value)] == bad


@dataclass
class Some:
    rate: float = option(0.5, "A rate", "0 to below 1")
    kind: str = option("near", "A kind", one_of(["near", "far"]))


def test_the_message_names_the_key_the_range_and_what_was_found() -> None:
    check_ranges("some", Some())
    with pytest.raises(UserError, match=r"^some\.rate must be 0 to below 1, not 1\.5$"):
        check_ranges("some", Some(rate=1.5))
    with pytest.raises(UserError, match=r"^rate must be"):
        check_ranges("", Some(rate=1.5))
    said = r"^some\.kind must be one of near, far, not 'nearr' \(did you mean near\?\)$"
    with pytest.raises(UserError, match=said):
        check_ranges("some", Some(kind="nearr"))
