"""Find what keeps a party from taking part before it starts, and say how to fix it.

Two things cannot be known from here: whether this clock agrees with the others' (no message
carries the time, which only matters for the validity of certificates), and whether the others can
reach this server through the network between them.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation import decisions
from fedrfq.federation.members import endpoint
from fedrfq.files.locks import is_locked
from fedrfq.node.membership import certificates, renewal
from fedrfq.node.membership.identity import Identity, load, read_federation, read_signer
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY, VOTE_KEY, secret
from fedrfq.node.transport import probe, tls

OK = "ok"
WARNING = "warning"
FAILED = "failed"
# Free bytes below which a server soon cannot write its log, and below which to warn.
_MIN_FREE_BYTES = 64 << 20
_LOW_FREE_BYTES = 1 << 30
_MINUTE = "%Y-%m-%d %H:%M"


@dataclass(frozen=True)
class Finding:
    """What was checked, its grade, and a note that says what to do if the grade is not OK."""

    what: str
    grade: str
    note: str


def examine(
    folder: Path, now: datetime | None = None, patience_s: float = 5.0
) -> Iterator[Finding]:
    """Yield all findings about a party's folder.

    What needs sound keys is only checked if they are sound. Each server has `patience_s` to answer.
    """
    now = now or datetime.now(UTC)
    files = [
        _federation(folder),
        _check(VOTE_KEY, lambda: read_signer(folder).public.hex()),
        _check(TLS_KEY, lambda: secret(folder / TLS_KEY) and "private"),
        _check(TLS_CERTIFICATE, lambda: _own_certificate(folder)),
    ]
    yield from files
    yield _disk(folder)
    if any(finding.grade == FAILED for finding in files):
        return
    party = _check("party", lambda: _describe(load(folder)))
    yield party
    if party.grade == OK:
        yield from _examine_party(load(folder), now, patience_s)


def not_founded(folder: Path) -> str:
    """Say what a party with keys and without a federation.toml waits for."""
    return (
        f"not founded yet: there are keys here, and no {FEDERATION}; wait for the founder, with the"
        f" command that has --join, or put the file into {folder}"
    )


def _federation(folder: Path) -> Finding:
    if (folder / VOTE_KEY).exists() and not (folder / FEDERATION).exists():
        return Finding(FEDERATION, FAILED, not_founded(folder))
    return _check(FEDERATION, lambda: read_federation(folder / FEDERATION).about())


def _examine_party(identity: Identity, now: datetime, patience_s: float) -> Iterator[Finding]:
    if identity.federation.contract is not None:
        yield Finding("data contract", OK, identity.federation.contract.about())
    if identity.is_server:
        yield _check("decisions", lambda: _decisions(identity.federation.decisions))
    certificate = _certificate(identity, now)
    yield certificate
    yield _clock(identity, now)
    # A running party has its port in use and its own connections: do not get in its way.
    if is_locked(identity.folder):
        where = "its log"
        if identity.role != "courier":
            where = f"`fedrfq committee status {identity.folder}`"
        note = f"this party is running, so port and servers were not checked: see {where}"
        yield Finding("process", OK, note)
        return
    if identity.is_server:
        yield _port(identity.member.address)
    # The servers would refuse it.
    if certificate.grade == WARNING:
        yield Finding("servers", WARNING, "not asked: start this party, which renews first")
        return
    yield from _servers(identity, asyncio.run(probe.servers(identity, patience_s)))


def _servers(identity: Identity, answers: Mapping[int, probe.ProbeResult]) -> Iterator[Finding]:
    """Yield a finding for each server, and one more if too few of them answer.

    Rounds are decided as long as no more than f servers are away.
    """
    roster = identity.federation.roster
    away = sum(not answer.there for answer in answers.values())
    away_grade = WARNING
    if away > roster.f:
        away_grade = FAILED
    for server, answer in answers.items():
        grade = away_grade
        if answer.well:
            grade = OK
        elif answer.there:
            grade = FAILED
        yield Finding(identity.federation.members[server].name, grade, answer.note)
    if away > roster.f:
        note = (
            f"{away} of {roster.n} do not answer, and a round needs {roster.n - roster.f}: "
            "start this party anyway, it keeps dialling until they answer"
        )
        yield Finding("servers", FAILED, note)


def _check(what: str, look: Callable[[], str]) -> Finding:
    """Return OK with what `look` returns, or FAILED with the UserError that it raises."""
    try:
        return Finding(what, OK, look())
    except UserError as error:
        return Finding(what, FAILED, str(error))


def _describe(identity: Identity) -> str:
    """Return the role, number and name of a party whose keys OpenSSL accepts as a pair."""
    tls.client_context(identity)
    federation = identity.federation
    peers = [party for party in federation.members if federation.role(party) == identity.role]
    return f"{identity.role} {peers.index(identity.party)}, {identity.member.name}"


def _decisions(version: int) -> str:
    decisions.check_server(version, FEDERATION)
    return f"by version {version}, as this program decides"


def _own_certificate(folder: Path) -> str:
    certificates.check_clock(certificates.read(folder / TLS_CERTIFICATE), "this party")
    return "readable"


def _certificate(identity: Identity, now: datetime) -> Finding:
    """Say how long the certificate in use is valid; the party itself renews it in time."""
    own = renewal.credentials(identity)
    note = f"valid until {own.expires:%Y-%m-%d}, renewed by itself from {own.renew_at:%Y-%m-%d} on"
    if now < own.expires:
        return Finding("certificate", OK, note)
    note = f"expired on {own.expires:%Y-%m-%d}: start this party, which renews it by itself"
    return Finding("certificate", WARNING, note)


def _clock(identity: Identity, now: datetime) -> Finding:
    """Compare the clock with files that cannot have been made in the future."""
    newest = max(
        certificates.validity(member.certificate, member.name)[0]
        for member in identity.federation.members.values()
    )
    written = datetime.fromtimestamp((identity.folder / FEDERATION).stat().st_mtime, UTC)
    here = f"{now:{_MINUTE}} UTC"
    if now < newest:
        note = f"it is {here} here, before a certificate was made ({newest:{_MINUTE}}): set it"
        return Finding("clock", FAILED, note)
    if now < written:
        note = f"it is {here} here, before {FEDERATION} was written ({written:{_MINUTE}}): check it"
        return Finding("clock", WARNING, note)
    return Finding("clock", OK, f"{here}; not compared with the other parties' clocks")


def _port(address: str) -> Finding:
    """Try to listen on the server's address."""
    try:
        found = socket.getaddrinfo(*endpoint(address), type=socket.SOCK_STREAM)
        family, kind, _, _, socket_address = found[0]
        with closing(socket.socket(family, kind)) as listener:
            # As the server does: otherwise connections of an earlier one would block the port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(socket_address)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            note = (
                f"{address} is not an address of this machine: start `fedrfq server` with --listen"
            )
            return Finding("port", WARNING, note)
        note = f"cannot listen on {address} ({error.strerror}): stop the program that uses it"
        return Finding("port", FAILED, note)
    return Finding("port", OK, f"{address} is free")


def _disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", FAILED, f"{folder}: {error.strerror}: check the path")
    note = f"{free / 2**30:.1f} GiB free"
    if free >= _LOW_FREE_BYTES:
        return Finding("disk", OK, note)
    grade = WARNING
    if free < _MIN_FREE_BYTES:
        grade = FAILED
    return Finding("disk", grade, f"{note}: free some space, since a full disk stops a server")
