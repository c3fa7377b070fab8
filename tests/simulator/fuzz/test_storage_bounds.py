"""What a server stores is bounded, whatever f liars say: the invariant, and those who break it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Effect, Event, Received
from fedrfq.consensus.messages import (
    Evidence,
    Kind,
    Message,
    Prepare,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.sizes import sizes_of
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.schedule_run import ScheduleRun, run
from fedrfq.simulator.fuzz.storage_bounds import LogGrowth, StorageBounds
from fedrfq.simulator.fuzz.toy import CONTENT_BYTES, PART_BYTES
from fedrfq.simulator.violation import Violation
from support.simulated import IDEAL, PLAIN, Bench

LIAR = 3
INCRIMINATED = replace(PLAIN, rounds=6, behaviours=((LIAR, "incriminate"),))


@pytest.mark.parametrize("wire", [False, True])
def test_who_incriminates_itself_is_convicted_by_small_messages_once(wire: bool) -> None:
    schedule_run = ScheduleRun(INCRIMINATED, Replica, Rules, Client, IDEAL)
    schedule_run.world.wire = wire
    schedule_run.run()
    for server in range(3):
        node = schedule_run.world.nodes[server]
        proofs = [message.body for message in node.log if isinstance(message.body, Evidence)]
        kinds = sorted(proof.first.body.kind for proof in proofs)
        assert kinds == [Kind.PREPARE, Kind.COMMIT]
        assert {proof.first.author for proof in proofs} == {LIAR}


@pytest.mark.parametrize("name", ["keeps-all-evidence", "keeps-large-evidence"])
def test_who_keeps_everything_is_caught(name: str) -> None:
    broken = run(INCRIMINATED, replica=MUTANTS[name].replica).violation
    assert broken is not None
    assert broken.name == "bounded"
    assert run(INCRIMINATED).violation is None


class Hoards(Replica):
    """A server that holds on to every large message."""

    hoard: tuple[Message, ...] = ()

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Received) and len(event.message.raw) > 5_000:
            self.hoard += (event.message,)
        return super().step(event)


def test_few_messages_can_be_too_much_for_the_memory() -> None:
    broken = run(INCRIMINATED, replica=Hoards).violation
    assert broken is not None
    assert "bytes of messages" in str(broken)


class TestByHand:
    bench = Bench()

    def growth(self) -> LogGrowth:
        roster = self.bench.rules.roster
        return LogGrowth(StorageBounds(roster, sizes_of(roster, CONTENT_BYTES), PART_BYTES), 0)

    def evidence(self, value: bytes) -> Message:
        votes = [self.bench.sign(LIAR, Prepare(1, 0, mark * 32, LIAR)) for mark in (b"\0", value)]
        return self.bench.rules.unsigned(Evidence(1, *votes))

    def test_a_second_proof_of_one_offence(self) -> None:
        growth = self.growth()
        growth.persist(self.evidence(b"a"))
        with self.bench.breaks("bounded"):
            growth.persist(self.evidence(b"b"))
        growth.forget()
        growth.persist(self.evidence(b"b"))

    def test_a_proof_that_is_too_large(self) -> None:
        entries = tuple((client, bytes(32)) for client in range(17))
        lists = [
            self.bench.sign(LIAR, UploadList(1, LIAR, listed)) for listed in (entries, entries[1:])
        ]
        with self.bench.breaks("bounded"):
            self.growth().persist(self.bench.rules.unsigned(Evidence(1, *lists)))

    def test_too_much_of_one_round(self) -> None:
        growth = self.growth()
        upload = self.bench.sign(~0, Upload(1, 0, bytes(CONTENT_BYTES)))

        def fill() -> int:
            written = 0
            while True:
                try:
                    growth.persist(upload)
                except Violation:
                    return written
                written += len(upload.raw)

        in_one_view = fill()
        assert in_one_view <= growth.bounds.log(1) < in_one_view + len(upload.raw)
        # Another view allows for more, another round has a bound of its own, and so has a restart.
        growth.persist(self.bench.sign(0, ViewChange(1, 1, 0, None, None)))
        assert fill() > 0
        growth.persist(self.bench.sign(~0, Upload(2, 0, bytes(CONTENT_BYTES))))
        growth.restart()
        assert fill() == in_one_view

    def test_too_much_in_memory(self) -> None:
        growth = self.growth()
        most = growth.bounds.memory(1)
        upload = self.bench.sign(~0, Upload(1, 0, bytes(most // 2)))
        growth.check_memory(1, [upload])
        with self.bench.breaks("bounded"):
            growth.check_memory(1, [upload, upload])
