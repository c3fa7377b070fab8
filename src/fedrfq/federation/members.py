"""What federation.toml says about the parties of a federation on a real network."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedrfq.errors import UserError

ROLES = ("server", "client", "courier")  # in the order of the members
MAX_CERTIFICATE_BYTES = 4096  # bytes
MAX_EXPERIMENT = 1 << 16  # characters
# A name is a folder's too, so it must differ from all others even where case does not count.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_LABEL = re.compile(r"\w([\w-]{0,61}\w)?", re.ASCII)
_MAX_HOST = 253  # characters of a DNS name
_RUN = re.compile(r"([0-9a-f]{64})?")


@dataclass(frozen=True)
class Member:
    """A party as the others know it: its name, its address and its TLS certificate, as DER.

    Only servers have an address; for the others it is "".
    """

    name: str
    address: str
    certificate: bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise UserError(
                "a party's name must be 1 to 63 characters of a-z, 0-9, '-' and '_', and start"
                f" with a letter or digit, not {self.name[:80]!r}"
            )
        if self.address:
            endpoint(self.address)
        if not 1 <= len(self.certificate) <= MAX_CERTIFICATE_BYTES:
            raise UserError(
                f"the certificate of {self.name} must have 1 to {MAX_CERTIFICATE_BYTES} bytes,"
                f" not {len(self.certificate)}"
            )

    def row(self, key: bytes) -> dict[str, str]:
        """Return the member's table in federation.toml, with the public key it signs with."""
        row = {"name": self.name}
        if self.address:
            row["address"] = self.address
        row["key"] = key.hex()
        row["certificate"] = base64.b64encode(self.certificate).decode()
        return row

    @staticmethod
    def of(row: Mapping[str, Any]) -> Member:
        """Return the member of a table in federation.toml."""
        certificate = base64.b64decode(row["certificate"], validate=True)
        return Member(row["name"], row.get("address", ""), certificate)


@dataclass(frozen=True)
class Members:
    """All members of a federation: the servers, then the clients, then the couriers.

    `follows` is the id, in hex, of the run that this one succeeds, and "" for a federation's first
    run. `experiment` is the text of the file by which clients train.
    """

    follows: str
    experiment: str
    members: tuple[Member, ...]

    def __post_init__(self) -> None:
        if not _RUN.fullmatch(self.follows):
            raise UserError("`follows` must be the id of a run, 64 digits in hex, or empty")
        if len(self.experiment) > MAX_EXPERIMENT:
            raise UserError(
                f"the experiment must have at most {MAX_EXPERIMENT} characters,"
                f" not {len(self.experiment)}"
            )
        names = [member.name for member in self.members]
        _check_unique("name", names, names)
        _check_unique("certificate", [member.certificate for member in self.members], names)
        servers = [member for member in self.members if member.address]
        _check_unique(
            "address",
            [endpoint(member.address) for member in servers],
            [member.name for member in servers],
        )


def endpoint(address: str) -> tuple[str, int]:
    """Return the host and port of "host:port", or of "[…]:port" for IPv6."""
    host, _, port = address.rpartition(":")
    is_valid = _is_port(port)
    if host.startswith("[") and host.endswith("]") and len(host) > 2:
        host = host[1:-1]
        is_valid = is_valid and _is_ipv6(host)
    else:
        is_valid = is_valid and _is_host(host)
    if not is_valid:
        raise UserError(
            "an address must be host:port, such as committee.example.org:7400,"
            f" not {address[:80]!r}"
        )
    return host.lower(), int(port)


def _is_port(port: str) -> bool:
    """Return whether a text is a port, written in the one way that `str` writes it."""
    # The length comes before `int`, which refuses to parse thousands of digits.
    is_number = port.isascii() and port.isdigit() and len(port) <= 5
    return is_number and port == str(int(port)) and 1 <= int(port) <= 65535


def _is_host(host: str) -> bool:
    """Return whether a text is a DNS name or an IPv4 address."""
    # What looks like an IPv4 address must be one: no such name is in the DNS.
    if re.fullmatch(r"[0-9.]+", host):
        return _parses(ipaddress.IPv4Address, host)
    return len(host) <= _MAX_HOST and all(_LABEL.fullmatch(label) for label in host.split("."))


def _is_ipv6(host: str) -> bool:
    # A zone ("%eth0") means something on one machine only.
    return "%" not in host and _parses(ipaddress.IPv6Address, host)


def _parses(kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address], host: str) -> bool:
    try:
        kind(host)
    except ValueError:
        return False
    return True


def _check_unique(what: str, values: Iterable[object], names: Iterable[str]) -> None:
    """Check that no two parties, of these names, share a value."""
    owners: dict[object, str] = {}
    for value, name in zip(values, names, strict=True):
        if value in owners:
            who = ", ".join(sorted({owners[value], name}))
            raise UserError(f"two parties have the same {what} ({who}): give each its own")
        owners[value] = name
