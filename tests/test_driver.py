"""What stands between a machine and the world: durable before said, one timer a name, nobody starves the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from cluster import Cluster, key, roster, signer

from fedrfq.consensus.machine import (
    Accused,
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    Persist,
    Publish,
    Received,
    Send,
    SetTimer,
    Start,
    Timer,
    Trained,
    Waiting,
)
from fedrfq.consensus.messages import (
    Body,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Receipt,
    Record,
    Upload,
    What,
)
from fedrfq.consensus.rules import Rules
from fedrfq.net.driver import BATCH, GRACE_MS, MOTIONS, Driver
from fedrfq.net.store import Full
from fedrfq.net.turns import _CLIENT_BYTES, Turns

RULES = Rules(roster())
CERTIFICATE = Certificate(Kind.COMMIT, 0, Record(1, *[bytes(32)] * 5), ())


def word(round_: int = 1) -> Message:
    return RULES.unsigned(Fetch(round_, What.CERT))


class Scripted:
    """Answers each event as the test says, and remembers it."""

    def __init__(self, answer: Callable[[Event], list[Effect]]) -> None:
        self.answer = answer
        self.events: list[Event] = []

    def step(self, event: Event) -> list[Effect]:
        self.events.append(event)
        return self.answer(event)


class World:
    """A disk and wires that write down, in order, what was asked of them."""

    def __init__(self, answer: Callable[[Event], list[Effect]] = lambda event: [], party: int = 0) -> None:
        self.story: list[tuple[Any, ...]] = []
        self.here = {1, 2, 3, ~0, ~1, ~2, ~3}
        self.full = False
        self.machine = Scripted(answer)
        self.driver = Driver(self.machine, party, RULES.roster, self, self)

    def append(self, message: Message) -> None:
        self.story.append(("append", message))

    def flush(self) -> None:
        if self.full:
            raise Full("no room")
        self.story.append(("flush",))

    def send(self, to: int, data: bytes) -> None:
        self.story.append(("send", to, data))

    def connected(self) -> set[int]:
        return self.here

    def drop(self, peer: int, why: str) -> None:
        self.story.append(("drop", peer))

    def sent(self) -> list[tuple[int, bytes]]:
        return [(what[1], what[2]) for what in self.story if what[0] == "send"]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 60))


async def quiet() -> None:
    """All that was due is done."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_a_batch_is_flushed_once_and_before_anything_of_it_is_said() -> None:
    async def test() -> None:
        message = word()
        world = World(lambda event: [Send(1, message), Persist(message), Send(2, message), SetTimer(Timer.VIEW, None)])
        world.driver.on_waiting = lambda waiting: world.story.append(("waiting",))
        for _ in range(3):
            world.driver.give(Start())
        await quiet()
        assert [what[0] for what in world.story] == ["append"] * 3 + ["flush"] + ["send"] * 6
        assert [to for to, _ in world.sent()] == [1, 2] * 3
        assert world.driver.flushes == 1

    run(test())


def test_nothing_is_flushed_where_nothing_must_be_kept() -> None:
    async def test() -> None:
        world = World(lambda event: [Send(1, word())])
        world.driver.give(Start())
        await quiet()
        assert [what[0] for what in world.story] == ["send"]

    run(test())


UPLOAD = RULES.signed(Upload(1, 0, b"content"), signer(key("client", 0)))
RECEIPT = RULES.signed(Receipt(1, 0, 0, UPLOAD.digest), signer(key("server", 0)))
PROOF = RULES.unsigned(Cert(1, CERTIFICATE))
STORED: list[Effect] = [Persist(UPLOAD), Send(~0, RECEIPT)]
SETTLED: list[Effect] = [Persist(PROOF), Publish(PROOF), Decided(CERTIFICATE, None, ()), SetTimer(Timer.VIEW, None)]


def played(*batches: list[Effect]) -> World:
    """A world in which these batches have been carried out, one after the other."""
    plans = iter(batches)
    world = World(lambda event: next(plans))
    world.driver.on_decided = lambda decided: world.story.append(("decided",))
    for _ in batches:
        world.driver.give(Start())
        world.driver._turn()
    return world


def told(world: World) -> list[str]:
    return [what[0] for what in world.story]


