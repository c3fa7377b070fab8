"""A running federation is changed: one server away, a key rotated, a client expelled, one added."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

from fedrfq.node.membership import epochs, identity
from support.federations import Uploader, founded, process, until, without_torch


def fedrfq(*arguments: object) -> str:
    done = subprocess.run(
        without_torch(*arguments), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_of(folder: Path) -> str:
    return identity.load(folder).federation.roster.run.hex()


async def rounds(folders: list[Path], number: int) -> None:
    """Let clients upload until each knows how round `number` was decided.

    A client that a loaded machine holds up may miss a round before it.
    """
    clients = [Uploader(folder, number) for folder in folders]
    for client in clients:
        await client.start()
    await until(lambda: all(number in client.decided for client in clients))
    for client in clients:
        await client.stop()


async def changed(clients: list[Path], servers: list[Path]) -> None:
    """Let clients upload until these servers have moved the run to past/."""
    sending = [Uploader(folder, 40) for folder in clients]
    for client in sending:
        await client.start()
    await until(
        lambda: all(
            (server / "past/1/last.bin").exists() and not _activating(server) for server in servers
        )
    )
    for client in sending:
        await client.stop()


def _activating(folder: Path) -> bool:
    return (folder / epochs.NEXT).exists()


def test_a_change_is_agreed_on_and_followed(tmp_path: Path) -> None:
    founded(tmp_path, rounds=50)
    servers = [tmp_path / f"server-{k}" for k in range(4)]
    clients = [tmp_path / f"client-{k}" for k in range(3)]
    new = tmp_path / "hospital"
    file = tmp_path / "new.toml"
    with ExitStack() as running:
        here = [running.enter_context(process(folder)) for folder in servers]
        asyncio.run(rounds(clients, 2))
        first = run_of(servers[0])
        here[3].kill()  # away while it is decided
        fedrfq("keys", "new", new, "--name", "hospital")
        fedrfq("keys", "rotate", servers[1])
        rotated = servers[1] / "rotation/request.toml"
        fedrfq(
            "committee",
            "change",
            servers[0],
            new / "request.toml",
            rotated,
            "--expel",
            "client-0",
            "--out",
            file,
        )
        for folder in servers[:3]:
            fedrfq("committee", "approve", folder, file)
        asyncio.run(changed(clients, servers[:3]))
        running.enter_context(process(servers[3]))
        # The others lead it through the end of a run that they have left already.
        asyncio.run(changed([], servers[3:]))
        successor = identity.read_federation(file).roster.run.hex()
        assert successor != first
        assert {run_of(folder) for folder in servers} == {successor}
        for folder in (clients[1], clients[2], new):
            shutil.copytree(servers[0] / "past", folder / "past")
            shutil.copy(file, folder / "federation.toml")
        asyncio.run(rounds([clients[1], clients[2], new], 2))
    output = fedrfq("verify", *servers, "--recompute")
    assert output.count("/past/1 is verified") == 4
    assert "4 logs agree" in output
    assert identity.load(servers[1]).signer.public == identity.read_federation(file).servers[1]
