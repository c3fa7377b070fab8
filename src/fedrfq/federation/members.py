"""What federation.toml says of a federation on a real network, besides what it says of every one: who sits where."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError

ROLES = ("server", "client", "courier")  # in the order of their seats
MOST_CERTIFICATE = 4096  # bytes
MOST_EXPERIMENT = 1 << 16  # characters
_NAME = re.compile(
    r"[a-z0-9][a-z0-9_-]{0,62}"
)  # a folder's, and nobody's else once letters are folded
_LABEL = re.compile(r"\w([\w-]{0,61}\w)?", re.ASCII)
_LONGEST_HOST = 253
_RUN = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True)
class Member:
    """A party as the others know it: its name, where it listens ("" but for servers) and its TLS certificate, as DER."""

    name: str
    address: str
    certificate: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                f"a party's name is 1 to 63 of a-z, 0-9, '-' and '_', not {self.name[:80]!r}"
            )
        if self.address:
            endpoint(self.address)
        if not 1 <= len(self.certificate) <= MOST_CERTIFICATE:
            raise UserError(
                f"the certificate of {self.name} has {len(self.certificate)} bytes: 1 to {MOST_CERTIFICATE}"
            )

    def row(self, key: bytes) -> dict[str, str]:
        """Of federation.toml, with the party's key for votes."""
        if self.address:
            at = {"address": self.address}
        else:
            at = {}
        certificate = base64.b64encode(self.certificate).decode()
        return {"name": self.name, **at, "key": key.hex(), "certificate": certificate}

    @staticmethod
    def of(row: Mapping[str, Any]) -> Member:
        return Member(
            row["name"], row.get("address", ""), base64.b64decode(row["certificate"], validate=True)
        )


@dataclass(frozen=True)
class Members:
    """`follows` is the id of the run that this one succeeds, in hex, and "" for a federation's first; `experiment` the file
    by which clients train; the seats are those of the servers, then the clients', then the couriers'."""

    follows: str
    experiment: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.follows):
            raise UserError("`follows` is the id of a run, 64 digits in hex, or nothing")
        if len(self.experiment) > MOST_EXPERIMENT:
            raise UserError(
                f"the experiment has {len(self.experiment)} characters: {MOST_EXPERIMENT} at most"
            )
        _unique("name", [member.name for member in self.members])
        _unique(
            "certificate",
            [member.certificate for member in self.members],
            [member.name for member in self.members],
        )
        listening = [member for member in self.members if member.address]
        _unique(
            "address",
            [endpoint(member.address) for member in listening],
            [member.name for member in listening],
        )


def endpoint(address: str) -> tuple[str, int]:
    """Host and port of "host:port", or of "[…]:port" for IPv6."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        bare = host[1:-1]
    else:
        bare = ""
    plain = port.isascii() and port.isdigit() and len(port) <= 5 and port == str(int(port))
    if not plain or not 1 <= int(port) <= 65535 or not (_is_ipv6(bare) if bare else _is_host(host)):
        raise UserError(
            f"an address is host:port, such as committee.example.org:7400, not {address[:80]!r}"
        )
    return (bare or host).lower(), int(port)


def _is_host(host: str) -> bool:
    """A name of the DNS or an IPv4 address; what looks like the latter must be one."""
    if re.fullmatch(r"[0-9.]+", host):
        return _is(ipaddress.IPv4Address, host)
    return len(host) <= _LONGEST_HOST and all(_LABEL.fullmatch(label) for label in host.split("."))


def _is_ipv6(host: str) -> bool:
    return "%" not in host and _is(ipaddress.IPv6Address, host)


def _is(kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address], host: str) -> bool:
    try:
        kind(host)
    except ValueError:
        return False
    return True


def _unique(what: str, values: Iterable[object], names: Iterable[str] = ()) -> None:
    """That no two are the same; said of whom, by the second's name."""
    seen: set[object] = set()
    names = list(names)
    for place, value in enumerate(values):
        if value in seen:
            who: object = value
            if names:
                who = names[place]
            raise UserError(f"two parties have one {what} ({who}): each needs its own")
        seen.add(value)
