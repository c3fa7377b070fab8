"""Who was away learns of the evidence that it has missed: the invariant, and those who break it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.evidence import Offence
from fedrfq.consensus.messages import Kind
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.evidence_invariants import EvidenceHistory
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.schedule_run import ScheduleRun, draw, run
from fedrfq.simulator.network import LinkFaults, Split
from fedrfq.simulator.party import Crash
from fedrfq.simulator.violation import Violation
from support.simulated import IDEAL, PLAIN

LIARS = ((0, "equivocating"), (1, "equivocating"))
OFFENCES: list[Offence] = [(~k, Kind.UPLOAD, Kind.UPLOAD) for k in range(3)]
# Server 1 is back when the others have done with all rounds. It has one proof to ask for when it
# has done with them itself.
AWAY = replace(
    PLAIN,
    seed=3,
    minimum=2,
    faulty_clients=LIARS,
    links=LinkFaults(40, 60),
    crashes=(Crash(1, 5, 0, 3000),),
)
# Server 1 hears nothing until the others have done with all rounds.
CUT_OFF = replace(
    PLAIN,
    minimum=2,
    faulty_clients=LIARS,
    links=LinkFaults(calm_ms=3000, splits=(Split(0, 3000, frozenset([1])),)),
)
# Server 1 is back while the only round is still being decided.
BACK_SOON = replace(
    PLAIN, rounds=1, behaviours=((3, "equivocate"),), crashes=(Crash(1, 6, 0, 100),)
)
MISSED = {
    "comes back late": (AWAY, 2),
    "comes back soon": (BACK_SOON, 1),
    "catches up": (CUT_OFF, 2),
    "loses its log": (replace(AWAY, crashes=(Crash(1, 35, 0, 1000, forgets=True),)), 2),
}


@pytest.mark.parametrize("name", MISSED)
def test_who_was_away_is_told(name: str) -> None:
    schedule, proofs = MISSED[name]
    report = run(schedule)
    assert report.violation is None
    assert report.exercised["proofs handed on"] == proofs


@pytest.mark.parametrize("name", MISSED)
def test_who_does_not_ask_is_caught(name: str) -> None:
    schedule, _ = MISSED[name]
    broken = run(schedule, replica=MUTANTS["never-asks"].replica).violation
    assert broken is not None
    assert broken.name == "handed-on"


# In the other schedule, the liar itself tells what it was convicted of.
@pytest.mark.parametrize("name", sorted(MISSED.keys() - {"comes back soon"}))
def test_who_does_not_answer_is_caught(name: str) -> None:
    schedule, _ = MISSED[name]
    broken = run(schedule, replica=MUTANTS["hands-on-nothing"].replica).violation
    assert broken is not None
    assert broken.name == "handed-on"


NOT_ASKED = {
    "a server that restarts with an empty log": (4, 67114628760701396),
    "a server that decides by kept votes once it has a certificate": (4, 1523977841587187107),
    "a server that catches up in part, and decides the rest by votes": (7, 2339216111042900415),
}


@pytest.mark.parametrize("name", NOT_ASKED)
def test_it_is_expected_of_none_who_does_not_see_that_it_was_away(name: str) -> None:
    """These ask later: every sixteen rounds everybody does."""
    servers, seed = NOT_ASKED[name]
    assert run(draw(seed, servers)).violation is None


def test_nothing_is_expected_of_a_rough_network() -> None:
    rough = replace(AWAY, links=replace(AWAY.links, calm_ms=3600))
    assert run(rough, replica=MUTANTS["never-asks"].replica).violation is None


def test_a_world_that_is_run_in_slices_loses_nothing() -> None:
    """What is due after a slice stays due."""
    whole, sliced = (ScheduleRun(CUT_OFF, Replica, Rules, Client, IDEAL) for _ in range(2))
    whole.run()
    run_world = sliced.world.run

    def in_slices(max_ms: int, max_events: int) -> bool:
        return any(run_world(end_ms, max_events) for end_ms in range(0, max_ms, 7))

    sliced.world.run = in_slices  # type: ignore[method-assign]
    sliced.run()
    assert whole.world.events == sliced.world.events


class TestByHand:
    def history(self) -> EvidenceHistory:
        """Return that of three servers, of which 0 and 2 know of different offences."""
        history = EvidenceHistory(range(3))
        for server, offence in ((0, 0), (0, 1), (2, 1), (2, 2)):
            history.learn(server, OFFENCES[offence])
        return history

    def test_what_all_others_know_is_missed_until_it_is_learnt(self) -> None:
        history = self.history()
        history.ask(1)
        with pytest.raises(Violation, match=r"^handed-on: 1 does not know"):
            history.finish()
        history.learn(1, OFFENCES[1])
        history.finish()

    def test_what_others_learn_later_need_not_be_known(self) -> None:
        history = self.history()
        history.learn(1, OFFENCES[1])
        history.ask(1)
        history.learn(0, OFFENCES[2])
        history.finish()

    def test_who_has_crashed_since_need_not_have_answered(self) -> None:
        history = self.history()
        history.learn(1, OFFENCES[1])
        history.ask(1)
        history.leave(2)
        assert history.missed() == {1: {OFFENCES[0]}}
        history.leave(0)
        history.finish()

    def test_who_is_away_is_not_asked_and_who_leaves_hears_nothing(self) -> None:
        history = self.history()
        history.leave(2)
        history.ask(1)
        assert history.missed() == {1: {OFFENCES[0], OFFENCES[1]}}
        history.leave(1)
        history.finish()
        assert history.come_back(2)
        assert not history.come_back(2)
        history.ask(1)
        assert history.missed() == {1: {OFFENCES[1]}}

    def test_who_has_lost_its_log_knows_nothing(self) -> None:
        history = self.history()
        history.forget(0)
        history.ask(1)
        history.finish()
        history.ask(0)
        history.learn(1, OFFENCES[2])
        history.ask(0)
        assert history.missed() == {0: {OFFENCES[2]}}
