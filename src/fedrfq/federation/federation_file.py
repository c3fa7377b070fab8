"""federation.toml: everything that an auditor needs to know before the first round.

It holds the public keys, the timings and what is computed. The run's id is a hash of the whole
file, byte for byte, so nothing that is signed for one federation counts in another.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from fedrfq import plugins
from fedrfq.consensus import protocol
from fedrfq.consensus.roster import Roster
from fedrfq.data.contract import Contract
from fedrfq.errors import UserError
from fedrfq.federation import decisions
from fedrfq.federation.application import PublicTask, Task
from fedrfq.federation.members import ROLES, Member, Members
from fedrfq.federation.signatures import Ed25519
from fedrfq.files import toml
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Precision
from fedrfq.robust.aggregation import check_exact
from fedrfq.robust.detectors import DETECTORS, Detector
from fedrfq.robust.rules import RULES

VERSION = 1
# Bytes of the file: room for tens of thousands of members with their certificates.
MAX_BYTES = 1 << 27
_MS_PER_S = 1000
_MAX_VALUES = 1 << 24  # in all global prototypes together
# How simulated servers misbehave is not agreed on, and is no part of the run's id.
SIMULATION = ("faulty", "behaviour", "network")
# What reading a file that this program did not write may raise.
_MALFORMED = (KeyError, TypeError, ValueError, AttributeError, struct.error, OverflowError)


class UnknownProtocol(UserError):
    """A file is of a version of the protocol that this program does not speak."""


class NewerProtocol(UnknownProtocol):
    """A file names a version of the protocol that only newer programs speak."""


@dataclass(frozen=True)
class Timings:
    """How long servers wait, in milliseconds, and for how many clients at least.

    The deadline counts from the result before, so a pause between rounds is a part of it.
    """

    minimum: int = 1
    deadline_ms: int = 60_000
    view_ms: int = 2_000
    resend_ms: int = 1_000


@dataclass(frozen=True)
class Federation:
    """The parties that agree, and what they agree on."""

    experiment: str  # its digest, in hex
    timings: Timings
    task: Task
    servers: tuple[bytes, ...]
    clients: tuple[bytes, ...]
    network: Members | None = None  # None where the federation is simulated
    couriers: tuple[bytes, ...] = ()  # their keys sign a request to take part, and nothing else
    protocol: int = protocol.LATEST  # the version that all parties speak
    contract: Contract | None = None  # None where clients deal a known dataset among themselves
    decisions: int = decisions.VERSION  # the version by which all servers decide
    pause_s: int = 0  # how long clients wait after a result before they train for the next

    def __post_init__(self) -> None:
        check_exact(self.task.detector, self.task.rule, len(self.servers))
        if self.contract is not None and len(self.contract.classes) != self.task.classes:
            raise UserError(
                f"the data contract names {len(self.contract.classes)} classes, and the task has"
                f" {self.task.classes}"
            )
        if not 0 <= self.pause_s * _MS_PER_S < self.timings.deadline_ms:
            raise UserError(
                f"the pause is {self.pause_s} s, and the deadline"
                f" {self.timings.deadline_ms} ms after the result before: give a round a deadline"
                " after the pause"
            )
        keys = self.servers + self.clients + self.couriers
        if self.network is not None:
            _check_network(self.network, self.experiment, len(self.servers), len(keys))
        if self.couriers and self.network is None:
            raise UserError("only a federation on a network has couriers: remove them")
        # The roster checks the keys of servers and clients; couriers are not in it.
        if self.couriers and len(set(keys)) < len(keys):
            raise UserError("two parties have the same key: give each courier a key of its own")

    @cached_property
    def members(self) -> dict[int, Member]:
        """The members by party, in the order of `keys`; empty where the federation is simulated."""
        if self.network:
            return dict(zip(self.keys, self.network.members, strict=True))
        return {}

    @cached_property
    def keys(self) -> dict[int, bytes]:
        """The keys by party: server s is s, client k is ~k, and the couriers come last."""
        parties = [
            *range(len(self.servers)),
            *(~k for k in range(len(self.clients))),
            *self.courier_numbers,
        ]
        return dict(zip(parties, self.servers + self.clients + self.couriers, strict=True))

    @cached_property
    def courier_numbers(self) -> range:
        """The couriers as parties: after K clients, courier c is ~(K + c)."""
        first = len(self.clients)
        return range(~first, ~(first + len(self.couriers)), -1)

    @cached_property
    def party_by_certificate(self) -> dict[bytes, int]:
        """The party that holds each TLS certificate."""
        return {member.certificate: party for party, member in self.members.items()}

    @cached_property
    def party_by_name(self) -> dict[str, int]:
        """The party of each name."""
        return {member.name: party for party, member in self.members.items()}

    @cached_property
    def text(self) -> str:
        """The text of federation.toml."""
        task = self.task
        table = {
            "version": VERSION,
            "protocol": self.protocol,
            "decisions": self.decisions,
            "experiment": self.experiment,
            **vars(self.timings),
            # Files from before there was the key keep their hashes.
            **({"pause_s": self.pause_s} if self.pause_s else {}),
            "rule": task.rule,
            "bits": task.precision.bits,
            "classes": task.classes,
            "values": task.values,
            "detector": {"name": self.detector, **vars(task.detector)},
        }
        if task.public is not None:
            table["public"] = _public_table(task.public)
            if task.public.privacy is not None:
                table["privacy"] = _privacy_table(task.public.privacy)
        if self.contract is not None:
            table["contract"] = self.contract.table()
        rows = [{"key": key.hex()} for key in self.keys.values()]
        if self.network:
            table["network"] = {
                "follows": self.network.follows,
                "experiment": self.network.experiment,
            }
            rows = [member.row(self.keys[party]) for party, member in self.members.items()]
        first_client = len(self.servers)
        first_courier = first_client + len(self.clients)
        table["servers"] = rows[:first_client]
        table["clients"] = rows[first_client:first_courier]
        # Without couriers, `dump` writes nothing for this key.
        table["couriers"] = rows[first_courier:]
        return toml.dump(table)

    def role(self, party: int) -> str:
        """Return a party's role, one of `ROLES`."""
        server, client, courier = ROLES
        if party >= 0:
            return server
        if party in self.courier_numbers:
            return courier
        return client

    @property
    def detector(self) -> str:
        """The name of the detector that judges uploads."""
        return _name(self.task.detector)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes; none where no contract names them."""
        if self.contract is None:
            return ()
        return self.contract.classes

    def about(self) -> str:
        """Describe the federation in one line."""
        counts = [f"{len(self.servers)} servers", f"{len(self.clients)} clients"]
        if self.couriers:
            counts.append(f"{len(self.couriers)} couriers")
        return f"{', '.join(counts)}, run {self.roster.run.hex()}"

    @cached_property
    def roster(self) -> Roster:
        """The roster of the run. It hashes the whole file, so that the run's id stands for it."""
        purpose = hashlib.sha256(self.text.encode()).digest()
        return Roster(
            Ed25519(),
            self.servers,
            self.clients,
            purpose,
            **vars(self.timings),
            protocol=self.protocol,
        )

    @staticmethod
    def read(text: str, where: str) -> Federation:
        """Return the federation of a file's text, which must be exactly what this program writes.

        `where` names the file in errors.
        """
        try:
            table = toml.strict(text)
            _check_protocol(table, where)
            federation = _parse(table)
            # Making the roster checks the keys and timings.
            is_exact = federation.text == text and bool(federation.roster.run)
        except UnknownProtocol:
            raise
        except plugins.PluginMissing as error:
            raise UserError(f"{where}: {error}") from error
        except UserError as error:
            raise UserError(f"{where} describes an impossible federation: {error}") from error
        except _MALFORMED as error:
            raise UserError(
                f"{where} cannot be read as a federation.toml ({error}): copy it again, or use the"
                " version of this program that its founder used"
            ) from error
        if not is_exact:
            raise UserError(
                f"{where} is not as this program writes it, so its hash means nothing: restore it"
            )
        return federation


