"""Federations of real servers without training.

Uploads are random; servers run in the test's own event loop or as processes.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Decided, Outcome, Submit
from fedrfq.consensus.messages import Commit, Inputs, Message, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.federation.application import PublicTask, Task
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.files import toml
from fedrfq.node.driver.driver import Driver
from fedrfq.node.membership import epochs, founding, identity
from fedrfq.node.ops.local_cluster import free_ports
from fedrfq.node.server import Server, ServerOptions
from fedrfq.node.transport.links import Links
from fedrfq.prototypes.fixed_point import FULL_PRECISION
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from support.committees import CLASSES, VALUES, some_settings, uploads

PATIENCE_S = 120.0


def founded(
    folder: Path,
    servers: int = 4,
    clients: int = 3,
    rounds: int = 3,
    couriers: int = 0,
    public: PublicTask | None = None,
    **timings: int,
) -> Federation:
    """Create the folders of all parties."""
    table = {
        "rounds": rounds,
        "clients": clients,
        "committee": {"name": "simulated", "servers": servers},
    }
    task = Task(AdaptiveDetector(), "weighted", FULL_PRECISION, clients, CLASSES, VALUES, public)
    made = [
        founding.NewKeys.new(f"server-{k}", f"127.0.0.1:{port}")
        for k, port in enumerate(free_ports(servers))
    ]
    made += [founding.NewKeys.new(f"client-{k}") for k in range(clients)]
    made += [founding.NewKeys.new(f"courier-{k}", courier=True) for k in range(couriers)]
    quick = Timings(
        **{"minimum": 1, "deadline_ms": 2_000, "view_ms": 1_000, "resend_ms": 100, **timings}
    )
    purpose = founding.FoundingPurpose(toml.dump(table), task)
    federation = founding.federation(purpose, [keys.request for keys in made], quick)
    founding.found(folder, federation, made)
    return federation


def signed(folder: Path, round_: int, clients: Sequence[int] = range(3)) -> list[Message]:
    """Return what some of three clients send in a round."""
    public = identity.load(folder / "client-0").federation.task.public
    contents = uploads(some_settings(3, public=public), round_).encoded(round_)
    return [upload(folder / f"client-{k}", round_, k, contents[k]) for k in clients]


def upload(folder: Path, round_: int, client: int, content: bytes) -> Message:
    """Return a message signed by the party of this folder."""
    own = identity.load(folder)
    return Rules(own.federation.roster).signed(Upload(round_, client, content), own.signer)


def ended_run(federation: Federation, folder: Path, outcome: Outcome) -> bytes:
    """Return what the last round of a run leaves, signed by a quorum of the servers here."""
    rules = Rules(federation.roster)
    record = rules.record(1, rules.run, Inputs(((0, bytes(32)),)), outcome)
    value = record.value(rules.run)
    votes = [
        rules.signed(Commit(1, 0, value, k), identity.load(folder / f"server-{k}").signer)
        for k in range(rules.roster.quorum)
    ]
    return epochs.encode_last(rules, rules.certificate(votes, record), outcome)


class Nowhere:
    def append(self, message: Message) -> None: ...

    def flush(self) -> None: ...


class Uploader:
    """A client that has an upload for every round, and remembers what was decided."""

    def __init__(self, folder: Path, rounds: int) -> None:
        own = identity.load(folder)
        self.federation = own.federation
        self.client = ~own.party
        self.rounds = rounds
        self.links = Links(own, lambda peer, data: self.driver.hear(peer, data))
        machine = Client(Rules(own.federation.roster), self.client, own.signer)
        self.driver = Driver(machine, own.party, own.federation.roster, Nowhere(), self.links)
        self.driver.on_decided = self._decided
        self.decided: dict[int, Decided] = {}

    async def start(self) -> None:
        await self.links.start()
        self.driver.start()
        self._upload(1)

    async def stop(self) -> None:
        self.driver.stop()
        await self.links.stop()

    def _decided(self, decided: Decided) -> None:
        round_ = decided.certificate.record.round
        self.decided[round_] = decided
        self._upload(round_ + 1)

    def _upload(self, round_: int) -> None:
        if round_ <= self.rounds:
            public = self.federation.task.public
            sent = uploads(some_settings(len(self.federation.clients), public=public), round_)
            self.driver.give(Submit(round_, sent.encoded(round_)[self.client]))


async def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.01)


async def uploaded(folder: Path, federation: Federation, rounds: int) -> list[dict[int, Decided]]:
    """Return what all clients regard as decided, once they have the last round.

    A client that a loaded machine holds up may miss a round before it.
    """
    clients = [Uploader(folder / f"client-{k}", rounds) for k in range(len(federation.clients))]
    for client in clients:
        await client.start()
    await until(lambda: all(rounds in client.decided for client in clients))
    for client in clients:
        await client.stop()
    return [client.decided for client in clients]


def without_torch(*arguments: object) -> list[str]:
    """Return the command in an environment without PyTorch."""
    script = "import sys; sys.modules['torch'] = None; from fedrfq.cli.main import main; main()"
    return [sys.executable, "-c", script, *map(str, arguments)]


@contextmanager
def process(folder: Path, *options: object) -> Iterator[subprocess.Popen[str]]:
    """Start the process of a server."""
    command = without_torch("server", folder, *options)
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def page(folder: Path, path: str = "/status") -> tuple[int, str]:
    """Return the HTTP status and the text of a server's page, once it answers."""
    status = folder / "status.json"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            port = json.loads(status.read_text())["port"]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except (OSError, ValueError):
            assert time.monotonic() < deadline, f"{folder} shows nothing"
            time.sleep(0.02)


def status(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page(folder)[1])
    return found


class Servers:
    """Some of a federation's servers, in the test's event loop."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[int, tuple[Server, asyncio.Task[None]]] = {}

    async def start(self, *numbers: int, **options: Any) -> None:
        for number in numbers:
            server = Server(
                identity.load(self.folder / f"server-{number}"), ServerOptions(**options)
            )
            self.running[number] = server, asyncio.ensure_future(server.run())
        await until(
            lambda: all(
                (self.folder / f"server-{number}" / "status.json").exists() for number in numbers
            )
        )

    async def stop(self, *numbers: int) -> None:
        """Stop a server as SIGTERM does."""
        stopping = [self.running.pop(number) for number in numbers or tuple(self.running)]
        for server, _ in stopping:
            server.stop()
        for _, task in stopping:
            await task

    def __getitem__(self, number: int) -> Server:
        return self.running[number][0]


async def fetched(folder: Path, path: str = "/status") -> tuple[int, str]:
    """Return a page of a server that runs in this loop."""
    return await asyncio.to_thread(page, folder, path)
