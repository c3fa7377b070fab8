"""federation.toml: all that an auditor needs to know before the first round. Public keys, timings, what is computed.

The run's id is a hash over the whole file, byte for byte: nothing signed for one federation counts in another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from fedrfq.consensus.roster import Roster
from fedrfq.errors import UserError
from fedrfq.federation.application import Task
from fedrfq.federation.members import ROLES, Member, Members
from fedrfq.federation.signatures import Ed25519
from fedrfq.files import toml
from fedrfq.prototypes.fixed_point import Precision
from fedrfq.robust.centres import RULES
from fedrfq.robust.detectors import DETECTORS, Detector

VERSION = 1
_MOST = 1 << 24  # values of all global prototypes together
SIMULATION = (
    "faulty",
    "behaviour",
    "network",
)  # how servers misbehave is no part of what is agreed, or of the run's id


@dataclass(frozen=True)
class Timings:
    """How long servers wait, in milliseconds, and for how many clients at least."""

    minimum: int = 1
    deadline_ms: int = 60_000
    view_ms: int = 2_000
    resend_ms: int = 1_000


@dataclass(frozen=True)
class Federation:
    """Who agrees on what."""

    experiment: str  # its digest, in hex
    timings: Timings
    task: Task
    servers: tuple[bytes, ...]
    clients: tuple[bytes, ...]
    network: Members | None = None  # none where it is simulated
    couriers: tuple[bytes, ...] = ()  # their keys sign a request to take part, and nothing else

    def __post_init__(self) -> None:
        keys = self.servers + self.clients + self.couriers
        if self.network is not None:
            _check(self.network, self.experiment, len(self.servers), len(keys))
        if self.couriers and (self.network is None or len(set(keys)) < len(keys)):
            raise UserError(
                "couriers are of a federation on a network, and each has a key of its own"
            )

    @cached_property
    def members(self) -> dict[int, Member]:
        """Of servers by their number, of client k by ~k, then of the couriers; none where it is simulated."""
        if self.network:
            return dict(zip(self.keys, self.network.members, strict=True))
        return {}

    @cached_property
    def keys(self) -> dict[int, bytes]:
        """Of all parties, in the order of their seats."""
        parties = [
            *range(len(self.servers)),
            *(~k for k in range(len(self.clients))),
            *self.carriers,
        ]
        return dict(zip(parties, self.servers + self.clients + self.couriers, strict=True))

    @cached_property
    def carriers(self) -> range:
        """Couriers as parties: courier c is ~(K + n + c), after the K clients and the n numbers by which servers move."""
        first = len(self.clients) + len(self.servers)
        return range(~first, ~(first + len(self.couriers)), -1)

    @cached_property
    def holders(self) -> dict[bytes, int]:
        """Whose a certificate is."""
        return {member.certificate: party for party, member in self.members.items()}

    @cached_property
    def text(self) -> str:
        """The file."""
        task = self.task
        table = {
            "version": VERSION,
            "experiment": self.experiment,
            **vars(self.timings),
            "rule": task.rule,
            "bits": task.precision.bits,
            "classes": task.classes,
            "values": task.values,
            "detector": {"name": _name(task.detector), **vars(task.detector)},
        }
        rows = [{"key": key.hex()} for key in self.keys.values()]
        if self.network:
            table["network"] = {
                "follows": self.network.follows,
                "experiment": self.network.experiment,
            }
            rows = [member.row(self.keys[party]) for party, member in self.members.items()]
        clients = len(self.servers)
        couriers = len(self.servers + self.clients)
        parties = {
            "servers": rows[:clients],
            "clients": rows[clients:couriers],
            "couriers": rows[couriers:],
        }
        return toml.dump({**table, **parties})  # of no couriers there is no word in it

    def role(self, party: int) -> str:
        """One of `ROLES`."""
        return ROLES[0 if party >= 0 else 2 if party in self.carriers else 1]

    def about(self) -> str:
        """Who they are, in a line."""
        if self.couriers:
            carrying = f", {len(self.couriers)} couriers"
        else:
            carrying = ""
        return f"{len(self.servers)} servers, {len(self.clients)} clients{carrying}, run {self.roster.run.hex()}"

    @cached_property
    def roster(self) -> Roster:
        purpose = hashlib.sha256(self.text.encode()).digest()
        return Roster(Ed25519(), self.servers, self.clients, purpose, **vars(self.timings))

    @staticmethod
    def read(text: str, where: str) -> Federation:
        """From the file's text, which must be exactly what this program writes."""
        try:
            found = _parsed(toml.strict(text))
            exact = found.text == text and bool(found.roster.run)
        except UserError as error:
            raise UserError(f"{where} names no federation that could be: {error}") from error
        except (
            KeyError,
            TypeError,
            ValueError,
            AttributeError,
            struct.error,
            OverflowError,
        ) as error:
            raise UserError(
                f"{where} is not a federation's file ({error!r}): restore it"
            ) from error
        if not exact:
            raise UserError(
                f"{where} is not as this program writes it, so its hash means nothing: restore it"
            )
        return found


