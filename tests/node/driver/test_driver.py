"""The driver sends each message where it belongs, and no peer starves the others."""

from __future__ import annotations

import asyncio

import pytest

from fedrfq.consensus.events import (
    Accused,
    Broadcast,
    Decided,
    Persist,
    Publish,
    Received,
    SetTimer,
    Start,
    Submit,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import (
    ChangeProposal,
    Evidence,
    Message,
    Part,
    PartKind,
    Upload,
    UploadList,
    decode,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Sizes
from fedrfq.node.driver import admission
from fedrfq.node.driver.admission import CHANGE_PROPOSALS
from fedrfq.node.driver.driver import BATCH, Driver
from fedrfq.node.transport.fair_queue import MAX_CLIENT_BYTES, TURN_BYTES, FairQueue
from support.cluster import Cluster, key, roster, signer
from support.scripted import CERTIFICATE, RULES, World, quiet, run, word


def test_a_flood_leaves_room_for_others_and_for_the_clock() -> None:
    async def test() -> None:
        world = World()
        between = []
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
    queue = FairQueue()
    assert queue.put(~0, Start(), 10 * MAX_CLIENT_BYTES)
    assert not queue.put(~0, Start(), 1)
    assert queue.put(~1, Start(), MAX_CLIENT_BYTES - 1)
    assert queue.put(~1, Start(), 1)
    assert not queue.put(~1, Start(), 1)
    assert queue.put(1, Start(), 10 * MAX_CLIENT_BYTES)
    assert queue.put(1, Start(), 10 * MAX_CLIENT_BYTES)
    for _ in range(5):
        queue.take()
    assert not queue.turns
    assert queue.put(~0, Start(), 1)
    assert queue.put(~0, Start(), MAX_CLIENT_BYTES - 1)
    assert not queue.put(~0, Start(), 1)
    queue.take()
    assert queue.put(~0, Start(), 1)


def test_a_large_upload_has_room_behind_a_small_question() -> None:
    queue = FairQueue()
    assert queue.put(~0, b"question", 78)
    assert queue.put(~0, b"upload", 3 * MAX_CLIENT_BYTES)
    assert not queue.put(~0, b"upload", 78)


def test_a_large_frame_waits_for_as_many_turns_as_its_bytes_take() -> None:
    queue = FairQueue()
    for _ in range(2):
        queue.put(1, b"large", 3 * TURN_BYTES)
    for _ in range(5):
        queue.put(2, b"small", TURN_BYTES)
    order = []
    while queue.turns:
        order.append(queue.take()[0])
    assert order == [2, 2, 1, 2, 2, 2, 1]


def test_what_a_peer_has_sent_can_be_forgotten() -> None:
    queue = FairQueue()
    for peer in (~0, 2, ~0):
        queue.put(peer, b"frame", MAX_CLIENT_BYTES // 2)
    queue.forget(~0)
    queue.forget(3)
    assert queue.take()[0] == 2
    assert not queue.turns
    assert queue.put(~0, b"frame", MAX_CLIENT_BYTES)


def test_frames_are_decoded_in_the_turn_of_their_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding as they come in would let one peer's frames hold up everybody's."""
    decoded = []

    def counted(data: bytes, sizes: Sizes) -> Message:
        decoded.append(data)
        return decode(data, sizes)

    monkeypatch.setattr(admission, "decode", counted)

    async def test() -> None:
        world = World()
        frames = [word(round_).wire for round_ in range(1, 2 * BATCH)]
        for frame in frames:
            world.driver.hear(1, frame)
        world.driver.hear(2, word(9999).wire)
        assert not decoded
        await quiet()
        assert decoded[1] == word(9999).wire
        assert [decoded[0], *decoded[2:]] == frames

    run(test())


def test_what_no_honest_party_says_costs_the_connection_and_what_came_with_it() -> None:
    async def test() -> None:
        world = World()
        clients = len(RULES.roster.clients)
        entries = tuple((client, bytes(32)) for client in range(100 * clients))
        large = RULES.signed(UploadList(1, 1, entries), signer(key("server", 1)))
        for message in (word(), large, word(), large):
            world.driver.hear(1, message.wire)
        await quiet()
        assert world.story == [("drop", 1)]
        assert len(world.machine.events) == 1

    run(test())


def test_messages_of_another_run_are_not_decoded() -> None:
    """Another run may have more parties, so its messages may well be larger."""

    async def test() -> None:
        world = World()
        other = Rules(roster(clients=9))
        entries = tuple((client, bytes(32)) for client in range(100))
        foreign = other.signed(UploadList(1, 1, entries), signer(key("server", 1)))
        world.driver.hear(1, foreign.wire)
        await quiet()
        assert not world.story
        assert not world.machine.events
        assert world.driver.counts["messages of another run"] == 1

    run(test())


def test_who_only_ever_speaks_of_another_run_is_reported_once() -> None:
    """Around a change of the federation, messages of the run before or after are no news."""

    async def test() -> None:
        world = World()
        reported: list[tuple[int, bytes]] = []
        world.driver.admission.on_another_run = lambda *found: reported.append(found)
        other = Rules(roster(clients=9))
        foreign = other.signed(UploadList(1, 1, ()), signer(key("server", 1))).wire
        world.driver.hear(2, word().wire)
        for peer in (1, 2, 1, ~0):
            world.driver.hear(peer, foreign)
        await quiet()
        assert sorted(reported) == [(~0, other.run), (1, other.run)]
        assert world.driver.counts["messages of another run"] == 4

    run(test())


def test_what_there_is_no_room_for_is_counted_and_gone() -> None:
    async def test() -> None:
        world = World()
        large = RULES.unsigned(Part(1, PartKind.SET, bytes(MAX_CLIENT_BYTES))).wire
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


def test_a_broadcast_goes_to_all_other_servers_and_a_publication_to_the_clients_served() -> None:
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
        message = word()
        upload = RULES.signed(Upload(1, 0, b"1"), signer(key("client", 0)))
        evidence = RULES.unsigned(Evidence(1, upload, upload))
        decided = Decided(CERTIFICATE, None, ())
        reported = []
        world = World(lambda event: [Persist(message), decided, Accused(evidence), Waiting(1, 2)])
        driver = world.driver
        driver.flush.on_persisted = reported.append
        driver.on_decided = reported.append
        driver.on_accused = reported.append
        driver.on_waiting = reported.append
        driver.give(Start())
        await quiet()
        assert reported == [message, decided, evidence, Waiting(1, 2)]

    run(test())


def test_uploads_after_the_last_round_do_not_count() -> None:
    async def test() -> None:
        world = World()
        world.driver.admission.last_round = 2
        for round_ in (1, 2, 3):
            world.driver.hear(
                ~0, RULES.signed(Upload(round_, 0, b"1"), signer(key("client", 0))).wire
            )
        await quiet()
        assert [event.message.body.round for event in world.machine.events] == [1, 2]

    run(test())


def test_the_round_each_server_spoke_of_is_remembered() -> None:
    async def test() -> None:
        world = World()
        for peer, round_ in ((1, 4), (1, 3), (2, 9), (~0, 8)):
            world.driver.hear(peer, word(round_).wire)
        await quiet()
        assert world.driver.admission.heard == {1: 4, 2: 9}

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
    """Four replicas and four clients exchange frames, each with a disk of its own."""

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
            drivers[~client].give(Submit(1, b"%d" % client))
        while not all(decided.values()):
            await asyncio.sleep(0.001)
        assert {len(found) for found in decided.values()} == {1}
        assert len({found[0].certificate.record for found in decided.values()}) == 1
        for driver in drivers.values():
            driver.stop()

    run(test())


def test_change_proposals_are_taken_in_now_and_then_and_from_servers_alone() -> None:
    async def test() -> None:
        world = World()
        change_proposal = RULES.signed(ChangeProposal(1, 1, b"text"), signer(key("server", 1))).wire
        upload = RULES.signed(Upload(1, 0, b"1"), signer(key("client", 0))).wire
        for _ in range(3 * CHANGE_PROPOSALS):
            world.driver.hear(1, change_proposal)
        await quiet()
        assert world.driver.counts["change proposals too often"] == 2 * CHANGE_PROPOSALS
        # A server that floods does not use up the allowance of the others.
        world.driver.hear(2, change_proposal)
        world.driver.hear(~0, change_proposal)
        world.driver.hear(~0, upload)
        await quiet()
        await quiet()
        peers = [event.peer for event in world.machine.events if isinstance(event, Received)]
        assert (peers.count(1), peers.count(2), peers.count(~0)) == (CHANGE_PROPOSALS, 1, 1)

    run(test())


def test_evidence_that_quotes_change_proposals_counts_as_such() -> None:
    # Checking it parses both texts, so a liar could else send it instead.
    async def test() -> None:
        world = World()
        sign = signer(key("server", 1))
        first = RULES.signed(ChangeProposal(1, 1, b"text"), sign)
        second = RULES.signed(ChangeProposal(1, 1, b"other"), sign)
        quoting = RULES.unsigned(Evidence(1, first, second)).wire
        lists = [RULES.signed(UploadList(1, 1, ((k, bytes(32)),)), sign) for k in range(2)]
        plain = RULES.unsigned(Evidence(1, *lists)).wire
        for _ in range(3 * CHANGE_PROPOSALS):
            world.driver.hear(1, quoting)
        world.driver.hear(1, plain)
        world.driver.hear(2, quoting)
        world.driver.hear(~0, quoting)
        await quiet()
        assert world.driver.counts["change proposals too often"] == 2 * CHANGE_PROPOSALS
        peers = [event.peer for event in world.machine.events if isinstance(event, Received)]
        assert (peers.count(1), peers.count(2), peers.count(~0)) == (CHANGE_PROPOSALS + 1, 1, 0)

    run(test())
