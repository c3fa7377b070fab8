"""TLS 1.3 in which both sides show a certificate pinned by federation.toml; nothing else counts.

OpenSSL establishes that the peer holds the key of one of these certificates. Which party that is,
`party` decides by comparing the certificate's bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY


def server_context(identity: Identity) -> ssl.SSLContext:
    """Return the context for being dialled, by any other party of the federation."""
    context = _context(identity, ssl.PROTOCOL_TLS_SERVER, identity.federation.party_by_certificate)
    # Sessions are not resumed: there is no state to keep, and every connection proves its key.
    context.num_tickets = 0
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """Return the context for dialling. Only servers are dialled, so only theirs are pinned."""
    servers = (
        identity.federation.members[server].certificate
        for server in range(identity.federation.roster.n)
    )
    return _context(identity, ssl.PROTOCOL_TLS_CLIENT, servers)


def party(federation: Federation, der: bytes | None) -> int | None:
    """Return the party whose certificate this is, byte for byte; None if it is nobody's."""
    # OpenSSL would also accept a certificate that a pinned one has signed. Only this lookup makes
    # sure that a party cannot vouch for others.
    if der is None:
        return None
    return federation.party_by_certificate.get(der)


def _context(identity: Identity, side: int, pinned: Iterable[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    # A party is known by its certificate, whatever host it is reached at.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=b"".join(pinned))
    except ssl.SSLError as error:
        raise UserError(
            f"a certificate in {identity.folder / FEDERATION} cannot be read ({error}):"
            " restore the file"
        ) from error
    try:
        context.load_cert_chain(
            identity.folder / TLS_CERTIFICATE, identity.folder / TLS_KEY, password=_refuse_password
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UserError(
            f"{identity.folder / TLS_KEY} is not the key of {TLS_CERTIFICATE} ({error}): restore it"
        ) from error
    return context


def _refuse_password() -> str:
    """Fail for an encrypted key, for which OpenSSL would prompt while the server hangs."""
    raise ValueError("it is encrypted with a password")
