"""The security probability against direct enumeration, and the command that prints it."""

from fractions import Fraction
from itertools import product
from math import prod
from pathlib import Path

import pytest

from fedrfq.errors import UserError
from fedrfq.paper.security import numbers, probabilities, security, tolerated
from support.command import fedrfq


@pytest.mark.parametrize("servers", range(1, 12))
@pytest.mark.parametrize("p", ["0", "0.1", "0.25", "1/3", "1"])
def test_it_is_what_enumerating_all_cases_gives(servers: int, p: str) -> None:
    chance = Fraction(p)
    total = Fraction(0)
    for faulty in product((True, False), repeat=servers):
        if 3 * sum(faulty) + 1 <= servers:
            total += prod(chance if bad else 1 - chance for bad in faulty)
    assert security(servers, chance) == total


def test_by_hand() -> None:
    assert security(4, Fraction(1, 10)) == Fraction(9477, 10000)  # 0.9⁴ + 4 · 0.1 · 0.9³
    assert [tolerated(n) for n in (1, 3, 4, 6, 7, 10)] == [0, 0, 1, 1, 2, 3]


def test_it_is_exact_for_many_servers_and_does_not_always_rise() -> None:
    p = Fraction(1, 10)
    found = [security(n, p) for n in range(4, 41)]
    assert found[1] < found[0] < found[3]
    assert security(7, 3 * p) < security(4, 3 * p)
    assert 1 - Fraction(1, 10**60) < security(1000, p) < 1


def test_the_command(tmp_path: Path) -> None:
    picture = tmp_path / "security.png"
    done = fedrfq("security", "--servers", "4..7", "--p", "0.1,0.5", "--plot", picture)
    assert "0.947700" in done.stdout
    assert "0.312500" in done.stdout
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    "text", ["", "x", "0", "7..4", "4..", "..4", "1001", "1..9999999999", "-3", "4..²"]
)
def test_impossible_numbers_of_servers(text: str) -> None:
    with pytest.raises(UserError, match="--servers"):
        numbers(text)


@pytest.mark.parametrize("text", ["", "x", "1.1", "-0.1", "nan", "inf", "0.1,", "1e-30", "1e99999"])
def test_impossible_probabilities(text: str) -> None:
    with pytest.raises(UserError, match="--p"):
        probabilities(text)


def test_where_nothing_can_be_drawn(tmp_path: Path) -> None:
    done = fedrfq("security", "--servers", "4", "--plot", tmp_path / "none" / "x.png", expect=2)
    assert "cannot draw" in done.stderr
