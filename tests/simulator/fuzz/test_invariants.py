"""Each invariant of the simulator can break, by hand or by a flaw of a replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Effect,
    Event,
    Expired,
    Persist,
    Received,
    Send,
    Start,
)
from fedrfq.consensus.messages import (
    Cert,
    ChangeProposal,
    Commit,
    Evidence,
    Inputs,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.invariants import INVARIANTS
from fedrfq.simulator.fuzz.schedule_run import run
from fedrfq.simulator.fuzz.toy import content, successor
from support.simulated import PLAIN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_is_well_by_hand(bench: Bench) -> None:
    for server in (0, 1, 2):
        bench.act(
            server,
            *map(Persist, bench.uploads),
            Send(~0, bench.sign(server, Receipt(1, server, *bench.entries[0]))),
        )
        bench.say(server, UploadList(1, server, bench.entries))
    proposal = bench.propose(bench.lists[:3])
    bench.decide(0, proposal)
    bench.decide(~2, proposal)
    assert bench.observer.counted()["rounds decided"] == 1


def test_agreement(bench: Bench) -> None:
    bench.decide(0, bench.propose(bench.lists[:3]))
    few = bench.sign_lists(range(3), bench.entries[:3])
    with bench.breaks("agreement"):
        bench.decide(~1, bench.propose(few))


def test_rounds_are_chained(bench: Bench) -> None:
    with bench.breaks("agreement"):
        bench.decide(0, bench.propose(bench.lists[:3], previous=bytes(32)))


@pytest.mark.parametrize("signers", [(0, 1), (0, 0, 1), (0, 1, 2, 2)])
def test_certificate(bench: Bench, signers: tuple[int, ...]) -> None:
    with bench.breaks("certificate"):
        bench.decide(0, bench.propose(bench.lists[:3]), signers)


def test_a_certificate_of_another_phase_and_a_round_twice(bench: Bench) -> None:
    certificate = bench.certificate(bench.propose(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.act(
            0, Send(1, bench.rules.unsigned(Cert(1, replace(certificate, phase=Kind.PREPARE))))
        )
    bench.decide(0, bench.propose(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.decide(0, bench.propose(bench.lists[:3]))


def test_union(bench: Bench) -> None:
    for lists in (bench.lists[:2], bench.lists[:2] + bench.lists[:1]):
        with Bench().breaks("union"):
            Bench().decide(0, bench.propose(lists))
    with bench.breaks("union"):
        bench.decide(0, bench.propose(bench.lists[:3], Inputs(bench.entries[:3])))


def test_validity_of_the_result(bench: Bench) -> None:
    proposal = bench.propose(bench.lists[:3])
    with bench.breaks("validity"):
        bench.decide(0, replace(proposal, record=replace(proposal.record, globals_=bytes(32))))


@pytest.mark.parametrize(
    "upload", [Upload(1, 0, content(9)), Upload(2, 0, content(0)), Upload(1, 0, b"junk")]
)
def test_validity_of_uploads(bench: Bench, upload: Upload) -> None:
    """The upload is not what the client sent, is of another round, or is inadmissible."""
    message = bench.sign(~0, upload)
    bench.act(3, Broadcast(message))
    if upload.content == b"junk":
        bench.observer.seen.inputs[message.digest] = message
    entries = tuple(sorted([(0, message.digest), *bench.entries[1:]]))
    lists = bench.sign_lists(range(3), entries)
    with bench.breaks("validity"):
        bench.decide(0, bench.propose(lists))


def test_censorship(bench: Bench) -> None:
    for server in (0, 1):
        bench.say(server, UploadList(1, server, bench.entries))
    lists = bench.sign_lists(range(3), bench.entries[1:])
    with bench.breaks("censorship"):
        bench.decide(0, bench.propose(lists))


def test_an_equivocator_may_be_left_out() -> None:
    bench = Bench()
    bench.observer.seen.signed[1, ~0].add(bytes(32))
    for server in (0, 1):
        bench.say(server, UploadList(1, server, bench.entries))
    bench.decide(
        0,
        bench.propose(bench.sign_lists(range(3), bench.entries[1:])),
    )


def test_double_sign(bench: Bench) -> None:
    bench.say(0, ViewChange(1, 1, 0, None, None))
    bench.say(0, ViewChange(1, 2, 0, None, None))
    bench.say(0, UploadList(1, 0, bench.entries))
    with bench.breaks("double-sign"):
        bench.say(0, UploadList(1, 0, bench.entries[:3]))
    with bench.breaks("double-sign"):
        bench.say(~0, Upload(1, 0, content(77)))


def test_left_view(bench: Bench) -> None:
    bench.say(0, ViewChange(1, 2, 0, None, None))
    for body in (Commit(1, 1, bytes(32), 0), Prepare(1, 0, bytes(32), 0)):
        with bench.breaks("left-view"):
            bench.say(0, body)


def test_leader(bench: Bench) -> None:
    proposal = bench.propose(bench.lists[:3])
    bench.act(3, Broadcast(bench.sign(3, replace(proposal, server=3))))
    value = proposal.record.value(bench.rules.run)
    with bench.breaks("leader"):
        bench.say(0, Prepare(1, 0, value, 0))
    bench.act(1, Persist(bench.sign(1, proposal)))
    bench.say(2, Prepare(1, 0, value, 2))


def test_durability(bench: Bench) -> None:
    with bench.breaks("durability"):
        bench.act(0, Broadcast(bench.lists[0]), Persist(bench.lists[0]))
    with bench.breaks("durability"):
        bench.act(0, Send(~0, bench.sign(0, Receipt(1, 0, *bench.entries[0]))))


def test_promise(bench: Bench) -> None:
    receipt = bench.sign(0, Receipt(1, 0, *bench.entries[0]))
    bench.act(0, Persist(bench.uploads[0]), Send(~0, receipt))
    with bench.breaks("promise"):
        bench.say(0, UploadList(1, 0, bench.entries[1:]))
    bench.say(1, UploadList(1, 1, bench.entries[1:]))
    with bench.breaks("promise"):
        bench.act(
            1, Persist(bench.uploads[0]), Send(~0, bench.sign(1, Receipt(1, 1, *bench.entries[0])))
        )
    with bench.breaks("promise"):
        bench.say(2, UploadList(1, 2, ()))


def test_change_proposals_do_not_make_up_for_clients(bench: Bench) -> None:
    change_proposal = bench.sign(2, ChangeProposal(1, 2, successor(1)))
    bench.act(2, Persist(change_proposal), Broadcast(change_proposal))
    with bench.breaks("promise"):
        bench.say(2, UploadList(1, 2, (), ((2, change_proposal.digest),)))


def test_two_change_proposals(bench: Bench) -> None:
    first, second = (bench.sign(2, ChangeProposal(1, 2, successor(k))) for k in range(2))
    with bench.breaks("accusation"):
        bench.act(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))
    with bench.breaks("durability"):
        bench.act(2, Broadcast(first))
    bench.act(2, Persist(first))
    with bench.breaks("double-sign"):
        bench.act(2, Persist(second))


def test_over(bench: Bench) -> None:
    proposal = _proposal_of_successor(bench, 3)
    bench.say(1, ViewChange(2, 1, 1, None, bench.certificate(proposal)))
    bench.decide(0, proposal)
    with bench.breaks("over"):
        bench.say(0, ViewChange(2, 1, 0, None, bench.certificate(proposal)))


def _proposal_of_successor(bench: Bench, servers: int) -> PrePrepare:
    """Return a proposal whose record names a successor that so many servers have proposed."""
    messages = [bench.sign(s, ChangeProposal(1, s, successor(7))) for s in range(servers)]
    for message in messages:
        bench.act(message.server, Persist(message), Broadcast(message))
    entries = tuple((message.server, message.digest) for message in messages)
    lists = bench.sign_lists(range(3), bench.entries, entries)
    return bench.propose(lists, successor=successor(7))


def test_validity_of_the_successor(bench: Bench) -> None:
    """Two of four servers are no quorum."""
    with bench.breaks("validity"):
        bench.decide(0, _proposal_of_successor(bench, 2))


def test_censorship_of_a_change_proposal(bench: Bench) -> None:
    message = bench.sign(2, ChangeProposal(1, 2, successor(7)))
    bench.act(2, Persist(message), Broadcast(message))
    for server in range(2):
        bench.say(server, UploadList(1, server, bench.entries, ((2, message.digest),)))
    with bench.breaks("censorship"):
        bench.decide(0, bench.propose(bench.lists[1:]))


def test_who_has_lost_its_log_must_make_durable_anew_and_is_held_to_what_it_said(
    bench: Bench,
) -> None:
    proposal = bench.propose(bench.lists[:3])
    bench.say(0, UploadList(1, 0, bench.entries))
    bench.decide(0, proposal)
    bench.observer.forgot(0)
    bench.decide(0, proposal)
    with bench.breaks("durability"):
        bench.act(0, Broadcast(bench.lists[0]))
    with bench.breaks("double-sign"):
        bench.say(0, UploadList(1, 0, bench.entries[1:]))


def test_accusation(bench: Bench) -> None:
    two = [bench.sign(3, Prepare(1, 0, bytes([k]) * 32, 3)) for k in range(2)]
    bench.act(0, Accused(bench.rules.unsigned(Evidence(1, *two))))
    assert bench.observer.counted()["evidence of two PREPARE"] == 1
    honest = [bench.sign(1, Prepare(1, 0, bytes([k]) * 32, 1)) for k in range(2)]
    later = bench.sign(3, Prepare(1, 1, bytes(32), 3))
    forged = Message(two[0].run, two[0].body, two[0].raw, bytes(64))
    for first, second in (honest, (two[0], two[0]), (two[0], later), (forged, two[1])):
        with bench.breaks("accusation"):
            bench.act(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))


def test_handed_on(bench: Bench) -> None:
    two = [bench.sign(3, Prepare(1, 0, bytes([k]) * 32, 3)) for k in range(2)]
    proof = bench.rules.unsigned(Evidence(1, *two))
    bench.act(0, Persist(proof))
    bench.act(2, Persist(proof))
    bench.observer.evidence.ask(1)
    with bench.breaks("handed-on"):
        bench.observer.finish([])
    bench.act(1, Persist(proof))
    bench.observer.finish([])


def test_progress_in_views(bench: Bench) -> None:
    bench.observer.max_views = 3
    bench.say(0, ViewChange(1, 7, 0, None, None))
    bench.say(1, ViewChange(1, 6, 1, None, None))
    bench.observer.calm = lambda: True
    bench.say(0, ViewChange(1, 9, 0, None, None))
    with bench.breaks("progress"):
        bench.say(0, ViewChange(1, 10, 0, None, None))


def test_progress_together(bench: Bench) -> None:
    """Two others have asked for view 4: nobody honest goes to view 3 then."""
    for other in (1, 2):
        bench.act(0, event=Received(other, bench.sign(other, ViewChange(1, 4, other, None, None))))
    with bench.breaks("progress"):
        bench.say(0, ViewChange(1, 3, 0, None, None))
    bench.act(0, event=Start())
    bench.say(0, ViewChange(1, 2, 0, None, None))


def test_every_server_is_looked_at_now_and_then(bench: Bench) -> None:
    for _ in range(4):
        bench.act(0)
        bench.act(1)
    assert bench.checked == [0, 1]


class Flawed(Replica):
    """Raises an error in round 2, keeps all it hears, or ignores its timers."""

    flaw = ""

    def step(self, event: Event) -> list[Effect]:
        if self.flaw == "exception" and self.round == 2:
            raise KeyError("round 2")
        if self.flaw == "bounded" and isinstance(event, Received):
            self.hoard = [*getattr(self, "hoard", []), event.message]
        effects = super().step(event)
        if self.flaw == "progress" and isinstance(event, Expired):
            return []
        return effects


@pytest.mark.parametrize("flaw", ["exception", "bounded", "progress"])
def test_flaws_of_a_replica_itself(flaw: str) -> None:
    replica = type("FlawedReplica", (Flawed,), {"flaw": flaw})
    schedule = replace(PLAIN, rounds=20, faulty_clients=((0, "late"),))
    reports = [run(replace(schedule, seed=seed), replica=replica) for seed in range(3)]
    broken = {report.violation.name for report in reports if report.violation is not None}
    assert broken == {flaw}


def test_every_invariant_is_broken_above() -> None:
    """Look for the names of all invariants in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in INVARIANTS)
