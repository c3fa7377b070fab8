"""How a replica answers requests, and takes in the answers to its own; and evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedrfq.consensus.events import Accused, Broadcast, Persist, Send
from fedrfq.consensus.messages import (
    Fetch,
    Inputs,
    Message,
    Part,
    PartKind,
    part_digest,
)
from fedrfq.consensus.settling import finish_catching_up
from fedrfq.consensus.wire import Refused

if TYPE_CHECKING:
    from fedrfq.consensus.replica import Replica

# Module constants for the hot paths: looking up an enum's member takes longer.
_UPLOAD_PART = PartKind.UPLOAD
_PROPOSAL_PART = PartKind.PROPOSAL
_PUBLIC = PartKind.PUBLIC
_STANDING = PartKind.STANDING
_WORDS = PartKind.WORDS
_EVIDENCE = PartKind.EVIDENCE
# What only servers can fetch: no client gets another client's upload.
_PRIVATE = (
    PartKind.UPLOAD,
    PartKind.PROPOSAL,
    PartKind.STATE,
    PartKind.STANDING,
    PartKind.EVIDENCE,
)
# What is asked for by the round, not by a digest.
_FETCHED_BY_ROUND = (PartKind.CERT, PartKind.WORDS)


def on_fetch(replica: Replica, peer: int, message: Message) -> None:
    """Answer a request, if we have what it asks for and its sender may know it."""
    body = message.body
    assert isinstance(body, Fetch)
    is_client = peer < 0
    answer = None
    if not (is_client and body.what in _PRIVATE):
        answer = find(replica, body)
    if answer is not None:
        replica.effects.append(Send(peer, answer))
    elif body.what is _WORDS and not is_client and body.round == replica.state.round:
        replica.effects += [Send(peer, signed) for signed in replica.state.latest_signed()]
    else:
        replica.ignore("not to be had")


def find(replica: Replica, fetch: Fetch) -> Message | None:
    """Return what is asked for, if we have it.

    For the words of a round that is over, that is its certificate. For a part that is too old
    to be kept, it is the next round's certificate, which shows the asker that it is behind.
    """
    certificates = replica.certificates
    if fetch.what is _UPLOAD_PART:
        return replica.upload_pool.find(fetch.digest)
    if fetch.what is _PROPOSAL_PART:
        return replica.proposal_pool.find(fetch.digest)
    if fetch.what is _STANDING:
        round_ = replica.state.round
        last = certificates.chain.get(round_ - 1)
        return replica.rejoining.answer(fetch.digest, round_, last)
    if fetch.what is _EVIDENCE:
        return replica.proofs.answer(fetch)
    if fetch.what in _FETCHED_BY_ROUND:
        return certificates.message(fetch.round)
    part = replica.record_parts.find(fetch.digest)
    if part is None:
        return certificates.message(fetch.round + 1)
    # Or a client could get the private state under the name of another part.
    if part.what == fetch.what:
        return replica.rules.unsigned(part)
    return None


def on_part(replica: Replica, peer: int, message: Message) -> None:
    """Take in a part of a record that we have asked for."""
    body = message.body
    assert isinstance(body, Part)
    if body.what is _STANDING:
        _on_standing(replica, peer, body)
        return
    if body.what is _EVIDENCE:
        _on_handed_evidence(replica, peer, body)
        return
    # A part is unsigned: that it has a digest we asked for is its proof.
    name = part_digest(body.what, body.content)
    fetch = replica.requests.wanted.pop(name, None)
    if fetch is None or not _is_readable(body):
        replica.ignore("nobody asked")
    elif fetch.round == replica.state.round:
        replica.record_parts.current[name] = Part(replica.state.round, body.what, body.content)
        replica.state_changed = True
    else:
        part = Part(fetch.round, body.what, body.content)
        replica.record_parts.last[name] = part
        # At once: the next round may leave it as it is before the other parts have come.
        if body.what is _PUBLIC:
            replica.record_parts.public = {name: part}
            replica.effects.append(Persist(replica.rules.unsigned(part)))
        finish_catching_up(replica)


def _on_standing(replica: Replica, peer: int, body: Part) -> None:
    """Count an answer to our question; it also shows how far behind we are."""
    last = replica.rejoining.proven_round(peer, body)
    if last is None:
        replica.ignore("no answer of use")
        return
    if last >= replica.state.round:
        request_certificate(replica, peer, last + 1)
    mark = replica.rejoining.count_answer(peer, last)
    if mark is not None:
        replica.state_changed = True
        replica.effects.append(Persist(mark))


def _on_handed_evidence(replica: Replica, peer: int, body: Part) -> None:
    """Take in a proof that we asked a server for, and ask it for the next."""
    evidence = replica.proofs.read(peer, body)
    if evidence is None:
        replica.ignore("nobody asked")
        return
    on_evidence(replica, peer, evidence)
    question = replica.proofs.ask_on(peer, evidence)
    if question is not None:
        replica.effects.append(Send(peer, question))


def on_evidence(replica: Replica, peer: int, message: Message) -> None:
    """Keep evidence that proves something, if it is new."""
    refusal = replica.proofs.take(message)
    if refusal is None:
        replica.effects += [Persist(message), Accused(message)]
    else:
        replica.ignore(refusal)


def request_certificate(replica: Replica, peer: int, round_: int) -> None:
    """Ask for this round's certificate, as others are in a later round; once until a resend."""
    certificates = replica.certificates
    certificates.highest_round_heard = max(certificates.highest_round_heard, round_)
    if certificates.requested:
        return
    certificates.requested = True
    fetch = replica.rules.unsigned(Fetch(replica.state.round, PartKind.CERT))
    # A client would not know: all servers are asked instead.
    if peer >= 0:
        replica.effects.append(Send(peer, fetch))
    else:
        replica.effects.append(Broadcast(fetch))


def _is_readable(body: Part) -> bool:
    """Return whether a part can be decoded.

    Only a set is ours to decode; the other parts belong to the application, and are certified.
    """
    if body.what != PartKind.SET:
        return True
    try:
        Inputs.decode(body.content)
    except Refused:
        return False
    return True
