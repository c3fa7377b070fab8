"""A server's change proposal: the federation.toml that it moves in every round, for as long as it lies in its folder."""

from __future__ import annotations

from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import MOST, read_successor
from fedrfq.files.atomic import write_atomically
from fedrfq.node.logs import say
from fedrfq.node.membership import certificates
from fedrfq.node.membership.epochs import rounds_of
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.party_folder import read_text

PROPOSAL = "proposal.toml"


def propose(identity: Identity, file: Path) -> Federation:
    """Take a file up as this server's change proposal, if it could take the present one's place."""
    content = read_text(file, MOST).encode()
    new = _fit(identity.federation, content)
    write_atomically(identity.folder / PROPOSAL, content)
    return new


def take_back(folder: Path) -> bool:
    """Take the change proposal back; not if there was none."""
    there = (folder / PROPOSAL).exists()
    (folder / PROPOSAL).unlink(missing_ok=True)
    return there


def pending(identity: Identity) -> bytes | None:
    """The change proposal of this folder; none if there is none, or none that could be decided on any more."""
    path = identity.folder / PROPOSAL
    try:
        if path.exists():
            content = read_text(path, MOST).encode()
        else:
            content = b""
        if content and _fit(identity.federation, content):
            return content
        return None
    except UserError as error:
        say("the change proposal cannot be made", "warning", why=str(error))
        return None


def _fit(federation: Federation, content: bytes) -> Federation:
    """The federation that is moved, if it could be run: its new certificates can be pinned, and its rounds are a number."""
    new = read_successor(federation, content)
    for member in new.members.values():
        if member.certificate not in federation.holders:
            certificates.check(member.certificate, member.name)
    rounds_of(new)
    return new