def test_uploads_wait_for_one_flush() -> None:
    async def test() -> None:
        world = played(STORED, STORED)
        assert not world.story
        while len(world.story) < 3:
            await asyncio.sleep(0.001)
        assert told(world) == ["append", "append", "flush"]
        assert told(played(STORED, [Persist(word()), Send(1, word())])) == ["append"] * 2 + ["flush", "send"]

    run(test())


def test_a_decision_is_not_waited_for_as_long_as_uploads_may_be() -> None:
    async def test() -> None:
        world = played(STORED)
        uploads = world.driver._patience
        world.driver._carry_out(SETTLED)
        decision = world.driver._patience
        assert uploads is not None
        assert uploads.cancelled()
        assert decision is not None
        assert decision.when() < uploads.when()
        world.driver._carry_out(STORED)
        assert world.driver._patience is decision
        world.driver.stop()

    run(test())


def test_receipts_are_given_before_their_clients_would_repeat_themselves() -> None:
    async def test() -> None:
        world = played(STORED, STORED)
        delay = world.driver._receipts._delay
        assert 0 < delay < RULES.roster.resend_ms / 1000
        world.driver._receipts._delay = 0.001
        while len(world.story) < 4:
            await asyncio.sleep(0.001)
        assert told(world) == ["append", "append", "flush", "send"]
        assert world.sent() == [(~0, RECEIPT.wire)]

    run(test())


def test_no_receipt_is_given_once_its_round_is_decided() -> None:
    async def test() -> None:
        later = RULES.signed(Receipt(2, 0, 0, UPLOAD.digest), signer(key("server", 0)))
        world = World()
        world.driver._receipts._delay = 0.001
        for receipt in (RECEIPT, later):
            world.driver._receipts.owe(Send(~0, receipt))
        world.driver._carry_out([*SETTLED, Persist(word())])
        certificates = len(world.sent())
        while len(world.sent()) == certificates:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        assert world.sent()[certificates:] == [(~0, later.wire)]

    run(test())


def test_no_receipt_is_given_after_the_end() -> None:
    async def test() -> None:
        worlds = [World(), World()]
        for world in worlds:
            world.driver._receipts._delay = 0.001
            world.driver._receipts.owe(Send(~0, RECEIPT))
        worlds[0].driver.stop()
        worlds[1].driver.fail("elsewhere")
        await asyncio.sleep(0.01)
        assert not worlds[0].story + worlds[1].story

    run(test())


def test_a_certificate_is_published_at_once_and_reported_when_it_is_kept() -> None:
    async def test() -> None:
        world = played(SETTLED)
        assert set(told(world)) == {"send"}
        published = len(world.story)
        assert {data for _, data in world.sent()} == {PROOF.wire}
        while len(world.story) < published + 3:
            await asyncio.sleep(0.001)
        assert told(world)[published:] == ["append", "flush", "decided"]

    run(test())


def test_a_certificate_that_may_have_a_vote_in_it_that_is_not_kept_yet_is_published_after_the_flush() -> None:
    async def test() -> None:
        vote = RULES.signed(Commit(1, 0, bytes(32), 0), signer(key("server", 0)))
        story = told(played([Persist(vote), *SETTLED]))
        assert story[:3] == ["append", "append", "flush"]
        assert "send" in story[3:]
        prepared = RULES.unsigned(Cert(1, Certificate(Kind.PREPARE, 0, CERTIFICATE.record, ())))
        assert told(played([Persist(prepared), Publish(PROOF)]))[:2] == ["append", "flush"]

    run(test())


def test_what_waits_is_carried_out_at_a_stop_and_not_when_nothing_can_be_kept() -> None:
    async def test() -> None:
        world = played(STORED)
        world.driver.stop()
        assert told(world) == ["append", "flush"]
        world = played(STORED)
        world.full = True
        world.driver.stop()
        assert (told(world), world.driver.failed) == (["append"], "no room")
        world = played(STORED)
        world.driver.fail("elsewhere")
        world.driver.stop()
        assert not world.story

    run(test())


def test_a_view_whose_leader_is_not_connected_is_given_up_soon() -> None:
    async def test() -> None:
        world = World(lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, 600_000)])
        world.driver.leader = lambda: 2
        world.here.discard(2)
        world.driver.give(Start())
        while Expired(Timer.VIEW) not in world.machine.events:
            await asyncio.sleep(0.001)

    run(test())


