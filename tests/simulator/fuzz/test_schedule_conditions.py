"""The conditions by which schedules are chosen for mutants, each on schedules made by hand."""

from dataclasses import replace

import pytest

from fedrfq.consensus.messages import Kind
from fedrfq.simulator.fuzz.schedule import draw
from fedrfq.simulator.fuzz.schedule_conditions import (
    answers_echo,
    decided_alone,
    log_lost_in_round,
    prepared_in_secret,
    with_change_proposals,
    with_crashes,
    with_servers,
    without_faulty_servers,
)
from fedrfq.simulator.network import Hole, LinkFaults
from fedrfq.simulator.party import Crash

EVERYBODY = frozenset(range(4))
PLAIN = replace(draw(0, 4), behaviours=(), crashes=(), links=LinkFaults(), change_proposals=0.0)
LIAR = replace(PLAIN, behaviours=((1, "lie"),))


def test_faulty_servers() -> None:
    assert with_servers("flood", "lie")(LIAR)
    assert not with_servers("flood")(LIAR)
    assert without_faulty_servers(PLAIN)
    assert not without_faulty_servers(LIAR)


def test_crashes() -> None:
    schedule = replace(PLAIN, crashes=(Crash(2, 1, 0, 20, Kind.COMMIT),))
    assert with_crashes(Kind.PREPARE, Kind.COMMIT)(schedule)
    assert not with_crashes(Kind.PREPARE)(schedule)
    assert not with_crashes(Kind.COMMIT)(PLAIN)


def test_a_lost_log() -> None:
    crash = Crash(2, 1, 0, 20, Kind.LIST, 3, forgets=True)
    assert log_lost_in_round(3)(replace(PLAIN, crashes=(crash,)))
    assert not log_lost_in_round(2)(replace(PLAIN, crashes=(crash,)))
    assert not log_lost_in_round(3)(replace(PLAIN, crashes=(crash._replace(forgets=False),)))
    assert answers_echo(replace(PLAIN, links=LinkFaults(echoes=True)))
    assert not answers_echo(PLAIN)


def test_change_proposals() -> None:
    assert with_change_proposals(replace(PLAIN, change_proposals=1.0))
    assert not with_change_proposals(replace(PLAIN, change_proposals=0.3))


@pytest.mark.parametrize(
    ("kind", "hearers", "alone"),
    [(Kind.COMMIT, {0}, True), (Kind.COMMIT, {0, 2}, False), (Kind.PREPARE, {0}, False)],
)
def test_one_server_decides_alone(kind: Kind, hearers: set[int], alone: bool) -> None:
    hole = Hole(kind, 1, EVERYBODY, frozenset(hearers))
    assert decided_alone(replace(PLAIN, links=LinkFaults(holes=(hole,)))) is alone


@pytest.mark.parametrize(
    ("view", "hearers", "secret"),
    [(0, {1}, True), (0, {1, ~2}, True), (0, {1, 2}, False), (1, {1}, False)],
)
def test_the_faulty_alone_can_prove_the_first_view(
    view: int, hearers: set[int], secret: bool
) -> None:
    hole = Hole(Kind.PREPARE, view, EVERYBODY, frozenset(hearers))
    assert prepared_in_secret(replace(LIAR, links=LinkFaults(holes=(hole,)))) is secret
