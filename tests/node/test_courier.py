"""A courier carries signed uploads to real servers, brings back certificates, and no more."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrfq.audit import Audit
from fedrfq.committee import Simulated
from fedrfq.consensus import answers
from fedrfq.consensus.events import Outcome, Received
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Record,
    Upload,
    decode,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec, round_log
from fedrfq.node.courier import Carried, Courier
from fedrfq.node.driver.outbox import Outbox
from fedrfq.node.membership import identity
from fedrfq.node.membership.change import changed
from fedrfq.node.ops.prometheus import metrics
from fedrfq.node.server import Server
from fedrfq.node.transport.budget import client_pace, courier_pace
from fedrfq.node.transport.fair_queue import FairQueue
from support.command import fedrfq
from support.committees import CLASSES, PUBLIC, rounds, some_settings, uploads
from support.federations import PATIENCE_S, Servers, founded, process, signed, status, until, upload

CLIENTS = 3
# With these timings a round waits for all clients.
PATIENT = {"deadline_ms": 600_000}


def altered(message: Message) -> Message:
    """Return another upload under the same signature."""
    wire = bytearray(message.wire)
    wire[-65] ^= 1
    return decode(bytes(wire))


def named(carried: Carried) -> tuple[int, ...]:
    """Return the clients whose uploads the committee has judged."""
    return codec.decode_verdicts(carried.verdicts, CLASSES)[0]


def simulated(number: int) -> list[bytes]:
    """Return the globals that a simulated committee decides on in so many rounds."""
    return [
        codec.encode_globals(agreed.decision.globals_)
        for agreed in rounds(Simulated(4), some_settings(CLIENTS), number)
    ]


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


@asynccontextmanager
async def at_work(folder: Path, *numbers: int) -> AsyncIterator[tuple[Servers, Courier]]:
    """Run the servers with these numbers, or all, and a courier in this loop."""
    servers = Servers(folder)
    await servers.start(*(numbers or range(4)))
    try:
        async with Courier.open(folder / "courier-0") as courier:
            yield servers, courier
    finally:
        await servers.stop()


def ignored(servers: Servers, why: str) -> list[int]:
    return [server._replica.ignored[why] for server, _ in servers.running.values()]


def counted(servers: Servers, why: str) -> list[int]:
    return [server._driver.counts[why] for server, _ in servers.running.values()]


def test_what_it_brings_is_what_a_simulated_committee_decides_though_a_server_dies(
    tmp_path: Path,
) -> None:
    founded(tmp_path, couriers=1, **PATIENT)
    folders = [tmp_path / f"server-{k}" for k in range(4)]
    own = tmp_path / "courier-0"

    async def carried(numbers: Sequence[int]) -> list[Carried]:
        async with Courier.open(own) as courier:
            return [
                await courier.carry(number, signed(tmp_path, number), PATIENCE_S)
                for number in numbers
            ]

    with ExitStack() as running:
        processes = [running.enter_context(process(folder)) for folder in folders]
        for folder in folders:
            status(folder)
        found = fedrfq("doctor", own).stdout
        assert "courier 0, courier-0" in found
        assert "4 servers, 3 clients, 1 couriers" in found
        results = asyncio.run(carried([1]))
        processes[2].kill()
        processes[2].wait()
        results += asyncio.run(carried([2, 3]))
        assert "courier-0" not in fedrfq("committee", "status", tmp_path).stdout
    assert [result.globals_ for result in results] == simulated(3)
    assert [(result.round, named(result)) for result in results] == [
        (1, (0, 1, 2)),
        (2, (0, 1, 2)),
        (3, (0, 1, 2)),
    ]
    rules = Rules(identity.load(own).federation.roster)
    for result in results:
        cert, *parts = (placed.message for placed in round_log.unpack(result.packed))
        assert rules.certifies(result.certificate, Kind.COMMIT)
        assert cert == rules.unsigned(Cert(result.round, result.certificate))
        globals_, verdicts, _, public = round_log.parts(
            rules, result.round, Outcome(result.globals_, result.verdicts, b"")
        )
        assert parts == [globals_, verdicts, public]
    for folder in (folders[0], folders[3]):
        assert [one.certificate.record for one in Audit(folder).rounds()] == [
            one.certificate.record for one in results
        ]
        assert "signed" in fedrfq("verify", folder).stdout


def test_an_altered_upload_is_ignored_by_all_and_the_round_closes_without_it(
    tmp_path: Path,
) -> None:
    founded(tmp_path, couriers=1, deadline_ms=1_000, minimum=2)

    async def test() -> None:
        async with at_work(tmp_path) as (servers, courier):
            first, *others = signed(tmp_path, 1)
            found = await courier.carry(1, [altered(first), *others], PATIENCE_S)
            assert named(found) == (1, 2)
            assert all(ignored(servers, "bad signature"))

    run(test())


def test_it_cannot_upload_for_itself_nor_move_nor_vote(tmp_path: Path) -> None:
    federation = founded(tmp_path, couriers=1, **PATIENT)
    own = identity.load(tmp_path / "courier-0")
    other = identity.load(tmp_path / "server-1")
    rules = Rules(federation.roster)
    content = uploads(some_settings(CLIENTS), 1).encoded(1)[0]
    change_proposal = changed(federation, minimum=2).text.encode()
    tries = [
        rules.signed(Upload(1, ~own.party, content), own.signer),
        rules.signed(Upload(1, 0, content), own.signer),
        rules.signed(ChangeProposal(1, 1, change_proposal), own.signer),
        rules.signed(ChangeProposal(1, 1, change_proposal), other.signer),
        rules.signed(Commit(1, 0, bytes(32), 1), own.signer),
        rules.signed(Commit(1, 0, bytes(32), 1), other.signer),
    ]

    async def test() -> None:
        async with at_work(tmp_path) as (servers, courier):
            await until(lambda: len(courier._links.connected()) == 4)
            for server, _ in servers.running.values():
                assert server._tracker.status(server._driver, server._links).connected_clients == 0
                shown = metrics(server._tracker, server._driver, server._links)
                assert "\nfedrfq_clients_connected 0\n" in shown
                for message in tries:
                    server._driver.hear(own.party, message.wire)
            await until(lambda: ignored(servers, "bad signature") == [1] * 4)  # as client 0
            # The proposals and the votes.
            assert counted(servers, "not for a courier to say") == [4] * 4
            for server, _ in servers.running.values():
                assert not server._replica.upload_pool.messages
                assert not server._replica.votes.commits
            assert named(await courier.carry(1, signed(tmp_path, 1), PATIENCE_S)) == (0, 1, 2)

    run(test())


def test_an_unknown_certificate_is_refused(tmp_path: Path) -> None:
    federation = founded(tmp_path / "here", couriers=1)
    founded(tmp_path / "there", couriers=1)
    stranger = identity.load(tmp_path / "there" / "courier-0")

    async def test() -> None:
        async with at_work(tmp_path / "here") as (servers, known):
            courier = Courier(replace(stranger, federation=federation))
            await courier._links.start()
            with pytest.raises(
                UserError,
                match=r"server-0, server-1, server-2, server-3 cannot be reached.*fedrfq doctor",
            ):
                await courier.carry(1, [], 1.0)
            await courier._links.stop()
            assert all(
                links["refused: wrong certificate"] + links["refused: no handshake"]
                for links in _counts(servers)
            )
            assert await known.latest(PATIENCE_S) is None

    run(test())


def _counts(servers: Servers) -> list[dict[str, int]]:
    return [server._links.counts for server, _ in servers.running.values()]


def test_other_parties_folders_are_no_couriers_and_a_couriers_is_nobodys_else(
    tmp_path: Path,
) -> None:
    founded(tmp_path, couriers=1)

    async def opened(name: str) -> None:
        async with Courier.open(tmp_path / name):
            pass

    for name in ("server-0", "client-0"):
        with pytest.raises(UserError, match="--courier"):
            asyncio.run(opened(name))
    assert (
        "courier's folder"
        in fedrfq("client", tmp_path / "courier-0", "--data", "mnist5k", expect=2).stderr
    )
    assert "courier's folder" in fedrfq("server", tmp_path / "courier-0", expect=2).stderr


def test_one_process_a_courier(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1)

    async def test() -> None:
        async with Courier.open(tmp_path / "courier-0"):
            with pytest.raises(UserError, match="in use"):
                async with Courier.open(tmp_path / "courier-0"):
                    pass
        async with Courier.open(tmp_path / "courier-0"):
            pass

    run(test())


def test_who_comes_late_is_sent_everything_and_a_receipt_ends_it(tmp_path: Path) -> None:
    """Two servers decide nothing; the third is sent all uploads when it comes.

    Nobody is sent again what it has confirmed.
    """
    founded(tmp_path, couriers=1, **PATIENT)

    async def test() -> None:
        async with at_work(tmp_path, 0, 1) as (servers, courier):
            uploaded, asked = watched(courier)
            carrying = asyncio.ensure_future(courier.carry(1, signed(tmp_path, 1), PATIENCE_S))
            await until(
                lambda: (
                    {0, 1} <= set(uploaded) and not courier._missing[0] and not courier._missing[1]
                )
            )
            before = len(uploaded)
            questions = len(asked)
            await until(lambda: len(asked) >= questions + 8)
            assert len([to for to in uploaded[before:] if to in (0, 1)]) == 0
            await servers.start(3)
            assert (await carrying).globals_ == simulated(1)[0]

    run(test())


def test_a_server_is_sent_everything_as_soon_as_it_is_there(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1, resend_ms=600_000, **PATIENT)

    async def test() -> None:
        async with at_work(tmp_path) as (_, courier):
            assert not courier._links.connected()
            assert named(await courier.carry(1, signed(tmp_path, 1), PATIENCE_S)) == (0, 1, 2)

    run(test())


def test_a_certificate_that_nobody_told_it_of_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A courier that connects between a decision and its flush is greeted with the round before."""
    founded(tmp_path, couriers=1, **PATIENT)
    monkeypatch.setattr(Outbox, "publish", lambda *_: None)

    async def test() -> None:
        async with at_work(tmp_path) as (_, courier):
            assert named(await courier.carry(1, signed(tmp_path, 1), PATIENCE_S)) == (0, 1, 2)

    run(test())


