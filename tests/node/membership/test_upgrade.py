"""Parties are upgraded one by one while rounds go on; then the protocol, or the decisions."""

from __future__ import annotations

import asyncio
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
from fedrfq.node.membership import epochs
from support.command import fedrfq
from support.federations import PATIENCE_S, Uploader, founded, status, until

# A release and the one after it, which brings the next version of the protocol.
OLDER = (protocol.LATEST,)
NEWER = (protocol.LATEST, protocol.LATEST + 1)
PROGRAM = """
import sys
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
    program = PROGRAM.format(versions=versions, decided=decided)
    command = [sys.executable, "-c", program, "server", str(folder)]
    log = folder.with_suffix(".log").open("ab")
    with log, subprocess.Popen(command, stderr=log) as running:
        try:
            yield running
        finally:
            running.kill()


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
