"""A running federation is changed: one server away, a key rotated, a client expelled, one added."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedrfq.federation.federation_file import experiment_digest
from fedrfq.files import toml
from fedrfq.node.membership import epochs, identity
from fedrfq.node.membership.change import changed as change
from fedrfq.node.membership.change import differences
from fedrfq.node.membership.identity import load
from fedrfq.node.server import ServerOptions, serve
from support.command import fedrfq as in_process
from support.federations import PATIENCE_S, Uploader, founded, process, until, without_torch
from support.parties import agreed, keys


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


def test_rounds_are_added_and_a_pause_agreed_on_while_it_runs(tmp_path: Path) -> None:
    federation = founded(tmp_path, clients=1, rounds=8)
    servers = [tmp_path / f"server-{k}" for k in range(4)]
    client = tmp_path / "client-0"
    file = tmp_path / "new.toml"

    async def test() -> None:
        running = [asyncio.create_task(serve(load(folder), ServerOptions())) for folder in servers]
        await rounds([client], 2)
        options = ("--rounds", 20, "--pause", 3600, "--out", file)
        said = in_process("committee", "change", servers[0], *options).stdout
        assert "rounds in all: 8 -> 20\n" in said
        assert "pause between rounds: 0 s -> 3600 s\n" in said
        assert "experiment" not in said
        for folder in servers[:3]:
            in_process("committee", "approve", folder, file)
        await changed([client], servers)
        (client / "past/1").mkdir(parents=True)
        shutil.copy(file, client / "federation.toml")
        for name in ("federation.toml", "last.bin"):
            shutil.copy(servers[0] / "past/1" / name, client / "past/1")
        left = epochs.rounds_left(load(client))
        # More than there were; this client, which does not train, does not pause either.
        assert 8 < left == 20 - epochs.rounds_before(servers[0])
        await rounds([client], left)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), 3 * PATIENCE_S))
    after = load(servers[0]).federation
    # Who is missing is waited for as long as before, once the pause is over.
    assert after.timings.deadline_ms - federation.timings.deadline_ms == 3_600_000
    left = epochs.rounds_left(load(servers[0]))
    assert f"{left} of {left} " in in_process("verify", *servers).stdout


@pytest.mark.parametrize("noise", [{"privacy": {"noise": 1.5}}, {"train": {"dp_noise": 2.0}}, {}])
def test_more_rounds_are_said_to_cost_where_there_is_noise(noise: dict[str, Any]) -> None:
    federation = agreed(keys())
    assert federation.network is not None
    text = toml.dump({"rounds": 8, **noise})
    with_noise = replace(
        federation,
        experiment=experiment_digest(toml.strict(text)),
        network=replace(federation.network, experiment=text),
    )
    (said,) = differences(with_noise, change(with_noise, rounds=20))
    assert said.partition(", ")[0] == "rounds in all: 8 -> 20"
    assert ("may cost clients ε" in said) == bool(noise)


def test_a_server_that_lost_its_machine_comes_back_with_new_keys(tmp_path: Path) -> None:
    """The steps of the operating manual. Its vote counts at once: another server is away then."""
    founded(tmp_path, clients=1, rounds=50)
    servers = [tmp_path / f"server-{k}" for k in range(4)]
    client = tmp_path / "client-0"
    file = tmp_path / "new.toml"
    address = identity.load(servers[3]).member.address

    async def test() -> None:
        running = [asyncio.create_task(serve(load(folder), ServerOptions())) for folder in servers]
        await rounds([client], 2)
        running[3].cancel()
        await asyncio.gather(running[3], return_exceptions=True)
        shutil.rmtree(servers[3])
        in_process("keys", "new", servers[3], "--name", "server-3", "--address", address)
        request = servers[3] / "request.toml"
        in_process("committee", "change", servers[0], request, "--out", file)
        for folder in servers[:3]:
            in_process("committee", "approve", folder, file)
        await changed([client], servers[:3])
        for folder in (servers[3], client):
            (folder / "past/1").mkdir(parents=True)
            shutil.copy(file, folder / "federation.toml")
            for name in ("federation.toml", "last.bin"):
                shutil.copy(servers[0] / "past/1" / name, folder / "past/1")
        running[3] = asyncio.create_task(serve(load(servers[3]), ServerOptions()))
        running[0].cancel()
        await rounds([client], 2)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    asyncio.run(asyncio.wait_for(test(), 3 * PATIENCE_S))
    assert "no evidence" in in_process("evidence", *servers).stdout
    before = epochs.rounds_before(servers[1])
    # Of the rounds that were left to the second run.
    assert f"2 of {50 - before} " in in_process("verify", servers[3], servers[1]).stdout