def watched(courier: Courier) -> tuple[list[int], list[int]]:
    """Record who is sent uploads and questions from now on."""
    uploaded: list[int] = []
    asked: list[int] = []
    send = courier._links.send

    def sent(to: int, data: bytes) -> None:
        is_upload = decode(data).body.kind == Kind.UPLOAD
        (uploaded if is_upload else asked).append(to)
        send(to, data)

    courier._links.send = sent  # type: ignore[method-assign]
    return uploaded, asked


def test_what_no_server_would_read_is_not_sent(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1, **PATIENT)

    async def test() -> None:
        async with at_work(tmp_path) as (servers, courier):
            huge = upload(tmp_path / "client-0", 1, 0, bytes(1 << 16))
            carried = await courier.carry(1, [huge, *signed(tmp_path, 1)], PATIENCE_S)
            assert named(carried) == (0, 1, 2)
            assert not any(counts["dropped: oversized frame"] for counts in _counts(servers))

    run(test())


def test_patience_ends_in_words(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1, **PATIENT)

    async def test() -> None:
        async with at_work(tmp_path, 0, 1, 2) as (servers, courier):
            assert await courier.latest(PATIENCE_S) is None
            with pytest.raises(
                UserError,
                match=r"round 1 .* 2 uploads of 3 clients carried: server-3 cannot be reached",
            ):
                await courier.carry(1, signed(tmp_path, 1, (0, 1)), 0.5)
            await servers.stop(2)
            await until(lambda: len(courier._links.connected()) == 2)
            with pytest.raises(
                UserError, match=r"fewer than 3 servers .*: server-2, server-3 cannot be reached"
            ):
                await courier.latest(0.5)
        async with at_work(tmp_path) as (_, courier):
            await until(lambda: len(courier._links.connected()) == 4)
            with pytest.raises(UserError, match="committee status"):
                await courier.carry(1, [], 0.5)

    run(test())


