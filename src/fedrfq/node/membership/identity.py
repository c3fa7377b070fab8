"""A party's identity: its own keys, and the federation.toml that it shares with the others.

Which party a folder belongs to follows from its key for votes, which federation.toml lists.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.members import Member
from fedrfq.federation.signatures import KEY, Ed25519Signer
from fedrfq.node.membership import certificates
from fedrfq.node.storage.party_folder import (
    FEDERATION,
    MAX_FEDERATION_BYTES,
    TLS_CERTIFICATE,
    TLS_KEY,
    VOTE_KEY,
    read_text,
    secret,
)


@dataclass(frozen=True)
class Identity:
    """A party with its folder and its signer.

    Servers are numbered from 0, client k is party ~k, and couriers come after the clients
    (`Federation.carriers`).
    """

    folder: Path
    federation: Federation
    party: int
    signer: Ed25519Signer

    @property
    def member(self) -> Member:
        """Return what the other parties know of this one."""
        return self.federation.members[self.party]

    @property
    def is_server(self) -> bool:
        """Return whether the party is a server, which all parties from 0 on are."""
        return self.party >= 0

    @property
    def role(self) -> str:
        """Return "server", "client" or "courier"."""
        return self.federation.role(self.party)


def load(folder: Path) -> Identity:
    """Return the party of this folder.

    Its keys must be private and valid, and the ones that federation.toml lists.
    """
    return identify(folder, read_federation(folder / FEDERATION))


def identify(folder: Path, federation: Federation) -> Identity:
    """Return the party of this folder in a federation, whose file may be elsewhere."""
    signer = read_signer(folder)
    certificate = certificates.read(folder / TLS_CERTIFICATE)
    identity = Identity(folder, federation, _party(folder, federation, signer), signer)
    # OpenSSL reads the key by itself later; this refuses one that other users could read.
    secret(folder / TLS_KEY)
    if certificate != identity.member.certificate:
        raise UserError(
            f"{folder / TLS_CERTIFICATE} is not the certificate that {FEDERATION} lists for "
            f"{identity.member.name}: restore it"
        )
    # Its form was checked when the federation was founded. If it has expired, it is renewed.
    certificates.check_clock(certificate, identity.member.name)
    return identity


def read_member(folder: Path) -> tuple[Member, str]:
    """Return what others know of the party of this folder, and its role.

    Unlike `load`, this also works for a party whose certificate has expired.
    """
    federation = read_federation(folder / FEDERATION)
    party = _party(folder, federation, read_signer(folder))
    return federation.members[party], federation.role(party)


def read_federation(path: Path) -> Federation:
    """Return the federation of a federation.toml, which must be one on a network."""
    federation = Federation.read(read_text(path, MAX_FEDERATION_BYTES), str(path))
    if federation.network is None:
        raise UserError(
            f"{path} belongs to a simulated run: found a federation of real servers with "
            "`fedrfq committee init`"
        )
    return federation


def read_signer(folder: Path) -> Ed25519Signer:
    """Return the signer with the key for votes of this folder."""
    text = secret(folder / VOTE_KEY)
    try:
        seed = bytes.fromhex(text.removesuffix("\n"))
    except ValueError:
        # The error itself must not be shown: it would quote a part of the key.
        seed = b""
    if len(seed) != KEY:
        raise UserError(f"{folder / VOTE_KEY} is not a key, {KEY} bytes in hex: restore it")
    return Ed25519Signer(seed)


def _party(folder: Path, federation: Federation, signer: Ed25519Signer) -> int:
    for party, key in federation.keys.items():
        if key == signer.public:
            return party
    raise UserError(
        f"the key in {folder / VOTE_KEY} is none of {FEDERATION}'s: "
        f"copy the {FEDERATION} that lists the public key {signer.public.hex()}"
    )