def experiment_digest(table: Mapping[str, Any]) -> str:
    """Return the digest of an experiment's table, without how its simulated servers misbehave."""
    committee = {
        key: value for key, value in table.get("committee", {}).items() if key not in SIMULATION
    }
    return hashlib.sha256(toml.dump({**table, "committee": committee}).encode()).hexdigest()


def _parse(table: Mapping[str, Any]) -> Federation:
    if _positive(table, "version") != VERSION:
        raise ValueError(f"version {table['version']}: this program reads version {VERSION}")
    parties = [table["servers"], table["clients"], table.get("couriers", [])]
    servers, clients, couriers = (
        tuple(bytes.fromhex(row["key"]) for row in rows) for rows in parties
    )
    timings = Timings(**{field.name: _positive(table, field.name) for field in fields(Timings)})
    network = None
    if "network" in table:
        network = _parse_network(table["network"], [row for rows in parties for row in rows])
        agreed = toml.strict(network.experiment).get("plugins", [])
        plugins.recall(agreed)
    contract = None
    if "contract" in table:
        contract = Contract.read(table["contract"])
    task = _parse_task(table, len(clients))
    if network is not None:
        check_agreed(task, agreed)
    return Federation(
        table["experiment"],
        timings,
        task,
        servers,
        clients,
        network,
        couriers,
        table["protocol"],
        contract,
        _positive(table, "decisions"),
        _positive(table, "pause_s") if "pause_s" in table else 0,
    )


def check_agreed(task: Task, agreed: list[Mapping[str, str]]) -> None:
    """Raise UserError where servers would decide by a plugin that the members did not agree on."""
    for part in (task.detector, task.detector.rule(task.rule)):
        owner = plugins.owner_of(part)
        if owner is not None and owner.sha256 not in [row["sha256"] for row in agreed]:
            raise UserError(
                f"{type(part).__qualname__} is of the plugin {owner.name}, which the experiment "
                "does not name: found the federation with --plugin"
            )


