"""TLS 1.3 in which both sides show a certificate that federation.toml pins, and nothing else is believed.

OpenSSL finds out that a peer holds the key of one of the certificates; whose it is, `party` says by its bytes.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.party_folder import FEDERATION, TLS_CERTIFICATE, TLS_KEY


def server_context(identity: Identity) -> ssl.SSLContext:
    """For those who dial this party: any other of the federation."""
    context = _context(identity, ssl.PROTOCOL_TLS_SERVER, identity.federation.holders)
    context.num_tickets = 0  # sessions are not resumed, so that nobody has to remember any
    return context


def client_context(identity: Identity) -> ssl.SSLContext:
    """For dialling: only servers are."""
    servers = (
        identity.federation.members[server].certificate
        for server in range(identity.federation.roster.n)
    )
    return _context(identity, ssl.PROTOCOL_TLS_CLIENT, servers)


def party(federation: Federation, der: bytes | None) -> int | None:
    """Whose certificate this is, byte for byte; None: nobody's here."""
    if der is None:
        return None
    return federation.holders.get(der)


def _context(identity: Identity, side: int, pinned: Iterable[bytes]) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.check_hostname = False  # a party is its certificate, wherever it is reached
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=b"".join(pinned))
    except ssl.SSLError as error:
        raise UserError(
            f"a certificate in {identity.folder / FEDERATION} cannot be read ({error}): restore the file"
        ) from error
    try:
        context.load_cert_chain(
            identity.folder / TLS_CERTIFICATE, identity.folder / TLS_KEY, password=_none
        )
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UserError(
            f"{identity.folder / TLS_KEY} is not the key of {TLS_CERTIFICATE} ({error}): restore it"
        ) from error
    return context


def _none() -> str:
    """A key with a password would have OpenSSL ask for it, and a server wait for an answer."""
    raise ValueError("it needs a password")
