"""Servers as processes: killed, damaged, out of disk space, and told to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedrfq.audit import Audit
from fedrfq.consensus.messages import Cert, Fetch, PartKind
from fedrfq.consensus.replica import Replica
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.node.membership import epochs, identity
from fedrfq.node.server import Server, ServerOptions, serve
from fedrfq.node.storage import disk
from support.federations import (
    PATIENCE_S,
    Servers,
    Uploader,
    fetched,
    founded,
    process,
    status,
    until,
    uploaded,
    without_torch,
)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


def values(folder: Path) -> list[bytes]:
    """Return the values of the rounds in a server's audit log, each verified."""
    audit = Audit(folder)
    return [audited.certificate.record.value(audit.rules.run) for audited in audit.rounds()]


def decided(client: Uploader, round_: int) -> bool:
    return max(client.decided, default=0) >= round_


def refused(folder: Path, *options: str) -> str:
    """Start a server that must refuse to start, and return its last line."""
    done = subprocess.run(
        without_torch("server", folder, *options),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr.splitlines()[-1]


def test_four_servers_agree_and_stop_when_told(tmp_path: Path) -> None:
    # Servers wait for all clients, so that each of these sees every round.
    federation = founded(tmp_path, rounds=3, deadline_ms=30_000)
    folders = [tmp_path / f"server-{k}" for k in range(4)]
    with (
        process(folders[0]) as a,
        process(folders[1]) as b,
        process(folders[2]) as c,
        process(folders[3]) as d,
    ):
        found = asyncio.run(uploaded(tmp_path, federation, 3))
        # Clients may know it first.
        asyncio.run(until(lambda: all(status(folder)["finished"] for folder in folders)))
        assert all(status(folder)["last"]["round"] == 3 for folder in folders)
        for number, one in enumerate((a, b, c, d)):
            one.send_signal(signal.SIGTERM if number else signal.SIGINT)
        assert [one.wait(PATIENCE_S) for one in (a, b, c, d)] == [0] * 4
        assert a.stderr is not None
        log = a.stderr.read()
    assert [word in log for word in ("started", "decided", "finished", "stopped")] == [True] * 4
    assert not any((folder / "status.json").exists() for folder in folders)
    expected = [
        found[0][round_].certificate.record.value(federation.roster.run) for round_ in (1, 2, 3)
    ]
    assert [values(folder) for folder in folders] == [expected] * 4


def test_nobody_waits_a_view_out_for_a_leader_that_is_not_there(tmp_path: Path) -> None:
    """Each server leads one of the four rounds, and a view would last ten minutes."""
    federation = founded(tmp_path, rounds=4, view_ms=600_000)
    with (
        process(tmp_path / "server-0"),
        process(tmp_path / "server-1"),
        process(tmp_path / "server-2"),
    ):
        asyncio.run(uploaded(tmp_path, federation, 4))


def test_killed_at_any_time_a_server_goes_on_where_it_was(tmp_path: Path) -> None:
    """Kill a server again and again while clients keep running."""
    founded(tmp_path, rounds=1_000_000, deadline_ms=300)
    folders = [tmp_path / f"server-{k}" for k in range(4)]

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2)
        clients = [Uploader(tmp_path / f"client-{k}", 1_000_000) for k in range(3)]
        for client in clients:
            await client.start()
        for reached in (10, 20, 30):
            with process(folders[3]) as killed:
                await until((folders[3] / "status.json").exists)
                await until(partial(decided, clients[0], reached))
                killed.send_signal(signal.SIGKILL)
                await asyncio.to_thread(killed.wait)
            (folders[3] / "status.json").unlink(missing_ok=True)
        await servers.start(3)
        reached = max(clients[0].decided)
        await until(
            lambda: max(clients[0].decided) > reached + 5 and servers[3]._tracker.decided > reached
        )
        for client in clients:
            await client.stop()
        await servers.stop()

    run(test())
    found = [values(folder) for folder in folders]
    shortest = min(map(len, found))
    assert shortest > 30
    assert len({tuple(one[:shortest]) for one in found}) == 1


