"""Parties are upgraded one by one while rounds go on; then the protocol, or the decisions."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fedrfq.consensus import protocol
from fedrfq.federation import decisions
from fedrfq.node.membership import epochs, founding
from fedrfq.node.ops.local_cluster import free_ports
from support.command import fedrfq
from support.federations import PATIENCE_S, Uploader, founded, status, until

# A release and the one after it, which brings the next version of the protocol.
OLDER = (protocol.LATEST,)
NEWER = (protocol.LATEST, protocol.LATEST + 1)
PROGRAM = """
import sys
if {without_torch}:
    sys.modules['torch'] = None
from fedrfq.consensus import protocol
from fedrfq.federation import decisions
protocol.SUPPORTED = {versions}
protocol.LATEST = max(protocol.SUPPORTED)
decisions.VERSION = {decided}
from fedrfq.cli.main import main
main()
"""


@contextmanager
def server(
    folder: Path, versions: tuple[int, ...] = OLDER, decided: int = decisions.VERSION
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with a program that speaks these versions, and decides by this one."""
    with _party(folder, versions, decided, ("server", str(folder))) as running:
        yield running


@contextmanager
def trainer(folder: Path, versions: tuple[int, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a client that trains, with a program that speaks these versions."""
    words = ("client", str(folder), "--data", "mnist5k", "--device", "cpu")
    with _party(folder, versions, decisions.VERSION, words) as running:
        yield running


@contextmanager
def _party(
    folder: Path, versions: tuple[int, ...], decided: int, words: tuple[str, ...]
) -> Iterator[subprocess.Popen[bytes]]:
    trains = words[0] == "client"
    program = PROGRAM.format(versions=versions, decided=decided, without_torch=not trains)
    command = [sys.executable, "-c", program, *words]
    log = folder.with_suffix(".log").open("ab")
    with log, subprocess.Popen(command, stderr=log) as running:
        try:
            yield running
        finally:
            running.kill()


def certified(folder: Path) -> int:
    """Return how many rounds a client that trains knows to be certified, over all runs."""
    path = folder / "rounds.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


async def goes_on(folder: Path) -> None:
    """Wait until a client that trains knows of two rounds more."""
    before = certified(folder)
    await until(lambda: certified(folder) > before + 1)


async def decided_again(folder: Path) -> None:
    """Wait until a server that was started again has decided a round."""
    while (await asyncio.to_thread(status, folder))["last"] is None:
        await asyncio.sleep(0.05)


async def stopped(running: subprocess.Popen[bytes]) -> None:
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, PATIENCE_S) == 0


async def more(client: Uploader, rounds: int) -> None:
    """Let a client upload for so many rounds more, until they are decided."""
    last = max(client.decided, default=0)
    client.rounds = last + rounds
    client._upload(last + 1)
    await until(lambda: client.rounds in client.decided)


async def decides(folder: Path, client: Uploader) -> None:
    """Wait until a server that was away has decided what the client knows to be decided."""
    while True:
        found = await asyncio.to_thread(status, folder)
        if found["last"] is not None and found["last"]["round"] >= max(client.decided):
            assert (found["behind"], found["failed"]) == ([], None)
            return
        await asyncio.sleep(0.05)


def test_servers_are_upgraded_one_at_a_time_and_then_the_protocol(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(tmp_path, clients=1, rounds=100)
    folders = [tmp_path / f"server-{k}" for k in range(4)]
    new = tmp_path / "new.toml"
    moving = ["committee", "change", folders[0], "--protocol", NEWER[1], "--out", new]

    async def test(running: ExitStack) -> None:
        here = [running.enter_context(server(folder, OLDER)) for folder in folders]
        client = Uploader(tmp_path / "client-0", 0)
        await client.start()
        await more(client, 2)
        for number, folder in enumerate(folders):
            here[number].send_signal(signal.SIGTERM)
            await asyncio.to_thread(here[number].wait, PATIENCE_S)
            # Three go on, of both releases.
            await more(client, 1)
            here[number] = running.enter_context(server(folder, NEWER))
            await decides(folder, client)
            await more(client, 1)
            await decides(folder, client)
        assert f"speaks {OLDER[0]}" in fedrfq(*moving, expect=2).stderr
        monkeypatch.setattr(protocol, "SUPPORTED", NEWER)
        fedrfq(*moving)
        for folder in folders[:3]:
            fedrfq("committee", "approve", folder, new)
        client.rounds = 90
        client._upload(max(client.decided) + 1)
        await until(lambda: all((folder / "past/1/last.bin").exists() for folder in folders))
        await client.stop()
        upgraded = tmp_path / "client-0" / "federation.toml"
        await until(lambda: (folders[0] / "federation.toml").exists())
        upgraded.write_bytes((folders[0] / "federation.toml").read_bytes())
        assert tomllib.loads(upgraded.read_text())["protocol"] == NEWER[1]
        after = Uploader(tmp_path / "client-0", 0)
        await after.start()
        await more(after, 1)
        await after.stop()

    async def bounded() -> None:
        with ExitStack() as running:
            await asyncio.wait_for(test(running), 4 * PATIENCE_S)

    asyncio.run(bounded())
    left = 100 - epochs.rounds_before(folders[0])
    assert f"1 of {left} " in fedrfq("verify", *folders[:2]).stdout


def test_clients_that_train_are_upgraded_one_at_a_time_with_their_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both releases train and certify in the same rounds; then all speak the next version."""
    folder = tmp_path / "f"
    small = ["partition.ways=3", "partition.shots=7", "partition.test_shots=5", "model.name=mlp"]
    addresses = [f"127.0.0.1:{port}" for port in free_ports(4)]
    waits = {"minimum": 1, "deadline_ms": 2_000, "view_ms": 1_000, "resend_ms": 100}
    founding.init(folder, addresses, 2, waits, sets=[*small, "rounds=100000"])
    servers = [folder / f"server-{k}" for k in range(4)]
    clients = [folder / f"client-{k}" for k in range(2)]
    new = tmp_path / "new.toml"

    async def test(running: ExitStack) -> None:
        parties = {each: running.enter_context(server(each, OLDER)) for each in servers}
        parties |= {each: running.enter_context(trainer(each, OLDER)) for each in clients}
        for upgraded in (servers[0], clients[0], *servers[1:], clients[1]):
            other = clients[upgraded == clients[0]]
            await goes_on(other)
            await stopped(parties[upgraded])
            start = trainer if upgraded in clients else server
            parties[upgraded] = running.enter_context(start(upgraded, NEWER))
            await goes_on(other)
            if upgraded in clients:
                await goes_on(upgraded)
            else:
                await decided_again(upgraded)
        monkeypatch.setattr(protocol, "SUPPORTED", NEWER)
        fedrfq("committee", "change", servers[0], "--protocol", NEWER[1], "--out", new)
        for each in servers[:3]:
            fedrfq("committee", "approve", each, new)
        await until(lambda: all((each / "past/1/last.bin").exists() for each in parties))
        for each in clients:
            await goes_on(each)
        for each in (*clients, *servers):
            await stopped(parties[each])

    async def bounded() -> None:
        with ExitStack() as running:
            await asyncio.wait_for(test(running), 4 * PATIENCE_S)

    asyncio.run(bounded())
    done = fedrfq("verify", *servers, *clients)
    assert "6 logs agree" in done.stdout
    for each in clients:
        runs = [json.loads(line)["run"] for line in (each / "rounds.jsonl").open()]
        assert len(set(runs)) == 2
        assert tomllib.loads((each / "federation.toml").read_text())["protocol"] == NEWER[1]


async def refused(folder: Path, running: subprocess.Popen[bytes], line: str) -> None:
    """Wait until a server has ended with a line that says why."""
    assert await asyncio.to_thread(running.wait, PATIENCE_S) == 2
    last = folder.with_suffix(".log").read_text().splitlines()[-1]
    assert line in last


def test_a_server_that_decides_otherwise_is_refused_until_all_go_on_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One operator is ahead of the others; they go on, and later all change to the new release."""
    founded(tmp_path, clients=1, rounds=100)
    folders = [tmp_path / f"server-{k}" for k in range(4)]
    ours = decisions.VERSION
    new = tmp_path / "new.toml"

    async def test(running: ExitStack) -> None:
        def start(folder: Path, decided: int) -> subprocess.Popen[bytes]:
            return running.enter_context(server(folder, decided=decided))

        ahead = start(folders[3], ours + 1)
        here = [start(folder, ours) for folder in folders[:3]]
        await refused(folders[3], ahead, f"decides by version {ours + 1}: use the release")
        client = Uploader(tmp_path / "client-0", 0)
        await client.start()
        await more(client, 2)
        here.append(start(folders[3], ours))
        monkeypatch.setattr(decisions, "VERSION", ours + 1)
        fedrfq("committee", "change", folders[0], "--decisions", ours + 1, "--out", new)
        monkeypatch.undo()
        for folder in folders[:3]:
            fedrfq("committee", "approve", folder, new)
        client.rounds = 90
        client._upload(max(client.decided) + 1)
        line = f"use the release of fedrfq that decides by version {ours + 1}"
        for folder, process in zip(folders[:3], here, strict=False):
            await refused(folder, process, line)
            start(folder, ours + 1)
        # Whoever has missed it hears of it from those that have the new release already.
        await refused(folders[3], here[3], line)
        start(folders[3], ours + 1)
        await client.stop()
        # A client's program need not decide.
        (tmp_path / "client-0" / "federation.toml").write_bytes(new.read_bytes())
        after = Uploader(tmp_path / "client-0", 0)
        await after.start()
        await more(after, 2)
        await after.stop()

    async def bounded() -> None:
        with ExitStack() as running:
            await asyncio.wait_for(test(running), 4 * PATIENCE_S)

    asyncio.run(bounded())
    # What was decided before is verified by its signatures alone.
    monkeypatch.setattr(decisions, "VERSION", ours + 1)
    done = fedrfq("verify", folders[0], "--recompute", expect=3)
    assert "(1–2)" in done.stdout
    assert f"is of version {ours} of the decisions" in done.stderr
