"""A whole federation on one machine: every server and client a process of its own, started, watched, killed and restarted."""

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

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.files import toml
from fedrfq.node.membership import founding
from fedrfq.node.membership.identity import read_federation
from fedrfq.node.ops.child_processes import Child, fedrfq_command, stop
from fedrfq.node.storage import client_history
from fedrfq.node.storage.party_folder import FEDERATION

OUTPUT = "output.log"  # of a party, in its folder
_STATUS = "status.json"
_ASKING_S = 2.0
_PORTS = range(20_000, 32_768)  # Linux gives out those from 32,768 on, others from 49,152


class Size(NamedTuple):
    servers: int
    clients: int
    rounds: int


def founded(
    folder: Path, size: Size, experiment: Path | None = None, sets: Sequence[str] = ()
) -> Federation:
    """A new federation in this folder, with addresses on this machine."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size.servers)]
    return founding.init(
        folder, addresses, size.clients, {}, experiment, [*sets, f"rounds={size.rounds}"]
    )


def size(federation: Federation) -> Size:
    return Size(
        len(federation.servers), len(federation.clients), int(_experiment(federation)["rounds"])
    )


def _experiment(federation: Federation) -> toml.Table:
    assert federation.network is not None
    return toml.strict(federation.network.experiment)


def free_ports(number: int) -> list[int]:
    """Ports nobody listens on, all different. They are none of those that systems give to whoever dials: such a one might be
    taken again before the server has it."""
    found: list[int] = []
    with ExitStack() as taken:
        for port in SystemRandom().sample(_PORTS, len(_PORTS)):
            if len(found) == number:
                break
            with suppress(OSError):
                taken.enter_context(socket.create_server(("127.0.0.1", port)))
                found.append(port)
    return found


class Cluster:
    """The processes of a federation's folder: servers by their number, client k by ~k; of all of them unless some are named.

    `more` are further arguments of a party's command.
    """

    def __init__(
        self,
        folder: Path,
        parties: Iterable[int] | None = None,
        more: Mapping[int, Sequence[object]] | None = None,
    ) -> None:
        self.folder = folder
        self.federation = read_federation(folder / FEDERATION)
        parties = parties or [
            party for party in self.federation.members if party not in self.federation.carriers
        ]
        self.children = {
            party: self._child(party, (more or {}).get(party, ())) for party in parties
        }

    def _child(self, party: int, more: Sequence[object]) -> Child:
        own = self.own(party)
        if party >= 0:
            command = fedrfq_command("server", own)
        else:
            command = fedrfq_command(
                "client", own, "--data", _experiment(self.federation)["data"]["name"]
            )
        return Child(own.name, [*command, *map(str, more)], own / OUTPUT)

    def own(self, party: int) -> Path:
        """A party's folder."""
        return self.folder / self.federation.members[party].name

    def start(self) -> None:
        for child in self.children.values():
            child.start()

    def stop(self) -> list[str]:
        """Everybody, clients first; the names of those that had to be killed."""
        clients, servers = (
            [c for p, c in self.children.items() if (p >= 0) == kind] for kind in (False, True)
        )
        return stop(clients) + stop(servers)

    def fallen(self, expected: Collection[int] = ()) -> list[Child]:
        """Those that have ended in any way but a clean one, and were not expected to."""
        return [
            child
            for party, child in self.children.items()
            if party not in expected and child.code not in (None, 0)
        ]

    def finished(self) -> bool:
        """Whether every client has done its rounds: it then ends by itself."""
        return all(child.code == 0 for party, child in self.children.items() if party < 0)

    def settled(self) -> bool:
        """Whether every server knows how the last round ended."""
        return all(
            (self.status(party) or {"finished": False})["finished"]
            for party in self.children
            if party >= 0
        )

    def answers(self, party: int) -> bool:
        """Whether a party is at work: a server can be asked, a client has said that it started."""
        if party < 0:
            return self.children[party].spoke
        return self.status(party) is not None

    def diary(self, party: int) -> dict[str, Any] | None:
        """What a client wrote down of its last round; none before the first."""
        path = self.own(party) / client_history.NAME
        if path.exists():
            lines = path.read_bytes().splitlines(keepends=True)
        else:
            lines = []
        whole = [line for line in lines[-2:] if line.endswith(b"\n")]
        found: dict[str, Any] | None
        if whole:
            found = json.loads(whole[-1])
        else:
            found = None
        return found

    def status(self, party: int) -> dict[str, Any] | None:
        """What a party says of itself; none if it does not answer."""
        child = self.children[party]
        try:
            told = json.loads((self.own(party) / _STATUS).read_bytes())
            if not child.running or told["pid"] != child.pid:
                return None
            with urllib.request.urlopen(
                f"http://127.0.0.1:{told['port']}/status", timeout=_ASKING_S
            ) as answer:
                found: dict[str, Any] = json.load(answer)
        except (OSError, ValueError, KeyError):
            return None
        return found


def opened(
    folder: Path, wanted: Mapping[str, int | None], experiment: Path | None, seed: int
) -> Federation:
    """The federation of this folder: the one that is there, if it is as wanted, else a new one."""
    usual = {"servers": 4, "clients": 6, "rounds": 3}
    if not (folder / FEDERATION).exists():
        given = {key: value for key, value in wanted.items() if value is not None}
        return founded(folder, Size(**{**usual, **given}), experiment, [f"seed={seed}"])
    if experiment is not None:
        raise UserError(
            f"{folder} has a federation, and that an experiment: leave --experiment out, or name another DIR"
        )
    federation = read_federation(folder / FEDERATION)
    for key, value in size(federation)._asdict().items():
        if wanted[key] not in (None, value):
            asked = f"--{key} {wanted[key]}"
            raise UserError(
                f"{folder} has a federation of {value} {key}: leave {asked} out, or name another DIR"
            )
    return federation
