"""TLS 1.3 in which both sides show a certificate that federation.toml vouches for.

That is one that it pins, or one that a party has signed with the key for votes that it lists.
OpenSSL establishes that the peer holds the key of such a certificate. Which party that is, `party`
decides: by the certificate's bytes, or by whose key has signed it.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.node.membership import certificates
from fedrfq.node.membership.identity import Identity
from fedrfq.node.membership.renewal import TlsCredentials, credentials
from fedrfq.node.storage.party_folder import FEDERATION


def server_context(identity: Identity, own: TlsCredentials | None = None) -> ssl.SSLContext:
    """Return the context for being dialled, by any other party of the federation.

    It shows the party's `own` credentials, or without them those in its folder.
    """
    context = _context(identity, ssl.PROTOCOL_TLS_SERVER, identity.federation.members, own)
    # Sessions are not resumed: there is no state to keep, and every connection proves its key.
    context.num_tickets = 0
    return context


def client_context(identity: Identity, own: TlsCredentials | None = None) -> ssl.SSLContext:
    """Return the context for dialling. Only servers are dialled, so only theirs are trusted."""
    servers = range(identity.federation.roster.n)
    return _context(identity, ssl.PROTOCOL_TLS_CLIENT, servers, own)


def party(federation: Federation, der: bytes | None) -> int | None:
    """Return the party whose certificate this is; None if it is nobody's."""
    if der is None:
        return None
    pinned = federation.party_by_certificate.get(der)
    if pinned is not None:
        return pinned
    # OpenSSL accepts what any party has signed, for whatever name. Only this makes sure that a
    # party cannot vouch for others.
    name = certificates.subject(der)
    named = federation.party_by_name.get(name or "")
    if named is None or not certificates.is_signed_by(der, name or "", federation.keys[named]):
        return None
    return named


def use(context: ssl.SSLContext, own: TlsCredentials) -> None:
    """Show these credentials on all connections that are opened from now on."""
    try:
        context.load_cert_chain(own.certificate, own.key, password=_refuse_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise UserError(
            f"{own.key} is not the key of {own.certificate.name} ({error}): restore it"
        ) from error


def _context(
    identity: Identity, side: int, parties: Iterable[int], own: TlsCredentials | None
) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    # A party is known by its certificate, whatever host it is reached at.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(cadata=b"".join(_trusted(identity.federation, parties)))
    except ssl.SSLError as error:
        raise UserError(
            f"a certificate in {identity.folder / FEDERATION} cannot be read ({error}):"
            " restore the file"
        ) from error
    use(context, own or credentials(identity))
    return context


def _trusted(federation: Federation, parties: Iterable[int]) -> Iterator[bytes]:
    """Yield what OpenSSL is to trust: the pinned certificates, and what keys for votes sign."""
    for party in parties:
        member = federation.members[party]
        yield member.certificate
        yield certificates.anchor(member.name, federation.keys[party])


def _refuse_password() -> str:
    """Fail for an encrypted key, for which OpenSSL would prompt while the server hangs."""
    raise ValueError("it is encrypted with a password")