def _check_protocol(table: Mapping[str, Any], where: str) -> None:
    """Raise a UserError unless this program speaks the version that a file names."""
    if "protocol" not in table:
        raise UnknownProtocol(
            f"{where} names no protocol, so it is of version 1 or 2, but this program speaks"
            f" {' and '.join(map(str, protocol.SUPPORTED))}: finish the run, or verify its logs,"
            " with the release of fedrfq that wrote them"
        )
    version = _positive(table, "protocol")
    why = protocol.refusal(version)
    if why is None:
        return
    if version > max(protocol.SUPPORTED):
        raise NewerProtocol(f"{where} is of {why}")
    raise UnknownProtocol(f"{where} is of {why}")


def _parse_task(table: Mapping[str, Any], clients: int) -> Task:
    if table["rule"] not in RULES or table["detector"]["name"] not in DETECTORS:
        plugins.load_installed()
    if table["rule"] not in RULES:
        raise ValueError(f"there is no rule {table['rule']!r}")
    classes = _positive(table, "classes")
    values = _positive(table, "values")
    # Checked here, because arrays of this size are allocated before the first upload comes.
    if classes * values > _MAX_VALUES:
        raise ValueError(f"{classes} classes of {values} values: at most {_MAX_VALUES} in all")
    public = _parse_public(table)
    if public is not None and public.classes != classes:
        raise ValueError(f"public.classes is {public.classes}: expected {classes}, as in classes")
    return Task(
        _parse_detector(table["detector"]),
        table["rule"],
        Precision(_positive(table, "bits")),
        clients,
        classes,
        values,
        public,
    )


def _public_table(public: PublicTask) -> dict[str, Any]:
    table = {field.name: getattr(public, field.name) for field in fields(public)}
    table["bits"] = table.pop("precision").bits
    # Files from before there was the key keep their hashes.
    if not public.revocable:
        del table["revocable"]
    # A section of its own, where there is any.
    del table["privacy"]
    return table


def _parse_public(table: Mapping[str, Any]) -> PublicTask | None:
    if "public" not in table:
        if "privacy" in table:
            raise ValueError("[privacy] without [public]: there is nothing to add noise to")
        return None
    section = dict(table["public"])
    precision = Precision(section.pop("bits"))
    return PublicTask(precision=precision, privacy=_parse_privacy(table), **section)


def _privacy_table(privacy: Privacy) -> dict[str, Any]:
    table = dict(vars(privacy))
    # Files from before there was the key keep their hashes.
    if not privacy.prototype_norm:
        del table["prototype_norm"]
    return table


def _parse_privacy(table: Mapping[str, Any]) -> Privacy | None:
    if "privacy" not in table:
        return None
    section = {"prototype_norm": 0.0, **table["privacy"]}
    for field in fields(Privacy):
        if type(section[field.name]) is not type(field.default):
            raise TypeError(f"privacy.{field.name} = {section[field.name]!r}")
    return Privacy(**section)


def _parse_network(section: Mapping[str, Any], rows: list[Mapping[str, Any]]) -> Members:
    return Members(section["follows"], section["experiment"], tuple(map(Member.of, rows)))


def _parse_detector(section: Mapping[str, Any]) -> Detector:
    if section["name"] not in DETECTORS:
        raise ValueError(f"there is no detector {section['name']!r}")
    kind = DETECTORS[section["name"]]
    options = {key: value for key, value in section.items() if key != "name"}
    for field in fields(kind):
        if type(options[field.name]) is not type(field.default):
            raise TypeError(f"detector.{field.name} = {options[field.name]!r}")
    return kind(**options)


def _positive(table: Mapping[str, Any], key: str) -> int:
    # By its type, because True is an int too.
    if type(table[key]) is not int or table[key] < 1:
        raise ValueError(f"{key} must be a whole number of at least 1, not {table[key]!r}")
    return int(table[key])


def _check_network(network: Members, digest: str, servers: int, parties: int) -> None:
    """Check the members against the keys, and the experiment against its digest."""
    if len(network.members) != parties:
        raise UserError(f"{len(network.members)} members but {parties} keys: there must be as many")
    for number, member in enumerate(network.members):
        is_server = number < servers
        if is_server and not member.address:
            raise UserError(f"server {member.name} has no address: give it one")
        if member.address and not is_server:
            raise UserError(f"{member.name} has an address but is no server: remove it")
    if experiment_digest(toml.strict(network.experiment)) != digest:
        raise UserError("the experiment's digest is not that of the experiment in the file")


def _name(detector: Detector) -> str:
    names = [name for name, kind in DETECTORS.items() if kind is type(detector)]
    return names[0] if names else str(plugins.name_of(type(detector)))