def test_a_view_whose_leader_goes_is_given_up_soon_and_no_other() -> None:
    async def test() -> None:
        world = World(lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, 600_000)])
        world.driver.leader = lambda: 2
        world.driver.give(Start())
        await quiet()
        view = world.driver._timers[Timer.VIEW]
        world.driver.lost(1)
        world.driver.lost(~0)
        assert world.driver._timers[Timer.VIEW] is view
        world.driver.lost(2)
        assert view.cancelled()
        while Expired(Timer.VIEW) not in world.machine.events:
            await asyncio.sleep(0.001)
        world.driver.lost(2)
        await quiet()
        assert world.machine.events.count(Expired(Timer.VIEW)) == 1

    run(test())


def test_what_a_peer_has_missed_is_said_again_soon_after_it_comes() -> None:
    async def test() -> None:
        delays = iter([16_000, 10])
        world = World(lambda event: [SetTimer(Timer.RESEND, next(delays))])
        world.driver.found()
        assert not world.driver._timers
        world.driver.give(Start())
        await quiet()
        world.driver.found()
        soon, first = world.driver._timers[Timer.RESEND], asyncio.get_running_loop().time() + RULES.roster.resend_ms / 1000
        assert soon.when() <= first
        world.driver.found()
        assert world.driver._timers[Timer.RESEND] is soon
        world.driver.give(Start())
        await quiet()
        sooner = world.driver._timers[Timer.RESEND]
        world.driver.found()
        assert world.driver._timers[Timer.RESEND] is sooner
        world.driver.stop()

    run(test())


def test_nobody_waits_longer_or_shorter_for_himself() -> None:
    async def test() -> None:
        delays = iter([600_000, 1])
        world = World(lambda event: [] if isinstance(event, Expired) else [SetTimer(Timer.VIEW, next(delays))])
        world.driver.leader = lambda: 0
        world.driver.give(Start())
        await quiet()
        assert world.driver._timers[Timer.VIEW].when() > asyncio.get_running_loop().time() + 300
        world.driver.leader = lambda: 2
        world.here.discard(2)
        world.driver.give(Start())
        world.driver._turn()
        assert world.driver._timers[Timer.VIEW].when() < asyncio.get_running_loop().time() + GRACE_MS / 2000
        world.driver.stop()

    run(test())


def test_what_cannot_be_kept_is_never_said_and_nothing_after_it() -> None:
    async def test() -> None:
        message = word(7)
        world, told = World(lambda event: [Send(1, message), Persist(message), SetTimer(Timer.VIEW, 0), *said]), []
        said: list[Effect] = [Decided(CERTIFICATE, None, ())]
        world.driver.on_failed = told.append
        world.driver.on_decided = lambda decided: told.append("decided")
        world.driver.on_kept = lambda kept: told.append("kept")
        world.full = True
        world.driver.give(Start())
        await quiet()
        assert world.driver.failed == "no room"
        assert told == ["no room"]
        world.full = False
        world.driver.give(Trained(1, b""))
        world.driver.hear(1, word().wire)
        await quiet()
        assert not world.sent()
        assert world.machine.events == [Start()]

    run(test())


def test_whoever_cannot_keep_anything_still_answers_what_its_owner_allows() -> None:
    async def test() -> None:
        message, answer = word(), RULES.unsigned(Body(1, What.SET, b"\0\0\0\0"))
        world = World(lambda event: [Persist(message)])
        asked: list[Fetch] = []
        world.driver.answer = lambda fetch: (asked.append(fetch), answer if fetch.round == 1 else None)[1]
        world.full = True
        world.driver.give(Start())
        await quiet()
        for round_ in (1, 2):
            world.driver.hear(2, word(round_).wire)
        world.driver.hear(2, answer.wire)
        await quiet()
        assert [fetch.round for fetch in asked] == [1, 2]
        assert world.sent() == [(2, answer.wire)]

    run(test())


def test_timers_ring_stop_and_start_anew() -> None:
    async def test() -> None:
        plans = iter(
            [
                [SetTimer(Timer.VIEW, 1), SetTimer(Timer.RESEND, 1), SetTimer(Timer.DEADLINE, 1)],
                [SetTimer(Timer.VIEW, None), SetTimer(Timer.RESEND, 600_000)],
            ]
        )
        world = World(lambda event: next(plans, []))
        world.driver.give(Start())
        world.driver.give(Trained(1, b""))
        await asyncio.sleep(0.05)
        assert world.machine.events == [Start(), Trained(1, b""), Expired(Timer.DEADLINE)]
        world.driver.stop()

    run(test())


