"""A party's folder: its own keys, and the federation.toml that it shares with the others. Which party it is follows from its
key for votes being in that file."""

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
    MOST_FEDERATION,
    TLS_CERTIFICATE,
    TLS_KEY,
    VOTE_KEY,
    read_text,
    secret,
)


@dataclass(frozen=True)
class Identity:
    """Who one is: servers are numbered from 0, client k is ~k, and couriers come after (`Charter.carriers`)."""

    folder: Path
    federation: Federation
    party: int
    signer: Ed25519Signer

    @property
    def member(self) -> Member:
        return self.federation.members[self.party]

    @property
    def is_server(self) -> bool:
        return self.party >= 0

    @property
    def role(self) -> str:
        return self.federation.role(self.party)


def load(folder: Path) -> Identity:
    """The party of this folder, once its keys were found to be private, valid and those that the federation knows."""
    federation = read_federation(folder / FEDERATION)
    signer = read_signer(folder)
    own = certificates.read(folder / TLS_CERTIFICATE)
    identity = Identity(folder, federation, _party(folder, federation, signer), signer)
    secret(folder / TLS_KEY)
    if own != identity.member.certificate:
        raise UserError(
            f"{folder / TLS_CERTIFICATE} is not the certificate that {FEDERATION} has of {identity.member.name}"
        )
    certificates.check_time(own, identity.member.name)
    return identity


def read_member(folder: Path) -> tuple[Member, str]:
    """Of the party of this folder, and its role, even if its certificate has expired."""
    federation = read_federation(folder / FEDERATION)
    party = _party(folder, federation, read_signer(folder))
    return federation.members[party], federation.role(party)


def read_federation(path: Path) -> Federation:
    """Of a federation on a network."""
    federation = Federation.read(read_text(path, MOST_FEDERATION), str(path))
    if federation.network is None:
        raise UserError(
            f"{path} is of a simulated run: `fedrfq committee init` founds a federation of real servers"
        )
    return federation


def read_signer(folder: Path) -> Ed25519Signer:
    text = secret(folder / VOTE_KEY)
    try:
        seed = bytes.fromhex(text.removesuffix("\n"))
    except ValueError:  # which would show a part of the key
        seed = b""
    if len(seed) != KEY:
        raise UserError(f"{folder / VOTE_KEY} is not a key, {KEY} bytes in hex: restore it")
    return Ed25519Signer(seed)


def _party(folder: Path, federation: Federation, signer: Ed25519Signer) -> int:
    for party, key in federation.keys.items():
        if key == signer.public:
            return party
    raise UserError(
        f"the key in {folder / VOTE_KEY} is none of {FEDERATION}'s: copy the one in which {signer.public.hex()} takes part"
    )