def experiment_digest(table: Mapping[str, Any]) -> str:
    """Of an experiment as a table, less how its simulated servers misbehave."""
    committee = {
        key: value for key, value in table.get("committee", {}).items() if key not in SIMULATION
    }
    return hashlib.sha256(toml.dump({**table, "committee": committee}).encode()).hexdigest()


def _parsed(table: Mapping[str, Any]) -> Federation:
    numbers = {
        key: _whole(table, key)
        for key in (*(f.name for f in fields(Timings)), "version", "bits", "classes", "values")
    }
    if numbers.pop("version") != VERSION:
        raise ValueError(f"version {table['version']} is not {VERSION}")
    if table["rule"] not in RULES:
        raise ValueError(f"there is no rule {table['rule']!r}")
    parties = [table["servers"], table["clients"], table.get("couriers", [])]
    servers, clients, couriers = (
        tuple(bytes.fromhex(row["key"]) for row in rows) for rows in parties
    )
    precision, classes, values = (numbers.pop(key) for key in ("bits", "classes", "values"))
    if not 1 <= classes * values <= _MOST:
        raise ValueError(f"{classes} classes of {values} values")
    task = Task(
        _detector(table["detector"]),
        table["rule"],
        Precision(precision),
        len(clients),
        classes,
        values,
    )
    if "network" in table:
        network = _network(table["network"], [row for rows in parties for row in rows])
    else:
        network = None
    return Federation(
        table["experiment"], Timings(**numbers), task, servers, clients, network, couriers
    )


def _network(section: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Members:
    return Members(section["follows"], section["experiment"], tuple(map(Member.of, rows)))


def _check(network: Members, digest: str, servers: int, parties: int) -> None:
    """That all have a seat, servers and only they an address, and that the experiment is the one agreed on."""
    if len(network.members) != parties:
        raise UserError(f"{parties} parties on {len(network.members)} seats")
    for number, member in enumerate(network.members):
        if bool(member.address) != (number < servers):
            raise UserError(f"servers have an address, and nobody else: {member.name}")
    if experiment_digest(toml.strict(network.experiment)) != digest:
        raise UserError("the experiment is not the one of this digest")


def _whole(table: Mapping[str, Any], key: str) -> int:
    if type(table[key]) is not int or table[key] < 1:
        raise ValueError(f"{key} is a whole number from 1 on, not {table[key]!r}")
    return int(table[key])


def _detector(section: Mapping[str, Any]) -> Detector:
    kind = DETECTORS[section["name"]]
    options = {key: value for key, value in section.items() if key != "name"}
    for f in fields(kind):
        if type(options[f.name]) is not type(f.default):
            raise TypeError(f"detector.{f.name} = {options[f.name]!r}")
    return kind(**options)


def _name(detector: Detector) -> str:
    return next(name for name, kind in DETECTORS.items() if kind is type(detector))
