"""The roster: quorums, leaders, timeouts, keys, the run's id, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from fedrfq.consensus.roster import Roster, faults, quorum
from fedrfq.errors import UserError
from support.strategies import Seals


def roster(n: int = 4, k: int = 3, **changed: Any) -> Roster:
    """Return a roster of n servers and k clients, with some fields changed."""
    servers, clients = (
        tuple(b"%s %d" % (who, i) for i in range(number))
        for who, number in ((b"server", n), (b"client", k))
    )
    return Roster(**{"scheme": Seals(), "servers": servers, "clients": clients} | changed)


def test_by_hand() -> None:
    assert [faults(n) for n in (1, 4, 5, 6, 7, 9, 10, 13)] == [0, 1, 1, 1, 2, 2, 3, 4]
    assert [quorum(n) for n in (1, 4, 5, 6, 7, 8, 9, 10)] == [1, 3, 4, 4, 5, 6, 6, 7]


@pytest.mark.parametrize("n", [1, *range(4, 14)])
def test_a_quorum_is_the_least_that_meets_every_other_in_an_honest_server(n: int) -> None:
    f = faults(n)
    q = quorum(n)
    assert 3 * f < n <= 3 * f + 3
    assert (roster(n).n, roster(n).f, roster(n).quorum) == (n, f, q)
    assert q <= n - f, "the honest alone make a quorum"

    def meet(size: int) -> bool:
        """Return whether any two sets of this size share f + 1 servers.

        By symmetry one of them may be fixed.
        """
        first = set(range(size))
        return all(len(first.intersection(other)) > f for other in combinations(range(n), size))

    assert meet(q)
    assert not meet(q - 1)
    assert (q == 2 * f + 1) == (n == 3 * f + 1)


@pytest.mark.parametrize("n", [0, 2, 3, 1001])
def test_impossible_committees(n: int) -> None:
    with pytest.raises(UserError, match=f"1 server, or 4 to 1000 .* not {n}$"):
        roster(n)


@pytest.mark.parametrize("n", [1, 4, 1000])
def test_possible_committees(n: int) -> None:
    assert roster(n).n == n


@pytest.mark.parametrize(("clients", "minimum"), [(0, 0), (0, 1), (3, 0), (3, -1), (3, 4)])
def test_impossible_minimums(clients: int, minimum: int) -> None:
    with pytest.raises(UserError, match=f"the number of clients, {clients}, not {minimum}$"):
        roster(4, clients, minimum=minimum)


def test_too_many_clients() -> None:
    with pytest.raises(UserError, match="clients"):
        roster(4, 2**20 + 1)
    assert len(roster(4, 2**20).clients) == 2**20


@pytest.mark.parametrize("minimum", [1, 3])
def test_possible_minimums(minimum: int) -> None:
    assert roster(4, 3, minimum=minimum).minimum == minimum


@pytest.mark.parametrize("field", ["deadline_ms", "view_ms", "resend_ms"])
@pytest.mark.parametrize("value", [0, -1, 2**32])
def test_impossible_times(field: str, value: int) -> None:
    with pytest.raises(UserError, match="deadlines and timeouts"):
        roster(**{field: value})
    roster(**{field: 1}).run  # noqa: B018
    roster(**{field: 2**32 - 1}).run  # noqa: B018


KEYS = (b"a", b"b", b"c", b"d")


@pytest.mark.parametrize(
    ("servers", "clients"),
    [((b"a", b"b", b"c", b"a"), (b"x",)), (KEYS, (b"x", b"x")), (KEYS, (b"x", b"a"))],
)
def test_a_key_belongs_to_one_party(servers: tuple[bytes, ...], clients: tuple[bytes, ...]) -> None:
    with pytest.raises(UserError, match="same key"):
        roster(servers=servers, clients=clients)


def test_weak_keys() -> None:
    with pytest.raises(UserError, match="key of server 3 is weak"):
        roster(servers=(*KEYS[:3], b"weak"))
    with pytest.raises(UserError, match="key of client 1 is weak"):
        roster(clients=(b"x", b"weak"))
    with pytest.raises(UserError, match="key of client 0 is weak"):
        roster(clients=(b"weak", b"x"))


CHANGED = {
    "servers": (b"server 1", b"server 0", b"server 2", b"server 3"),
    "clients": (b"client 0", b"client 1", b"client 3"),
    "purpose": b"another",
    "minimum": 2,
    "deadline_ms": 60_001,
    "view_ms": 2_001,
    "resend_ms": 1_001,
}


def test_the_run_depends_on_all_that_is_agreed() -> None:
    others = [replace(roster(), **{field: value}) for field, value in CHANGED.items()]
    # There is only one protocol yet; that the run depends on it is tested beside the protocol.
    assert set(CHANGED) | {"scheme", "protocol"} == set(Roster.__dataclass_fields__)
    assert len({other.run for other in [roster(), *others]}) == len(CHANGED) + 1
    assert replace(roster()).run == roster().run


def test_the_run_tells_servers_from_clients_and_keys_from_each_other() -> None:
    keys = (b"a", b"b", b"c", b"d", b"e", b"f")
    runs = {roster(servers=keys[:i], clients=keys[i:]).run for i in (4, 5)}
    joined = {
        roster(servers=KEYS, clients=clients).run for clients in ((b"xy", b"z"), (b"x", b"yz"))
    }
    assert len(runs) == len(joined) == 2
    assert roster(purpose=b"x").run != roster(purpose=b"x\0").run


def test_the_run_is_as_written_down() -> None:
    assert roster().run.hex() == "1a1a7ad286226f2e9d4e8733ef4583531d75544c79e0cbd5f4283fd4bdaad9c7"


@pytest.mark.parametrize("n", [1, 4, 5, 7])
def test_the_leader_rotates_with_views_and_rounds(n: int) -> None:
    r = roster(n)
    assert (
        {r.leader(5, view) for view in range(n)}
        == {r.leader(round_, 0) for round_ in range(n)}
        == set(range(n))
    )
    assert all(
        r.leader(3, view + 1) == r.leader(4, view) == (r.leader(3, view) + 1) % n
        for view in range(20)
    )


def test_timeouts_double_and_are_capped() -> None:
    r = roster(view_ms=10)
    assert [r.timeout_ms(view) for view in range(9)] == [10, 20, 40, 80, 160, 320, 640, 640, 640]
    assert r.timeout_ms(2**32 - 1) == 640


def test_keys_of_parties_and_of_strangers() -> None:
    r = roster(4, 3)
    assert [r.key(party) for party in (0, 3, ~0, ~2)] == [
        b"server 0",
        b"server 3",
        b"client 0",
        b"client 2",
    ]
    assert [r.key(party) for party in (4, 2**16, ~3, ~(2**32 - 1))] == [None] * 4
