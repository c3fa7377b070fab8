"""Peers that read too slowly, send too much or fall silent cost a bounded amount."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from nacl.signing import SigningKey

from fedrfq.consensus.messages import (
    SIGNATURE,
    ChangeProposal,
    Evidence,
    Part,
    PartKind,
    decode,
)
from fedrfq.consensus.rules import Rules
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.members import Member
from fedrfq.federation.reconfiguration import max_successor_bytes
from fedrfq.node.membership.identity import Identity
from fedrfq.node.transport.budget import Limits, client_pace, honest_sizes, server_pace
from fedrfq.node.transport.frames import EMPTY, header
from support.wires import QUICK, USUAL, Net, Raw, blocked, identities, run, unlogged, until


@pytest.fixture(scope="module")
def parties(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Identity]:
    return identities(tmp_path_factory.mktemp("links") / "federation")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with unlogged(caplog):
        yield


def test_stop_is_bounded_where_a_peer_does_not_read(parties: dict[int, Identity]) -> None:
    limits = replace(QUICK, client=replace(USUAL, queue_bytes=1 << 26), drain_s=0.05)

    async def story(net: Net) -> None:
        a = await net.start(0, limits)
        with closing(await blocked(parties[-1], a.address)):
            await until(a.connected)
            for _ in range(200):
                a.send(-1, bytes(1 << 16))
            await a.stop()
            assert not a.connected()

    assert run(parties, story).links[0].counts["dropped: stopped"] == 1


def test_a_silent_peer_is_dropped(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, silent_s=0.1))
        raw = await Raw.dial(parties[-1], a.address)
        await raw.ended()
        await until(lambda: not a.connected())

    assert run(parties, story).links[0].counts["dropped: silent"] == 1


def test_a_slow_reader_is_dropped_and_others_are_not(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -2)
        with closing(await blocked(parties[-1], a.address)):
            await until(lambda: -1 in a.connected())
            sent = 0
            while -1 in a.connected():
                a.send(-1, bytes(1 << 14))
                a.send(-2, b"%d" % sent)
                sent += 1
                await asyncio.sleep(0)
            await until(lambda: len(net.heard[-2]) == sent)
        assert a.connected() == {-2}
        assert a.counts["dropped: slow"] == 1

    run(parties, story)


def test_a_turn_that_queues_too_much_is_dropped_at_once(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a, _ = await net.all(0, -1)
        await until(a.connected)
        for _ in range(1000):
            a.send(-1, bytes(1 << 14))
        assert a.counts["dropped: slow"] == 1
        assert a.counts["unsent"] == 1000 - (1 << 20 >> 14)

    run(parties, story)


def test_of_all_slow_readers_together_the_slowest_goes(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, queue_bytes=1 << 30)

    async def story(net: Net) -> None:
        a = await net.start(
            0, Limits(pace, pace, total_queue_bytes=1 << 24, ping_s=0.05, drain_s=0.05)
        )
        with (
            closing(await blocked(parties[-1], a.address)),
            closing(await blocked(parties[-2], a.address)),
        ):
            await until(lambda: a.connected() == {-1, -2})
            for _ in range(500):
                a.send(-1, bytes(1 << 16))
            for _ in range(100):
                a.send(-2, bytes(1 << 16))
            await until(lambda: a.connected() == {-2})
            await a.stop()

    assert run(parties, story).links[0].counts["dropped: slow"] == 1


def test_what_is_not_a_frame_counts_as_unread_too(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=replace(USUAL, queue_bytes=1 << 10)))
        with closing(await blocked(parties[-1], a.address)):
            await until(a.connected)
            link = a._peers[-1]
            for _ in range(1 << 20):
                if not link.closed:
                    link.ping()

    assert run(parties, story).links[0].counts["dropped: slow"] == 1


def test_a_flooding_client_waits_and_others_are_heard(parties: dict[int, Identity]) -> None:
    """A flooding client is heard for one burst and then not read; it stays connected meanwhile."""
    pace = replace(USUAL, frames_s=10.0, burst_s=10.0)

    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=pace, silent_s=0.1))
        raw = await Raw.dial(parties[-1], a.address)
        other = await net.start(-2, replace(QUICK, ping_s=0.01))
        await until(other.connected)
        flood = asyncio.create_task(pour(raw.writer))
        await until(lambda: a.counts["paused"])
        for number in range(50):
            other.send(0, b"%d" % number)
            await asyncio.sleep(0.004)
        await until(lambda: (-2, b"49") in net.heard[0])
        flood.cancel()
        assert a.connected() == {-1, -2}
        assert sum(peer == -1 for peer, _ in net.heard[0]) <= 100 + (1 << 16), (
            "a burst, and one reading"
        )
        assert a.counts["paused"] == 1
        raw.writer.transport.abort()

    run(parties, story)


async def pour(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write((header(b"!") + b"!") * 1000)
        await writer.drain()


def test_a_party_in_debt_is_so_after_coming_back(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, bytes_s=100.0, burst_s=10.0)

    async def story(net: Net) -> None:
        a = await net.start(0, replace(QUICK, client=pace))
        for times, size in ((1, 50_000), (2, 1), (3, 1)):
            raw = await Raw.dial(parties[-1], a.address)
            raw.writer.write(header(bytes(size)) + bytes(size))
            await until(lambda times=times: a.counts["paused"] >= times)
            raw.writer.transport.abort()

    run(parties, story)


def test_who_waited_long_enough_is_read_again(parties: dict[int, Identity]) -> None:
    pace = replace(USUAL, frames_s=1000.0, burst_s=0.01)

    async def story(net: Net) -> None:
        a, b = await net.all(0, -1, limits=replace(QUICK, client=pace))
        for number in range(5):
            for _ in range(20):
                b.send(0, b"%d" % number)
            await until(lambda number=number: net.heard[0].count((-1, b"%d" % number)) == 20)
        assert a.counts["paused"] >= 3

    run(parties, story)


def test_who_falls_silent_after_a_wait_is_dropped(parties: dict[int, Identity]) -> None:
    async def story(net: Net) -> None:
        a = await net.start(
            0, replace(QUICK, client=replace(USUAL, frames_s=1000.0, burst_s=0.01), silent_s=0.1)
        )
        raw = await Raw.dial(parties[-1], a.address)
        raw.writer.write(EMPTY * 30)
        await raw.ended()
        assert a.counts["paused"]

    assert run(parties, story).links[0].counts["dropped: silent"] == 1


def test_paces_follow_from_the_federation(parties: dict[int, Identity]) -> None:
    federation = parties[0].federation
    server = server_pace(federation)
    client = client_pace(federation)
    assert server.frame_bytes > 4 * len(federation.text) + (1 << 21)
    assert federation.task.classes * (4 * federation.task.values + 8) < client.frame_bytes < 1 << 13
    assert client.queue_bytes > 2 * len(federation.text)
    assert client.frames_s < server.frames_s
    assert client.bytes_s < server.bytes_s


def with_clients(federation: Federation, clients: int) -> Federation:
    """Return the federation with so many clients."""
    assert federation.network is not None
    servers = federation.network.members[: len(federation.servers)]
    members = [Member(f"client-{k}", "", b"%-500d" % k) for k in range(clients)]
    return replace(
        federation,
        task=replace(federation.task, clients=clients),
        clients=tuple(SigningKey.generate().verify_key.encode() for _ in members),
        network=replace(federation.network, members=(*servers, *members)),
    )


@pytest.mark.parametrize("clients", [1, 1_000])
def test_evidence_of_two_change_proposals_fits_in_a_frame(
    parties: dict[int, Identity], clients: int
) -> None:
    """If not, the honest server that hands it on would lose its connections."""
    federation = with_clients(parties[0].federation, clients)
    rules = Rules(federation.roster)
    text = bytes(max_successor_bytes(federation))
    proposal = rules.signed(ChangeProposal(0, 0, text), lambda raw: bytes(SIGNATURE))
    evidence = rules.unsigned(Evidence(0, proposal, proposal))
    assert decode(evidence.wire, honest_sizes(federation)) == evidence
    handed_on = rules.unsigned(Part(0, PartKind.EVIDENCE, evidence.wire))
    assert len(handed_on.wire) <= server_pace(federation).frame_bytes
    # A client that is sent the successor is not taken for a slow reader.
    assert len(text) < client_pace(federation).queue_bytes
