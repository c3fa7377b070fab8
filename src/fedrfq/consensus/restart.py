"""How a replica takes up what it persisted before a restart, message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedrfq.consensus.input_pool import InputPool
from fedrfq.consensus.messages import (
    LIST,
    PREPARE,
    PROPOSAL,
    Cert,
    Certificate,
    ChangeProposal,
    Entry,
    Evidence,
    Fetch,
    Message,
    Part,
    PartKind,
    Upload,
    part_digest,
)
from fedrfq.consensus.settling import settle

if TYPE_CHECKING:
    from fedrfq.consensus.replica import Replica


def recall(replica: Replica, message: Message) -> None:
    """Take up a message from the log."""
    body = message.body
    state = replica.state
    if isinstance(body, Cert):
        _recall_certificate(replica, body.certificate)
    elif isinstance(body, Fetch | Part) and body.what == PartKind.STANDING:
        replica.rejoining.recall(body)
    elif isinstance(body, Part):
        _recall_part(replica, message, body)
    # Before the check of the round: proofs are kept whatever their round is.
    elif isinstance(body, Evidence):
        replica.proofs.recall(message)
    elif body.round < state.round:
        return
    elif isinstance(body, Upload):
        _recall_input(replica, replica.upload_pool, (body.client, message.digest), message)
    elif isinstance(body, ChangeProposal):
        _recall_input(replica, replica.proposal_pool, (body.server, message.digest), message)
        if body.server == replica.me:
            state.own[PROPOSAL] = message
    else:
        # What we signed in a view binds us to it: we must not go back to an earlier one.
        state.own[body.kind] = message
        state.enter_view(max(state.view, message.view))
        replica.handlers[type(body)](replica, replica.me, message)


def _recall_certificate(replica: Replica, certificate: Certificate) -> None:
    if certificate.phase == PREPARE:
        replica.certificates.prepared = certificate
        return
    # A log may start at a later round: a simulated round is given the last one's decision only.
    if certificate.record.round != replica.state.round:
        replica.enter_round(certificate.record.round, {})
    settle(replica, certificate, replica.me)


def _recall_part(replica: Replica, message: Message, body: Part) -> None:
    """Take up a part of this round or of the last.

    Its round tells which: two rounds may have a part in common, so its digest does not.
    """
    name = part_digest(body.what, body.content)
    if body.round >= replica.state.round:
        replica.record_parts.current[name] = body
    elif name in replica.requests.wanted:
        replica.handlers[Part](replica, replica.me, message)
    else:
        replica.record_parts.last[name] = body


def _recall_input(replica: Replica, pool: InputPool[Any], entry: Entry, message: Message) -> None:
    # Uploads and proposals that come after our list in the log were fetched for others' lists.
    is_open = LIST not in replica.state.own
    pool.store(entry, message, promise=is_open)