def test_whoever_comes_late_gets_the_certificates_of_a_finished_run(tmp_path: Path) -> None:
    founded(tmp_path, rounds=2, clients=2, deadline_ms=200)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        first = Uploader(tmp_path / "client-0", 2)
        second = Uploader(tmp_path / "client-1", 2)
        await first.start()
        await until(
            lambda: len(first.decided) == 2 and all(servers[k]._tracker.finished for k in range(4))
        )
        await servers.stop()
        await servers.start(0, 1, 2, 3)
        await second.start()
        await until(lambda: len(second.decided) == 2)
        await asyncio.sleep(0.3)  # deadlines pass, and nobody is waited for any more
        assert '"waiting": false' in (await fetched(tmp_path / "server-0"))[1]
        assert {servers[k]._tracker.decided for k in range(4)} == {2}
        assert {servers[k]._driver.admission.last_round for k in range(4)} == {2}
        for client in (first, second):
            await client.stop()
        await servers.stop()

    run(test())


def test_a_server_that_is_to_stop_with_the_run_waits_for_those_who_are_here(tmp_path: Path) -> None:
    founded(tmp_path, rounds=1, clients=1)

    async def test() -> None:
        servers = Servers(tmp_path)
        client = Uploader(tmp_path / "client-0", 1)
        await servers.start(0, 1, 2, until_done=True)
        await servers.start(3)
        await client.start()
        await until(lambda: bool(client.decided))
        await asyncio.sleep(0.5)
        assert not any(task.done() for _, task in servers.running.values())
        await client.stop()
        await until(lambda: all(servers.running[k][1].done() for k in range(3)))
        assert not servers.running[3][1].done()
        await servers.stop()

    run(test())


def test_a_damaged_log_is_refused_and_the_server_rejoins(tmp_path: Path) -> None:
    federation = founded(tmp_path, rounds=1_000_000, deadline_ms=300)
    folder = tmp_path / "server-3"

    async def first() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 3)
        await servers.stop()

    run(first())
    (segment,) = (folder / "log").iterdir()
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    error = refused(folder)
    assert str(segment) in error
    assert "--rejoin" in error

    async def second() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2)
        await servers.start(3, rejoin=True)
        assert servers[3]._replica.silent
        assert '"abstaining": true' in (await fetched(folder))[1]
        clients = [Uploader(tmp_path / f"client-{k}", 1_000_000) for k in range(3)]
        for client in clients:
            await client.start()
        await until(
            lambda: not servers[3]._replica.silent and len(servers[3]._replica.state.own) > 0
        )
        for client in clients:
            await client.stop()
        await servers.stop()
        await servers.start(3)  # without the flag: its own new log says how it stands
        await servers.stop()

    run(second())
    assert (folder / "log.damaged-1").is_dir()


def test_a_rejoining_server_that_dies_before_its_first_word_does_not_start_as_a_new_one(
    tmp_path: Path,
) -> None:
    founded(tmp_path)
    folder = tmp_path / "server-0"
    (folder / "log").mkdir()
    (folder / "log").rename(folder / "log.damaged-1")
    assert "--rejoin" in refused(folder)