def test_the_latest_round_is_found_whatever_one_server_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Server 0 forgets all rounds, reports one that never was, or answers with parts of its own."""
    federation = founded(tmp_path, couriers=1, **PATIENT)
    true = Server._last_decided
    found = answers.find
    record = Record(9, *[bytes(32)] * 7)
    forged = Certificate(Kind.COMMIT, 0, record, tuple((server, bytes(64)) for server in range(3)))

    def lying(content: bytes) -> Callable[[Server], Message]:
        def said(server: Server) -> Message:
            if server._identity.party == 0:
                return server._rules.unsigned(Part(9, PartKind.STANDING, content))
            return true(server)

        return said

    def poisoned(replica: Replica, fetch: Fetch) -> Message | None:
        if replica.me == 0 and fetch.what in (PartKind.GLOBALS, PartKind.VERDICTS):
            return replica.rules.unsigned(Part(fetch.round, fetch.what, b"poison"))
        return found(replica, fetch)

    async def test() -> None:
        async with at_work(tmp_path) as (servers, courier):
            assert await courier.latest(PATIENCE_S) is None
            for number in (1, 2):
                newest = await courier.carry(number, signed(tmp_path, number), PATIENCE_S)
            last = newest.certificate.record, newest.globals_, newest.verdicts
            await until(
                lambda: all(server._tracker.decided == 2 for server, _ in servers.running.values())
            )
        monkeypatch.setattr(answers, "find", poisoned)
        for content in (b"", forged.write(), b"no certificate"):
            monkeypatch.setattr(Server, "_last_decided", lying(content))
            async with at_work(tmp_path) as (_, courier):
                known = await courier.latest(PATIENCE_S)
                assert known is not None
                assert (known.certificate.record, known.globals_, known.verdicts) == last
            async with at_work(tmp_path, 0, 1) as (_, courier):
                with pytest.raises(
                    UserError, match=r"fewer than 3 .* server-2, server-3 cannot be reached"
                ):
                    await courier.latest(0.5)

    assert federation.roster.n - federation.roster.f == 3
    run(test())


def test_public_statistics_are_brought_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real servers, and statistics longer than any other message of this federation."""
    public = replace(PUBLIC, moments=100, values=300, every=0, norm=16.0)
    founded(tmp_path, couriers=1, public=public, **PATIENT)
    asked = []
    found = answers.find

    def counted(replica: Replica, fetch: Fetch) -> Message | None:
        if fetch.what is PartKind.PUBLIC:
            asked.append(fetch.round)
        return found(replica, fetch)

    monkeypatch.setattr(answers, "find", counted)

    async def test() -> None:
        async with at_work(tmp_path) as (servers, courier):
            results = [
                await courier.carry(number, signed(tmp_path, number), PATIENCE_S)
                for number in (1, 2, 3)
            ]
            assert set(asked) == {1}
            await until(
                lambda: all(server._tracker.decided == 3 for server, _ in servers.running.values())
            )
        contents = {result.public for result in results}
        assert len(contents) == 1
        content = contents.pop()
        expected = rounds(Simulated(4), some_settings(CLIENTS, public=public), 1)[0].decision
        assert expected.public is not None
        assert content == codec.encode_public(expected.public, public)
        assert len(content) > 20_000
        before = len(asked)
        servers = Servers(tmp_path)
        await servers.start(*range(4))
        for known, again in ((content, False), (b"", True)):
            async with Courier.open(tmp_path / "courier-0", known) as courier:
                latest = await courier.latest(PATIENCE_S)
            assert latest is not None
            assert latest.public == content
            assert (len(asked) > before) == again
        await servers.stop()

    run(test())


