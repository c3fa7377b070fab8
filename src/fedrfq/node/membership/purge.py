"""Remove from a server's files what a client that was forgotten has sent.

audit.log stays byte for byte: its certificates, lists and sets hold digests alone. bodies.bin loses
the uploads of every round in which the client sent one, because a round is computed anew from all
its uploads or not at all, and the states that keep the client's statistics. Its chain of hashes is
made anew; nobody signs it. What a quorum certified can be checked as before, by the digests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.messages import (
    Cert,
    ChangeProposal,
    Message,
    Part,
    PartKind,
    Upload,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.retained import is_withdrawal, retained_in
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import hash_chain
from fedrfq.files.atomic import replacing, write_atomically
from fedrfq.node.membership import epochs
from fedrfq.node.membership.identity import Identity
from fedrfq.node.storage.audit_writer import BODIES, AuditWriter
from fedrfq.node.storage.write_ahead_log import WriteAheadLog

_STATE = PartKind.STATE
# What crashes have left behind may hold uploads, too.
_LEFT_BEHIND = (f"{BODIES}.cut-*", "log.damaged-*")


def purge(identity: Identity, name: str) -> int:
    """Remove what a client has sent from a stopped server's folder; return how many rounds lost it.

    A UserError is raised while the client's statistics still count.
    """
    folder = identity.folder
    federation = identity.federation
    ended = list(epochs.ended_epochs(folder))
    if not any(name in run.party_by_name for run in [federation, *(e.federation for e in ended)]):
        raise UserError(f"this federation never had a client {name}: give its name")
    # Opening the log locks the folder: a running server would write to the same files.
    with closing(WriteAheadLog.open(folder, federation.roster.run)) as log:
        _check_forgotten(compacted(log.messages), federation, name)
        with closing(AuditWriter(folder, federation)) as audit:
            audit.recover(log.messages)
            audit.sync()
        log.compact(compacted(log.messages))
        purged = _purge_bodies(folder, federation, name)
    for number, epoch in enumerate(ended, 1):
        purged += _purge_ended(folder / epochs.PAST / str(number), epoch, name)
    return purged


def _check_forgotten(messages: list[Message], federation: Federation, name: str) -> None:
    """Raise a UserError unless a decided round has left nothing of the client that counts."""
    decided = [m.body.certificate.record for m in messages if isinstance(m.body, Cert)]
    if not decided:
        raise UserError("no round of this run has been decided yet: wait for the first")
    states = [m.body.content for m in messages if isinstance(m.body, Part)]
    last = [state for state in states if part_digest(_STATE, state) == decided[-1].state]
    if not last:
        raise UserError("the last round's state is not there yet: start the server, and wait")
    if _keeps(last[0], federation, name):
        raise UserError(
            f"the statistics of {name} still count: it must run `fedrfq forget`, or a change of the"
            " federation must expel it, before it can be purged"
        )


def _purge_bodies(folder: Path, federation: Federation, name: str) -> int:
    """Write bodies.bin anew without what a client has sent; return how many rounds were changed."""
    path = folder / BODIES
    run = federation.roster.run
    purged = 0
    previous = run
    with replacing(path) as file:
        # Uploads are private, so nobody else may read the file.
        os.fchmod(file.fileno(), 0o600)
        for entry in hash_chain.settled(path, run):
            messages = [placed.message for placed in unpack(entry.payload)]
            kept = list(_without(messages, federation, name))
            purged += len(kept) < len(messages)
            framed = hash_chain.framed(previous, pack(kept))
            previous = framed[-len(previous) :]
            file.write(framed)
    for pattern in _LEFT_BEHIND:
        for left in folder.glob(pattern):
            _remove(left)
    return purged


def _without(messages: list[Message], federation: Federation, name: str) -> Iterator[Message]:
    """Yield a round's messages without its inputs if the client sent one, nor its statistics."""
    sent = any(_is_of(message, federation, name) for message in messages)
    for message in messages:
        is_input = isinstance(message.body, Upload | ChangeProposal)
        if not (sent and is_input) and not _keeps_in(message, federation, name):
            yield message


def _is_of(message: Message, federation: Federation, name: str) -> bool:
    """Return whether a message is an upload of the client; a withdrawal says nothing about it."""
    body = message.body
    if not isinstance(body, Upload) or is_withdrawal(body.content):
        return False
    return federation.party_by_name.get(name) == ~body.client


def _keeps_in(message: Message, federation: Federation, name: str) -> bool:
    body = message.body
    if not isinstance(body, Part) or body.what != _STATE:
        return False
    return _keeps(body.content, federation, name)


def _keeps(state: bytes, federation: Federation, name: str) -> bool:
    """Return whether a state keeps the client's statistics."""
    party = federation.party_by_name.get(name)
    return party is not None and ~party in retained_in(codec.decode_state(state))


def _purge_ended(past: Path, epoch: epochs.EndedEpoch, name: str) -> int:
    """Remove what a client has sent from an ended run; return how many rounds were changed."""
    federation = epoch.federation
    if name not in federation.party_by_name:
        return 0
    # Its write-ahead log is of use only to parties that are still in that run.
    _remove(past / "log")
    if epoch.outcome.state and _keeps(epoch.outcome.state, federation, name):
        stateless = epoch.outcome._replace(state=b"")
        rules = Rules(federation.roster)
        last = epochs.encode_last(rules, epoch.certificate, stateless)
        write_atomically(past / epochs.LAST, last)
    if not (past / BODIES).exists():
        return 0
    return _purge_bodies(past, federation, name)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