def test_a_full_disk_stops_votes_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = founded(tmp_path, rounds=1_000_000)
    folder = tmp_path / "server-2"
    write = disk.write
    full = []

    def refusing(handle: int, data: bytes) -> None:
        if handle in full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(handle, data)

    monkeypatch.setattr(disk, "write", refusing)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 2)
        await until(lambda: servers[2]._tracker.decided >= 2)
        assert await fetched(folder, "/healthz") == (200, "ok\n")
        full.append(servers[2]._store._handle)
        clients = [Uploader(tmp_path / f"client-{k}", 1_000_000) for k in range(3)]
        for client in clients:
            await client.start()
        await until(lambda: servers[2]._driver.failed is not None and len(clients[0].decided) > 8)
        code, text = await fetched(folder, "/healthz")
        assert (code, "No space left on device" in text) == (503, True)
        assert 2 in servers[0]._links.connected()
        reached = servers[2]._tracker.decided
        # As if one more round had been decided, but never written.
        chain = servers[2]._replica.chain
        chain.setdefault(reached + 1, chain[1])
        answer = servers[2]._driver.answer
        for round_ in (1, reached):
            message = answer(Fetch(round_, PartKind.CERT))
            assert message is not None
            assert isinstance(message.body, Cert)
        assert answer(Fetch(reached + 1, PartKind.CERT)) is None
        assert answer(Fetch(1, PartKind.SET)) is None
        await servers.stop(2)
        full.clear()
        await servers.start(2)
        await until(lambda: servers[2]._tracker.decided > reached + 3)
        for client in clients:
            await client.stop()
        await servers.stop()

    run(test())
    found = [values(tmp_path / f"server-{k}") for k in range(4)]
    assert len({tuple(one[: min(map(len, found))]) for one in found}) == 1


def test_what_a_crash_kept_from_being_written_down_follows_from_the_log(tmp_path: Path) -> None:
    federation = founded(tmp_path)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 3)
        await until(lambda: servers[0]._tracker.decided == 3)
        await servers.stop()
        before = values(tmp_path / "server-0")
        for name in ("audit.log", "bodies.bin"):
            (tmp_path / "server-0" / name).unlink()
        await servers.start(0)
        assert values(tmp_path / "server-0") == before
        await servers.stop()

    run(test())


def test_the_log_is_compacted_once_the_rounds_are_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = founded(tmp_path, rounds=40)
    monkeypatch.setattr("fedrfq.node.storage.compaction.MIN_BYTES", 8_192)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 20)
        await servers.stop()
        sizes = [
            sum(file.stat().st_size for file in (tmp_path / f"server-{k}" / "log").iterdir())
            for k in range(4)
        ]
        assert max(sizes) < 40_000  # of 20 rounds of some 6,000 bytes each
        await servers.start(0, 1, 2, 3)
        assert servers[0]._tracker.decided >= 20
        clients = [Uploader(tmp_path / f"client-{k}", 40) for k in range(3)]
        for client in clients:
            await client.start()
        await until(lambda: all(max(client.decided, default=0) == 40 for client in clients))
        for client in clients:
            await client.stop()
        await servers.stop()

    run(test())
    assert len(values(tmp_path / "server-0")) == 40


def test_one_folder_one_process(tmp_path: Path) -> None:
    founded(tmp_path, servers=1, clients=1)
    with process(tmp_path / "server-0"):
        status(tmp_path / "server-0")
        assert "another process" in refused(tmp_path / "server-0")


def test_an_address_that_is_taken_is_said(tmp_path: Path) -> None:
    federation: Federation = founded(tmp_path)
    with process(tmp_path / "server-0"):
        status(tmp_path / "server-0")
        taken = federation.members[0].address
        assert taken in refused(tmp_path / "server-1", "--listen", taken)
    assert not (tmp_path / "server-1" / "status.json").exists()


def test_a_clients_folder_is_no_servers(tmp_path: Path) -> None:
    founded(tmp_path)
    assert "fedrfq client" in refused(tmp_path / "client-0")
    with pytest.raises(UserError, match="fedrfq client"):
        asyncio.run(serve(identity.load(tmp_path / "client-0"), ServerOptions()))


def test_what_the_replica_dies_of_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(tmp_path, servers=1, clients=1)

    async def test() -> None:
        own = Server(identity.load(tmp_path / "server-0"), ServerOptions())
        monkeypatch.setattr(Replica, "step", lambda replica, event: 1 // 0)
        await own.run()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(test())
    assert not (tmp_path / "server-0" / "status.json").exists()


def test_the_rounds_are_the_experiments(tmp_path: Path) -> None:
    founded(tmp_path, rounds=7)
    assert epochs.rounds_left(identity.load(tmp_path / "server-0")) == 7
