"""A party's TLS certificate in use: the pinned one, or one that the party has made since.

Before a certificate expires, its party makes the next, for a new TLS key, and signs it with its key
for votes. Nobody has to be asked: federation.toml says whose key that is, and a change that takes
the key away takes every certificate with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.members import MAX_CERTIFICATE_BYTES
from fedrfq.node.logs import log_event
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.party_folder import TLS_CERTIFICATE, TLS_KEY, secret, write

# The certificate and its private key in one file, so that both are replaced at once.
RENEWED = "renewed.pem"
# A certificate is renewed so long before it expires, or in the last third of a shorter life.
_MARGIN = timedelta(days=30)
_BEGIN = "-----BEGIN CERTIFICATE-----"
_MAX_BYTES = 4 * MAX_CERTIFICATE_BYTES


@dataclass(frozen=True)
class TlsCredentials:
    """The files of a TLS certificate and its key, when to renew them, and when they expire."""

    certificate: Path
    key: Path
    begins: datetime
    renew_at: datetime
    expires: datetime


def credentials(identity: Identity, now: datetime | None = None) -> TlsCredentials:
    """Return the credentials in the party's folder that expire last, of those that are valid yet.

    A clock that was wrong may have left some that begin years from now.
    """
    now = now or datetime.now(UTC)
    found = list(_found(identity))
    begun = [known for known in found if known.begins <= now]
    return max(begun or found, key=lambda known: known.expires)


def renew_if_due(identity: Identity, now: datetime | None = None) -> TlsCredentials:
    """Return the party's credentials, after renewing them if they are about to expire."""
    now = now or datetime.now(UTC)
    current = credentials(identity, now)
    if now < current.renew_at:
        return current
    _renew(identity, now)
    renewed = credentials(identity, now)
    log_event("renewed the certificate", expires=renewed.expires.isoformat(timespec="seconds"))
    return renewed


def _found(identity: Identity) -> Iterator[TlsCredentials]:
    folder = identity.folder
    pinned = identity.member.certificate
    yield _credentials(folder / TLS_CERTIFICATE, folder / TLS_KEY, pinned)
    path = folder / RENEWED
    if not path.exists():
        return
    renewed = _read(path)
    # After a change of keys this file is from before it.
    if certificates.is_signed_by(renewed, identity.member.name, identity.signer.public):
        yield _credentials(path, path, renewed)


def _credentials(certificate: Path, key: Path, der: bytes) -> TlsCredentials:
    begins, expires = certificates.validity(der, "this party")
    margin = min(_MARGIN, certificates.lifetime(der, "this party") / 3)
    return TlsCredentials(certificate, key, begins, expires - margin, expires)


def _read(path: Path) -> bytes:
    """Return the certificate of a renewed file, or nothing if it is damaged: it is made anew."""
    try:
        _, begin, text = secret(path, _MAX_BYTES).partition(_BEGIN)
        return certificates.parse(begin + text, path)
    except UserError as error:
        log_event("the renewed certificate cannot be used", "warning", why=str(error))
        return b""


def _renew(identity: Identity, now: datetime) -> None:
    name = identity.member.name
    lifetime = certificates.lifetime(identity.member.certificate, name)
    key, certificate = certificates.make(name, lifetime, now, identity.signer)
    path = identity.folder / RENEWED
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    write(temporary, key + certificates.pem(certificate).encode(), 0o600)
    temporary.replace(path)