def test_it_says_so_if_the_servers_are_in_another_run(tmp_path: Path) -> None:
    federation = founded(tmp_path, couriers=1)
    file = tmp_path / "courier-0" / "federation.toml"
    file.write_text(changed(federation, minimum=2).text)

    async def test() -> None:
        async with at_work(tmp_path) as (_, courier):
            with pytest.raises(UserError, match="another run"):
                await courier.latest()

    run(test())


def test_who_carries_for_all_has_room_for_all(tmp_path: Path) -> None:
    federation = founded(tmp_path, couriers=1)
    client = client_pace(federation)
    courier = courier_pace(federation)
    one = Received(0, signed(tmp_path, 1)[0])
    assert courier.frame_bytes == client.frame_bytes
    assert courier.frames_s > client.frames_s
    assert courier.bytes_s > client.bytes_s
    turns = FairQueue(federation.courier_numbers)
    (party,) = federation.courier_numbers
    assert [[turns.put(peer, one, 1 << 20) for _ in range(2)] for peer in (~0, party)] == [
        [True, False],
        [True, True],
    ]

    async def test() -> None:
        async with at_work(tmp_path) as (servers, _):
            await until(
                lambda: all(
                    party in server._links.connected() for server, _ in servers.running.values()
                )
            )
            assert all(
                server._links._budget(party).pace == courier
                for server, _ in servers.running.values()
            )

    run(test())


def test_it_sends_no_faster_than_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the queue would outgrow its bound and the connection would be dropped."""
    founded(tmp_path, couriers=1, **PATIENT)
    monkeypatch.setattr("fedrfq.node.courier._MAX_UNREAD", 1 << 12)
    max_unread = 0

    async def test() -> None:
        async with at_work(tmp_path) as (_, courier):
            ballast = [upload(tmp_path / "client-0", 9, 0, bytes(k)) for k in range(400)]
            unread = courier._links.unread
            send = courier._links.send

            def sent(to: int, data: bytes) -> None:
                nonlocal max_unread
                send(to, data)
                max_unread = max(max_unread, unread(to))

            courier._links.send = sent  # type: ignore[method-assign]
            carried = await courier.carry(1, [*ballast, *signed(tmp_path, 1)], PATIENCE_S)
            assert named(carried) == (0, 1, 2)

    run(test())
    assert 1 << 12 < max_unread < 1 << 13


def test_a_copy_of_the_folder_is_enough(tmp_path: Path) -> None:
    """A courier stores nothing: all that it knows comes from the servers."""
    founded(tmp_path, couriers=1, **PATIENT)
    before = sorted(path.name for path in (tmp_path / "courier-0").iterdir())

    async def test() -> None:
        async with at_work(tmp_path) as (_, courier):
            await courier.carry(1, signed(tmp_path, 1), PATIENCE_S)
        shutil.copytree(tmp_path / "courier-0", tmp_path / "copy")
        assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == before

    run(test())
