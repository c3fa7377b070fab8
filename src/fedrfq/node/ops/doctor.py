"""What keeps a party from taking part, found before it starts: folder, keys, clock, port, disk, and the way to the others.

What it cannot know: whether this clock agrees with the others' (no message carries the time, and none is needed but for the
certificates' validity), and whether the others can reach this server through what lies between.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.members import endpoint
from fedrfq.files.locks import taken
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity, load, read_federation, read_signer
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY, VOTE_KEY, secret
from fedrfq.node.transport import probe, tls

OK = "ok"
WARNING = "warning"
FAILED = "failed"
_SOON = timedelta(days=30)
# bytes of free space
_NEEDED = 64 << 20
_WANTED = 1 << 30
_NAMED = 5


@dataclass(frozen=True)
class Finding:
    """What was looked at, how it is, and what to do where it is not well."""

    what: str
    grade: str
    note: str


def examine(
    folder: Path, now: datetime | None = None, patience_s: float = 5.0
) -> Iterator[Finding]:
    """All findings; those that need sound keys only where these are."""
    now = now or datetime.now(UTC)
    files = [
        _tried(FEDERATION, lambda: read_federation(folder / FEDERATION).about()),
        _tried(VOTE_KEY, lambda: read_signer(folder).public.hex()),
        _tried(TLS_KEY, lambda: secret(folder / TLS_KEY) and "private"),
        _certificate(folder / TLS_CERTIFICATE, now),
    ]
    yield from files
    yield _disk(folder)
    if any(finding.grade == FAILED for finding in files):
        return
    fits = _tried("party", lambda: _who(load(folder)))
    yield fits
    if fits.grade == OK:
        yield from _party(load(folder), now, patience_s)


def _party(identity: Identity, now: datetime, patience_s: float) -> Iterator[Finding]:
    yield _other_certificates(identity, now)
    yield _clock(identity, now)
    if taken(identity.folder):
        if identity.is_server:
            look = f"`fedrfq committee status {identity.folder}`"
        else:
            look = "its log"
        yield Finding(
            "process", OK, f"this party runs: port and servers are left to it, see {look}"
        )
        return
    if identity.is_server:
        yield _port(identity.member.address)
    yield from _servers(identity, asyncio.run(probe.servers(identity, patience_s)))


def _servers(identity: Identity, reached: Mapping[int, probe.ProbeResult]) -> Iterator[Finding]:
    """Up to f servers may be away, and rounds are decided all the same."""
    roster = identity.federation.roster
    away = sum(not answer.there for answer in reached.values())
    if away <= roster.f:
        missed = WARNING
    else:
        missed = FAILED
    for server, answer in reached.items():
        if answer.well:
            grade = OK
        else:
            if answer.there:
                grade = FAILED
            else:
                grade = missed
        yield Finding(identity.federation.members[server].name, grade, answer.note)
    if away > roster.f:
        few = f"{away} of {roster.n} do not answer, and a round takes {roster.n - roster.f}"
        yield Finding(
            "servers", FAILED, f"{few}: start this party all the same, it dials until they do"
        )


def _tried(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, OK, look())
    except UserError as error:
        return Finding(what, FAILED, str(error))


def _who(identity: Identity) -> str:
    """With keys that fit each other, or OpenSSL would not take them."""
    tls.client_context(identity)
    number = [
        p for p in identity.federation.members if identity.federation.role(p) == identity.role
    ].index(identity.party)
    return f"{identity.role} {number}, {identity.member.name}"


def _certificate(path: Path, now: datetime) -> Finding:
    try:
        certificates.check_time(der := certificates.read(path), "this party", now)
        end = certificates.validity(der, "this party")[1]
    except UserError as error:
        return Finding(path.name, FAILED, str(error))
    if end - now < _SOON:
        remedy = ": make new keys, and have the federation changed"
    else:
        remedy = ""
    return Finding(path.name, WARNING if remedy else OK, f"valid until {end:%Y-%m-%d}{remedy}")


def _other_certificates(identity: Identity, now: datetime) -> Finding:
    soon = []
    for member in identity.federation.members.values():
        start, end = certificates.validity(member.certificate, member.name)
        if not start <= now <= end - _SOON and member != identity.member:
            soon.append(f"{member.name} (until {end:%Y-%m-%d})")
    if not soon:
        return Finding("others' certificates", OK, "all valid for 30 days and more")
    if len(soon) > _NAMED:
        more = f" and {len(soon) - _NAMED} more"
    else:
        more = ""
    return Finding(
        "others' certificates",
        WARNING,
        f"not valid in 30 days: {', '.join(soon[:_NAMED])}{more}: they need new keys",
    )


def _clock(identity: Identity, now: datetime) -> Finding:
    """Nothing here can have been made in the future."""
    members = identity.federation.members.values()
    made = max(certificates.validity(member.certificate, member.name)[0] for member in members)
    written = datetime.fromtimestamp((identity.folder / FEDERATION).stat().st_mtime, UTC)
    if now < made:
        return Finding(
            "clock",
            FAILED,
            f"it is {now:%Y-%m-%d %H:%M} UTC here, and a certificate is from {made:%Y-%m-%d %H:%M}: set it",
        )
    if now < written:
        return Finding(
            "clock",
            WARNING,
            f"it is {now:%Y-%m-%d %H:%M} UTC here, and {FEDERATION} is of {written:%Y-%m-%d %H:%M}",
        )
    return Finding("clock", OK, f"{now:%Y-%m-%d %H:%M} UTC; not compared with the others'")


def _port(address: str) -> Finding:
    try:
        family, kind, _, _, place = socket.getaddrinfo(*endpoint(address), type=socket.SOCK_STREAM)[
            0
        ]
        with closing(socket.socket(family, kind)) as door:
            door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            door.bind(place)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return Finding(
                "port", WARNING, f"{address} is not of this machine: give `fedrfq server` --listen"
            )
        return Finding(
            "port", FAILED, f"{address} cannot be listened on ({error.strerror}): end what uses it"
        )
    return Finding("port", OK, f"{address} is free")


def _disk(folder: Path) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Finding("disk", FAILED, f"{folder}: {error.strerror}")
    if free < _NEEDED:
        grade = FAILED
    else:
        if free < _WANTED:
            grade = WARNING
        else:
            grade = OK
    return Finding(
        "disk",
        grade,
        f"{free / 2**30:.1f} GiB free" + ("" if grade == OK else ": make room, or votes will stop"),
    )
