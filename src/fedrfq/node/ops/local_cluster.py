"""The processes of a whole federation on one machine: start, watch, kill and restart them.

Nothing is printed here. The command `fedrfq local-cluster`, with its options and tables, is
`fedrfq.cli.local_cluster`; benchmarks and tests use the classes here directly.
"""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from random import SystemRandom
from typing import Any, NamedTuple

from fedrfq import plugins
from fedrfq.data import DATASETS
from fedrfq.errors import UserError
from fedrfq.experiment import load
from fedrfq.federation.federation_file import Federation
from fedrfq.files import toml
from fedrfq.node.membership import founding
from fedrfq.node.membership.identity import read_federation
from fedrfq.node.ops.child_processes import Child, fedrfq_command, stop
from fedrfq.node.storage import client_history
from fedrfq.node.storage.party_folder import FEDERATION, STATUS

_HOST = "127.0.0.1"
# The file in a party's folder that its output goes to.
OUTPUT = "output.log"
# How long a server has to answer when it is asked for its status.
_STATUS_TIMEOUT_S = 2.0
# Systems give out ports to whoever dials from 32,768 (Linux) or 49,152 (others) on.
_PORTS = range(20_000, 32_768)


class Size(NamedTuple):
    """How large a federation is, and how many rounds its experiment has."""

    servers: int
    clients: int
    rounds: int


_DEFAULT_SIZE = Size(servers=4, clients=6, rounds=3)


def found_local(
    folder: Path, size: Size, experiment: Path | None = None, sets: Sequence[str] = ()
) -> Federation:
    """Found a federation in this folder, with addresses on this machine."""
    data = load(experiment, sets).data.name
    if data not in DATASETS:
        raise UserError(
            f"local-cluster deals one of {', '.join(DATASETS)} to its clients, and data.name is"
            f" {data!r:.200}: found a federation with `fedrfq committee init {folder} --like PATH`,"
            " and start each client with --data and a folder of its own"
        )
    addresses = [f"{_HOST}:{port}" for port in free_ports(size.servers)]
    return founding.init(
        folder,
        addresses,
        clients=size.clients,
        file=experiment,
        sets=[
            *sets,
            *founding.detector_settings(experiment, sets, None),
            f"rounds={size.rounds}",
        ],
    )


def open_or_found(
    folder: Path, wanted: Mapping[str, int | None], experiment: Path | None, seed: int
) -> Federation:
    """Return the federation of this folder if it is as wanted, or found one if there is none.

    `wanted` has the fields of `Size`; None stands for any size, or for the default of a new one.
    """
    if not (folder / FEDERATION).exists():
        given = {key: value for key, value in wanted.items() if value is not None}
        return found_local(folder, _DEFAULT_SIZE._replace(**given), experiment, [f"seed={seed}"])
    if experiment is not None:
        raise UserError(
            f"{folder} has a federation, which has its own experiment: "
            "leave --experiment out, or name another DIR"
        )
    federation = read_federation(folder / FEDERATION)
    for key, value in size(federation)._asdict().items():
        if wanted[key] not in (None, value):
            raise UserError(
                f"{folder} has a federation of {value} {key}: "
                f"leave --{key} {wanted[key]} out, or name another DIR"
            )
    return federation


def size(federation: Federation) -> Size:
    """Return the size of a federation."""
    rounds = int(_experiment(federation)["rounds"])
    return Size(len(federation.servers), len(federation.clients), rounds)


def _experiment(federation: Federation) -> toml.Table:
    assert federation.network is not None
    return toml.strict(federation.network.experiment)


def free_ports(number: int) -> list[int]:
    """Return so many different ports that nobody listens on.

    None of them is one that the system gives to whoever dials: such a port might be taken again
    before the server has it.
    """
    ports: list[int] = []
    # All stay open until the last is found, so that none is found twice.
    with ExitStack() as listeners:
        for port in SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(ports) == number:
                break
            with suppress(OSError):
                listeners.enter_context(socket.create_server((_HOST, port)))
                ports.append(port)
    return ports


class Cluster:
    """The processes of a federation's folder, by party: servers from 0, and client k as ~k.

    `parties` are all servers and clients unless some are named. `more` has further arguments for
    the commands of parties.
    """

    def __init__(
        self,
        folder: Path,
        parties: Iterable[int] | None = None,
        more: Mapping[int, Sequence[object]] | None = None,
    ) -> None:
        self.folder = folder
        self.federation = read_federation(folder / FEDERATION)
        if not parties:
            couriers = self.federation.courier_numbers
            parties = [party for party in self.federation.members if party not in couriers]
        arguments = more or {}
        self.children = {party: self._child(party, arguments.get(party, ())) for party in parties}

    def _child(self, party: int, arguments: Sequence[object]) -> Child:
        folder = self.own(party)
        if party >= 0:
            command = fedrfq_command("server", folder, *plugins.options(), *arguments)
        else:
            data = _experiment(self.federation)["data"]["name"]
            words = ("client", folder, "--data", data, *plugins.options(), *arguments)
            command = fedrfq_command(*words)
        return Child(folder.name, command, folder / OUTPUT)

    def own(self, party: int) -> Path:
        """Return the folder of a party."""
        return self.folder / self.federation.members[party].name

    def start(self) -> None:
        """Start all parties."""
        for child in self.children.values():
            child.start()

    def stop(self) -> list[str]:
        """Stop all parties, clients first; return the names of those that had to be killed."""
        clients = [child for party, child in self.children.items() if party < 0]
        servers = [child for party, child in self.children.items() if party >= 0]
        return stop(clients) + stop(servers)

    def failed(self, expected: Collection[int] = ()) -> list[Child]:
        """Return the parties that have ended with an error, except those that were expected to."""
        return [
            child
            for party, child in self.children.items()
            if party not in expected and child.code not in (None, 0)
        ]

    def finished(self) -> bool:
        """Return whether every client has done its rounds, after which it ends by itself."""
        return all(child.code == 0 for party, child in self.children.items() if party < 0)

    def settled(self) -> bool:
        """Return whether every server knows how the last round ended."""
        for party in self.children:
            if party < 0:
                continue
            status = self.status(party)
            if status is None or not status["finished"]:
                return False
        return True

    def answers(self, party: int) -> bool:
        """Return whether a party is at work: a server answers, a client has logged its start."""
        if party < 0:
            return self.children[party].spoke
        return self.status(party) is not None

    def last_round(self, party: int) -> dict[str, Any] | None:
        """Return what a client has recorded about its last round, or None before the first."""
        path = self.own(party) / client_history.NAME
        if not path.exists():
            return None
        lines = path.read_bytes().splitlines(keepends=True)
        # The client may be in the middle of writing the last line.
        complete = [line for line in lines[-2:] if line.endswith(b"\n")]
        if not complete:
            return None
        last: dict[str, Any] = json.loads(complete[-1])
        return last

    def status(self, party: int) -> dict[str, Any] | None:
        """Return the status that a server reports, or None if it does not answer."""
        child = self.children[party]
        try:
            place = json.loads((self.own(party) / STATUS).read_bytes())
            # An earlier process may have left the file, and its port may be another program's now.
            if not child.running or place["pid"] != child.pid:
                return None
            url = f"http://{_HOST}:{place['port']}/status"
            with urllib.request.urlopen(url, timeout=_STATUS_TIMEOUT_S) as answer:
                status: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, KeyError):
            return None
        return status
