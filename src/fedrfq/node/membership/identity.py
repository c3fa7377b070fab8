"""A party's folder: its own keys, and the federation.toml that it shares with the others. Which party it is follows from its
key for votes being in that file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Charter
from fedrfq.federation.members import Seat
from fedrfq.federation.signatures import KEY, Signer
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
    charter: Charter
    party: int
    signer: Signer

    @property
    def seat(self) -> Seat:
        return self.charter.seats[self.party]

    @property
    def is_server(self) -> bool:
        return self.party >= 0

    @property
    def role(self) -> str:
        return self.charter.role(self.party)


def load(folder: Path) -> Identity:
    """The party of this folder, once its keys were found to be private, valid and those that the federation knows."""
    charter, signer, own = (
        read_charter(folder / FEDERATION),
        read_signer(folder),
        certificates.read(folder / TLS_CERTIFICATE),
    )
    identity = Identity(folder, charter, _party(folder, charter, signer), signer)
    secret(folder / TLS_KEY)
    if own != identity.seat.certificate:
        raise UserError(
            f"{folder / TLS_CERTIFICATE} is not the certificate that {FEDERATION} has of {identity.seat.name}"
        )
    certificates.check_time(own, identity.seat.name)
    return identity


def read_seat(folder: Path) -> tuple[Seat, str]:
    """Of the party of this folder, and its role, even if its certificate has expired."""
    charter = read_charter(folder / FEDERATION)
    party = _party(folder, charter, read_signer(folder))
    return charter.seats[party], charter.role(party)


def read_charter(path: Path) -> Charter:
    """Of a federation on a network."""
    charter = Charter.read(read_text(path, MOST_FEDERATION), str(path))
    if charter.network is None:
        raise UserError(
            f"{path} is of a simulated run: `fedrfq committee init` founds a federation of real servers"
        )
    return charter


def read_signer(folder: Path) -> Signer:
    text = secret(folder / VOTE_KEY)
    try:
        seed = bytes.fromhex(text.removesuffix("\n"))
    except ValueError:  # which would show a part of the key
        seed = b""
    if len(seed) != KEY:
        raise UserError(f"{folder / VOTE_KEY} is not a key, {KEY} bytes in hex: restore it")
    return Signer(seed)


def _party(folder: Path, charter: Charter, signer: Signer) -> int:
    for party, key in charter.keys.items():
        if key == signer.public:
            return party
    raise UserError(
        f"the key in {folder / VOTE_KEY} is none of {FEDERATION}'s: copy the one in which {signer.public.hex()} takes part"
    )
