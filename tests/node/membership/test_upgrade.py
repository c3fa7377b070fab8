"""The program is upgraded party by party while rounds go on, and then the protocol."""

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
from support.command import fedrfq
from support.federations import PATIENCE_S, Uploader, founded, status, until

# A release and the one after it, which brings the next version of the protocol.
OLDER = (protocol.LATEST,)
NEWER = (protocol.LATEST, protocol.LATEST + 1)
PROGRAM = """
import sys
sys.modules['torch'] = None
from fedrfq.consensus import protocol
protocol.SUPPORTED = {versions}
protocol.LATEST = max(protocol.SUPPORTED)
from fedrfq.cli.main import main
main()
"""


@contextmanager
def server(folder: Path, versions: tuple[int, ...]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with a program that speaks these versions."""
    command = [sys.executable, "-c", PROGRAM.format(versions=versions), "server", str(folder)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
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
    assert "1 of 100" in fedrfq("verify", *folders[:2]).stdout