def test_a_timer_that_another_ones_ringing_stops_does_not_ring() -> None:
    """Though both had run out: the machine has moved on by then."""

    async def test() -> None:
        def answer(event: Event) -> list[Effect]:
            delay = 0 if type(event) is Start else None
            return [SetTimer(Timer.VIEW, delay), SetTimer(Timer.DEADLINE, delay)]

        world = World(answer)
        world.driver.give(Start())
        await asyncio.sleep(0.05)
        assert len(world.machine.events) == 2

    run(test())


def test_a_timer_that_has_run_out_comes_before_messages_that_would_set_it_anew() -> None:
    async def test() -> None:
        world = World(lambda event: [SetTimer(Timer.VIEW, 600_000)])
        world.driver.give(Start())
        await quiet()
        world.driver.hear(1, word().wire)
        world.driver._ring(Timer.VIEW)
        await quiet()
        assert [type(event) for event in world.machine.events] == [Start, Expired, Received]

    run(test())


def test_a_flood_leaves_room_for_others_and_for_the_clock() -> None:
    async def test() -> None:
        world, between = World(), []
        loop = asyncio.get_running_loop()
        for _ in range(3 * BATCH):
            world.driver.hear(~0, word().wire)
        world.driver.hear(1, word(2).wire)

        def look() -> None:
            between.append(len(world.machine.events))
            if between[-1] < 3 * BATCH + 1:
                loop.call_soon(look)

        loop.call_soon(look)
        await quiet()
        assert [event.peer for event in world.machine.events[:3]] == [~0, 1, ~0]
        assert between == [BATCH, 2 * BATCH, 3 * BATCH, 3 * BATCH + 1]

    run(test())


def test_a_peer_has_room_for_so_many_bytes_and_for_one_message_in_any_case() -> None:
    turns = Turns()
    assert turns.put(~0, Start(), 10 * _CLIENT_BYTES)
    assert not turns.put(~0, Start(), 1)
    assert turns.put(~1, Start(), _CLIENT_BYTES - 1)
    assert turns.put(~1, Start(), 1)
    assert not turns.put(~1, Start(), 1)
    assert turns.put(1, Start(), 10 * _CLIENT_BYTES)
    assert turns.put(1, Start(), 10 * _CLIENT_BYTES)
    for _ in range(5):
        turns.take()
    assert not turns
    assert turns.put(~0, Start(), 1)
    assert turns.put(~0, Start(), _CLIENT_BYTES - 1)
    assert not turns.put(~0, Start(), 1)
    turns.take()
    assert turns.put(~0, Start(), 1)


