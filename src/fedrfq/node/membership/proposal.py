"""A server's change proposal: the federation.toml that it proposes in every round.

The proposal is a file in the server's folder; the server reads it again in each round, so an
operator can make or withdraw it while the server runs.
"""

from __future__ import annotations

from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import MOST, read_successor
from fedrfq.files.atomic import write_atomically
from fedrfq.node.logs import log_event
from fedrfq.node.membership import certificates
from fedrfq.node.membership.epochs import PROPOSAL, rounds_of
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.party_folder import read_text


def propose(identity: Identity, file: Path) -> Federation:
    """Make a file this server's change proposal, if it could replace the present federation."""
    content = read_text(file, MOST).encode()
    successor = _read_runnable(identity.federation, content)
    write_atomically(identity.folder / PROPOSAL, content)
    return successor


def withdraw_proposal(folder: Path) -> bool:
    """Remove the server's change proposal; return whether there was one."""
    existed = (folder / PROPOSAL).exists()
    (folder / PROPOSAL).unlink(missing_ok=True)
    return existed


def pending(identity: Identity) -> bytes | None:
    """Return the server's change proposal, or None if there is none that can still be decided."""
    path = identity.folder / PROPOSAL
    if not path.exists():
        return None
    try:
        content = read_text(path, MOST).encode()
        if not content:
            return None
        _read_runnable(identity.federation, content)
    except UserError as error:
        # The server keeps running: what it proposes is no reason to stop deciding rounds.
        log_event("the change proposal cannot be made", "warning", why=str(error))
        return None
    return content


def _read_runnable(federation: Federation, content: bytes) -> Federation:
    """Return the successor of this text, if it could run.

    Its new certificates must be fit for pinning, and its experiment must have a number of rounds.
    """
    successor = read_successor(federation, content)
    for member in successor.members.values():
        # Certificates of the present federation were checked before, and may have expired since.
        if member.certificate not in federation.party_by_certificate:
            certificates.check(member.certificate, member.name)
    rounds_of(successor)
    return successor
