"""The simulator's invariants: each can break, by hand or by a flaw of a replica."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Decided,
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
    Commit,
    Evidence,
    Kind,
    Message,
    Prepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.invariants import INVARIANTS
from fedrfq.simulator.fuzz.schedule_run import ScheduleReport, run
from fedrfq.simulator.fuzz.toy import Toy, content
from support.simulated import PLAIN, Bench


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_all_is_well_by_hand(bench: Bench) -> None:
    for server in (0, 1, 2):
        bench.does(
            server,
            *map(Persist, bench.uploads),
            Send(~0, bench.said(server, Receipt(1, server, *bench.entries[0]))),
        )
        bench.says(server, UploadList(1, server, bench.entries))
    proposal = bench.proposed(bench.lists[:3])
    bench.decides(0, proposal)
    bench.decides(~2, proposal)
    assert bench.observer.counted()["rounds decided"] == 1


def test_agreement(bench: Bench) -> None:
    bench.decides(0, bench.proposed(bench.lists[:3]))
    few = tuple(bench.said(s, UploadList(1, s, bench.entries[:3])) for s in range(3))
    with bench.breaks("agreement"):
        bench.decides(~1, bench.proposed(few))


def test_rounds_are_chained(bench: Bench) -> None:
    with bench.breaks("agreement"):
        bench.decides(0, bench.proposed(bench.lists[:3], previous=bytes(32)))


@pytest.mark.parametrize("signers", [(0, 1), (0, 0, 1), (0, 1, 2, 2)])
def test_certificate(bench: Bench, signers: tuple[int, ...]) -> None:
    with bench.breaks("certificate"):
        bench.decides(0, bench.proposed(bench.lists[:3]), signers)


def test_a_certificate_of_another_phase_and_a_round_twice(bench: Bench) -> None:
    certificate = bench.certificate(bench.proposed(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.does(
            0, Send(1, bench.rules.unsigned(Cert(1, replace(certificate, phase=Kind.PREPARE))))
        )
    bench.decides(0, bench.proposed(bench.lists[:3]))
    with bench.breaks("certificate"):
        bench.decides(0, bench.proposed(bench.lists[:3]))


def test_union(bench: Bench) -> None:
    for lists in (bench.lists[:2], bench.lists[:2] + bench.lists[:1]):
        with Bench().breaks("union"):
            Bench().decides(0, bench.proposed(lists))
    with bench.breaks("union"):
        bench.decides(0, bench.proposed(bench.lists[:3], bench.entries[:3]))


def test_validity_of_the_result(bench: Bench) -> None:
    proposal = bench.proposed(bench.lists[:3])
    with bench.breaks("validity"):
        bench.decides(0, replace(proposal, record=replace(proposal.record, globals_=bytes(32))))


@pytest.mark.parametrize(
    "upload", [Upload(1, 0, content(9)), Upload(2, 0, content(0)), Upload(1, 0, b"junk")]
)
def test_validity_of_uploads(bench: Bench, upload: Upload) -> None:
    """Not what the client sent; of another round; inadmissible."""
    message = bench.said(~0, upload)
    bench.does(3, Broadcast(message))
    if upload.content == b"junk":
        bench.observer.seen.uploads[message.digest] = message
    entries = tuple(sorted([(0, message.digest), *bench.entries[1:]]))
    lists = tuple(bench.said(s, UploadList(1, s, entries)) for s in range(3))
    with bench.breaks("validity"):
        bench.decides(0, bench.proposed(lists))


def test_censorship(bench: Bench) -> None:
    for server in (0, 1):
        bench.says(server, UploadList(1, server, bench.entries))
    lists = tuple(bench.said(s, UploadList(1, s, bench.entries[1:])) for s in range(3))
    with bench.breaks("censorship"):
        bench.decides(0, bench.proposed(lists))


def test_an_equivocator_may_be_left_out() -> None:
    bench = Bench()
    bench.observer.seen.signed[1, 0].add(bytes(32))
    for server in (0, 1):
        bench.says(server, UploadList(1, server, bench.entries))
    bench.decides(
        0,
        bench.proposed(tuple(bench.said(s, UploadList(1, s, bench.entries[1:])) for s in range(3))),
    )


def test_double_sign(bench: Bench) -> None:
    bench.says(0, ViewChange(1, 1, 0, None, None))
    bench.says(0, ViewChange(1, 2, 0, None, None))
    bench.says(0, UploadList(1, 0, bench.entries))
    with bench.breaks("double-sign"):
        bench.says(0, UploadList(1, 0, bench.entries[:3]))
    with bench.breaks("double-sign"):
        bench.says(~0, Upload(1, 0, content(77)))


def test_left_view(bench: Bench) -> None:
    bench.says(0, ViewChange(1, 2, 0, None, None))
    for body in (Commit(1, 1, bytes(32), 0), Prepare(1, 0, bytes(32), 0)):
        with bench.breaks("left-view"):
            bench.says(0, body)


def test_leader(bench: Bench) -> None:
    proposal = bench.proposed(bench.lists[:3])
    bench.does(3, Broadcast(bench.said(3, replace(proposal, server=3))))
    value = proposal.record.value(bench.rules.run)
    with bench.breaks("leader"):
        bench.says(0, Prepare(1, 0, value, 0))
    bench.does(1, Persist(bench.said(1, proposal)))
    bench.says(2, Prepare(1, 0, value, 2))


def test_durability(bench: Bench) -> None:
    with bench.breaks("durability"):
        bench.does(0, Broadcast(bench.lists[0]), Persist(bench.lists[0]))
    with bench.breaks("durability"):
        bench.does(0, Send(~0, bench.said(0, Receipt(1, 0, *bench.entries[0]))))


def test_promise(bench: Bench) -> None:
    receipt = bench.said(0, Receipt(1, 0, *bench.entries[0]))
    bench.does(0, Persist(bench.uploads[0]), Send(~0, receipt))
    with bench.breaks("promise"):
        bench.says(0, UploadList(1, 0, bench.entries[1:]))
    bench.says(1, UploadList(1, 1, bench.entries[1:]))
    with bench.breaks("promise"):
        bench.does(
            1, Persist(bench.uploads[0]), Send(~0, bench.said(1, Receipt(1, 1, *bench.entries[0])))
        )
    with bench.breaks("promise"):
        bench.says(2, UploadList(1, 2, ()))


def test_change_proposals_do_not_make_up_for_clients(bench: Bench) -> None:
    change_proposal = bench.said(~6, Upload(1, 6, content(1)))
    bench.does(2, Persist(change_proposal), Broadcast(change_proposal))
    with bench.breaks("promise"):
        bench.says(2, UploadList(1, 2, ((6, change_proposal.digest),)))


def test_two_motions(bench: Bench) -> None:
    first, second = (bench.said(~6, Upload(1, 6, content(k))) for k in range(2))
    with bench.breaks("accusation"):
        bench.does(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))
    with bench.breaks("durability"):
        bench.does(2, Broadcast(first))
    bench.does(2, Persist(first))
    with bench.breaks("double-sign"):
        bench.does(2, Persist(second))


def test_over(bench: Bench) -> None:
    bench.observer.chain.application = Toy(1)
    proposal = bench.proposed(bench.lists[:3])
    bench.decides(1, proposal)
    bench.says(1, ViewChange(2, 1, 1, None, bench.certificate(proposal)))
    outcome = bench.observer.chain.outcomes[1]
    bench.does(0, Decided(bench.certificate(proposal), outcome, ()))
    with bench.breaks("over"):
        bench.says(0, ViewChange(2, 1, 0, None, bench.certificate(proposal)))


def test_who_has_lost_its_log_must_make_durable_anew_and_is_held_to_what_it_said(
    bench: Bench,
) -> None:
    proposal = bench.proposed(bench.lists[:3])
    bench.says(0, UploadList(1, 0, bench.entries))
    bench.decides(0, proposal)
    bench.observer.forgot(0)
    bench.decides(0, proposal)
    with bench.breaks("durability"):
        bench.does(0, Broadcast(bench.lists[0]))
    with bench.breaks("double-sign"):
        bench.says(0, UploadList(1, 0, bench.entries[1:]))


def test_accusation(bench: Bench) -> None:
    two = [bench.said(3, Prepare(1, 0, bytes([k]) * 32, 3)) for k in range(2)]
    bench.does(0, Accused(bench.rules.unsigned(Evidence(1, *two))))
    assert bench.observer.counted()["evidence of two PREPARE"] == 1
    honest = [bench.said(1, Prepare(1, 0, bytes([k]) * 32, 1)) for k in range(2)]
    later = bench.said(3, Prepare(1, 1, bytes(32), 3))
    forged = Message(two[0].run, two[0].body, two[0].raw, bytes(64))
    for first, second in (honest, (two[0], two[0]), (two[0], later), (forged, two[1])):
        with bench.breaks("accusation"):
            bench.does(0, Accused(bench.rules.unsigned(Evidence(1, first, second))))


def test_progress_in_views(bench: Bench) -> None:
    bench.observer.max_views = 3
    bench.says(0, ViewChange(1, 7, 0, None, None))
    bench.says(1, ViewChange(1, 6, 1, None, None))
    bench.observer.calm = lambda: True
    bench.says(0, ViewChange(1, 9, 0, None, None))
    with bench.breaks("progress"):
        bench.says(0, ViewChange(1, 10, 0, None, None))


def test_progress_together(bench: Bench) -> None:
    """Two others have asked for view 4: nobody honest goes to view 3 then."""
    for other in (1, 2):
        bench.does(0, event=Received(other, bench.said(other, ViewChange(1, 4, other, None, None))))
    with bench.breaks("progress"):
        bench.says(0, ViewChange(1, 3, 0, None, None))
    bench.does(0, event=Start())
    bench.says(0, ViewChange(1, 2, 0, None, None))


def test_every_server_is_looked_at_now_and_then(bench: Bench) -> None:
    for _ in range(4):
        bench.does(0)
        bench.does(1)
    assert bench.looked == [0, 1]


class Deaf(Replica):
    """Takes no view changes, sends nothing again, keeps all it hears, and falls over a certificate."""

    flaw = ""

    def step(self, event: Event) -> list[Effect]:
        if self.flaw == "exception" and self.round == 2:
            raise KeyError("round 2")
        if self.flaw == "bounded" and isinstance(event, Received):
            self.heap = [*getattr(self, "heap", []), event.message]
        effects = super().step(event)
        if self.flaw == "progress" and isinstance(event, Expired):
            return []
        return effects


@pytest.mark.parametrize("flaw", ["exception", "bounded", "progress"])
def test_flaws_of_a_replica_itself(flaw: str) -> None:
    def found(seed: int) -> ScheduleReport:
        return run(
            replace(PLAIN, seed=seed, rounds=20, faulty_clients=((0, "late"),)),
            replica=type("It", (Deaf,), {"flaw": flaw}),
        )

    names = {
        report.violation.name for seed in range(3) if (report := found(seed)).violation is not None
    }
    assert names == {flaw}


def test_every_invariant_is_broken_above() -> None:
    """By its name, in this file."""
    text = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in text for name in INVARIANTS)