def test_what_there_is_no_room_for_is_counted_and_gone() -> None:
    async def test() -> None:
        world = World()
        large = RULES.unsigned(Body(1, What.SET, bytes(_CLIENT_BYTES // 2))).wire
        for _ in range(5):
            world.driver.hear(~0, large)
        await quiet()
        assert len(world.machine.events) == 1
        assert world.driver.counts["messages without room"] == 4

    run(test())


def test_what_is_no_message_costs_the_connection() -> None:
    async def test() -> None:
        world = World()
        world.driver.hear(~0, b"nonsense")
        world.driver.hear(1, word().wire + b"\0")
        await quiet()
        assert world.story == [("drop", ~0), ("drop", 1)]
        assert not world.machine.events

    run(test())


def test_a_broadcast_goes_to_all_other_servers_and_a_publication_to_the_clients_served_who_are_here() -> None:
    async def test() -> None:
        message = word()
        world = World(lambda event: [Broadcast(message), Publish(message)], party=1)
        world.here = {0, ~1}
        world.driver.give(Start())
        await quiet()
        assert world.sent() == [(to, message.wire) for to in (0, 2, 3, ~1)]
        client = World(lambda event: [Broadcast(message)], party=~1)
        client.driver.give(Start())
        await quiet()
        assert [to for to, _ in client.sent()] == [0, 1, 2, 3]

    run(test())


def test_the_owner_hears_of_decisions_accusations_waiting_and_of_what_was_kept() -> None:
    async def test() -> None:
        message, upload = word(), RULES.signed(Upload(1, 0, b"1"), signer(key("client", 0)))
        evidence = RULES.unsigned(Evidence(1, upload, upload))
        decided, told = Decided(CERTIFICATE, None, ()), []
        world = World(lambda event: [Persist(message), decided, Accused(evidence), Waiting(1, 2)])
        driver = world.driver
        driver.on_kept, driver.on_decided, driver.on_accused, driver.on_waiting = [told.append] * 4
        driver.give(Start())
        await quiet()
        assert told == [message, decided, evidence, Waiting(1, 2)]

    run(test())


def test_uploads_after_the_last_round_do_not_count() -> None:
    async def test() -> None:
        world = World()
        world.driver.last_round = 2
        for round_ in (1, 2, 3):
            world.driver.hear(~0, RULES.signed(Upload(round_, 0, b"1"), signer(key("client", 0))).wire)
        await quiet()
        assert [event.message.body.round for event in world.machine.events] == [1, 2]

    run(test())


def test_the_round_each_server_spoke_of_is_remembered() -> None:
    async def test() -> None:
        world = World()
        for peer, round_ in ((1, 4), (1, 3), (2, 9), (~0, 8)):
            world.driver.hear(peer, word(round_).wire)
        assert world.driver.heard == {1: 4, 2: 9}

    run(test())


def test_a_machine_that_dies_ends_the_driver() -> None:
    async def test() -> None:
        world = World(lambda event: [SetTimer(Timer.VIEW, 0)] if type(event) is Start else [][1])
        world.driver.give(Start())
        await asyncio.wait([world.driver.ended])
        assert isinstance(world.driver.ended.exception(), IndexError)
        world.driver.give(Start())
        await quiet()
        assert len(world.machine.events) == 2

    run(test())


def test_after_a_stop_nothing_happens() -> None:
    async def test() -> None:
        world = World(lambda event: [SetTimer(Timer.VIEW, 0)])
        world.driver.give(Start())
        await asyncio.sleep(0)
        world.driver.hear(1, word().wire)
        world.driver.stop()
        world.driver.hear(1, b"nonsense")
        world.driver.give(Start())
        await asyncio.sleep(0.02)
        assert not world.story
        assert world.machine.events == [Start()]
        assert world.driver.ended.result() is None

    run(test())


def test_the_same_replicas_decide_through_drivers_as_by_hand() -> None:
    """Four of them and four clients, by frames, each with a disk of its own."""

    async def test() -> None:
        cluster = Cluster()
        drivers: dict[int, Driver] = {}

        class Post(World):
            def __init__(self, party: int) -> None:
                super().__init__()
                self.party = party

            def send(self, to: int, data: bytes) -> None:
                drivers[to].hear(self.party, data)

        decided: dict[int, list[Decided]] = {party: [] for party in cluster.parties}
        for party, machine in cluster.parties.items():
            post = Post(party)
            drivers[party] = Driver(machine, party, cluster.roster, post, post)
            drivers[party].on_decided = decided[party].append
        for client in range(4):
            drivers[~client].give(Trained(1, b"%d" % client))
        while not all(decided.values()):
            await asyncio.sleep(0.001)
        assert {len(found) for found in decided.values()} == {1}
        assert len({found[0].certificate.record for found in decided.values()}) == 1
        for driver in drivers.values():
            driver.stop()

    run(test())


def test_motions_are_taken_in_now_and_then_and_from_servers_alone() -> None:
    async def test() -> None:
        world = World()
        motion = RULES.signed(Upload(1, RULES.roster.mover(1), b"text"), signer(key("server", 1))).wire
        upload = RULES.signed(Upload(1, 0, b"1"), signer(key("client", 0))).wire
        for _ in range(3 * MOTIONS):
            world.driver.hear(1, motion)
        assert world.driver.counts["motions too often"] == 2 * MOTIONS
        world.driver.hear(2, motion)  # who floods costs the others nothing
        world.driver.hear(~0, motion)
        world.driver.hear(~0, upload)
        await quiet()
        await quiet()
        peers = [event.peer for event in world.machine.events if isinstance(event, Received)]
        assert (peers.count(1), peers.count(2), peers.count(~0)) == (MOTIONS, 1, 1)

    run(test())
