"""How a replica takes in messages: from whom, of which round, and what of them it keeps.

Nothing is signed here but receipts, and nothing is sent but answers, requests and evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fedrfq.consensus.answers import on_evidence, on_fetch, on_part, request_certificate
from fedrfq.consensus.events import Persist, Send
from fedrfq.consensus.input_pool import InputPool
from fedrfq.consensus.messages import (
    COMMIT,
    LIST,
    AnyMessage,
    Cert,
    ChangeProposal,
    Commit,
    Entry,
    Evidence,
    Fetch,
    Inputs,
    Message,
    Part,
    Prepare,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.settling import settle
from fedrfq.consensus.votes import Slots

if TYPE_CHECKING:
    from fedrfq.consensus.replica import Replica

# What is done with a message, given the replica and the peer that sent it.
Handler = Callable[["Replica", int, Message], None]
_INADMISSIBLE: dict[type[AnyMessage], str] = {
    Upload: "inadmissible upload",
    ChangeProposal: "inadmissible change proposal",
}
# Messages that have no use once their round is over, so that their signatures need not be checked.
_USELESS_LATER = frozenset((Upload, ChangeProposal, Prepare, Commit))
# Messages of which a server counts more than it ever needs to show to others.
_COUNTED = frozenset((UploadList, Prepare, Commit))


# From the wire to a handler


def receive(replica: Replica, peer: int, message: Message) -> None:
    """Check a message's signature, unless that can wait, and pass the message on by its round."""
    body = message.body
    # The cheap checks come first: verifying a signature is the most expensive one.
    if message.verified_by is replica.rules:
        if body.round == replica.state.round:  # as almost always
            replica.handlers[type(body)](replica, peer, message)
        else:
            _route_by_round(replica, peer, message)
    elif not replica.rules.of_run(message):
        replica.ignore("another run")
    elif message.author is None:
        replica.handlers[type(body)](replica, peer, message)
    elif message.author not in replica.roster.keys:
        replica.ignore("unknown party")
    elif body.round < replica.state.round and type(body) in _USELESS_LATER:
        replica.ignore("old round")
    elif _can_wait(replica, peer, message) or replica.rules.authentic(message):
        _route_by_round(replica, peer, message)
    else:
        replica.ignore("bad signature")


def _can_wait(replica: Replica, peer: int, message: Message) -> bool:
    """Return whether a signature need not be verified before it convinces somebody else.

    The link over which a message came proves who sent it. Its signature only matters once the
    message goes into a certificate, a proposal or evidence, and many never do: a quorum is enough.
    A server that has once sent a bad signature over its own link is verified at once.
    """
    return peer == message.author and type(message.body) in _COUNTED and peer not in replica.forgers


def _route_by_round(replica: Replica, peer: int, message: Message) -> None:
    """Treat a message by its round: this one, the next, a later or a past one."""
    body = message.body
    if body.round > replica.state.round:
        _learn_decision(replica, peer, body)
    # Only now: learning that this round is decided moves us to the next.
    ahead = body.round - replica.state.round
    if ahead == 0:
        replica.handlers[type(body)](replica, peer, message)
    elif ahead < 0:
        _answer_stale(replica, peer, message)
    elif ahead == 1:
        _set_aside(replica, peer, message)
    else:
        request_certificate(replica, peer, body.round)


def _set_aside(replica: Replica, peer: int, message: Message) -> None:
    """Keep a message of the next round until we get there."""
    # Checked again in its round, but until then it must not take more room than an honest one.
    if replica.proofs.could_be_honest(message):
        replica.early.set_aside(peer, message)
    else:
        replica.ignore("improper early message")


def _learn_decision(replica: Replica, peer: int, body: AnyMessage) -> None:
    """Take this round's certificate from the view changes that a later message carries."""
    changes = [body]
    if isinstance(body, PrePrepare):
        changes = [message.body for message in body.changes]
    for change in changes:
        if not isinstance(change, ViewChange) or change.last is None:
            continue
        last = change.last
        if last.record.round == replica.state.round and replica.rules.certifies(last, COMMIT):
            settle(replica, last, peer)


def _answer_stale(replica: Replica, peer: int, message: Message) -> None:
    """Treat a message of a round that is over.

    A server that still closes such a round or changes views in it is behind: it gets the
    round's certificate. A client may show a receipt of the last round, whose lists are kept
    for that.
    """
    body = message.body
    if type(body) is Receipt and body.round == replica.state.round - 1:
        _check_promise(replica, message, replica.upload_lists.last)
        return
    replica.ignore("old round")
    if type(body) is UploadList or type(body) is ViewChange:
        certificate = replica.certificates.message(body.round)
        if certificate is not None:
            replica.effects.append(Send(body.server, certificate))


# Uploads, receipts and lists


def on_upload(replica: Replica, peer: int, message: Message) -> None:
    """Store an upload, and promise its client that it will be in our list."""
    body = message.body
    digest = message.digest
    assert isinstance(body, Upload)
    if replica.state.over:
        replica.ignore("the run is over")
        return
    entry = body.client, digest
    pool = replica.upload_pool
    if entry not in pool.messages:
        _store_new(replica, pool, entry, message, replica.application.refuses)
    # A receipt is given again for an upload that is sent again: the first may be lost.
    if entry in pool.promised and not replica.silent:
        replica.effects.append(Send(~body.client, _sign_receipt(replica, body.client, digest)))


def on_change_proposal(replica: Replica, peer: int, message: Message) -> None:
    """Store a server's change proposal. It gets no receipt, as no round waits for proposals."""
    body = message.body
    assert isinstance(body, ChangeProposal)
    if replica.state.over:
        replica.ignore("the run is over")
        return
    entry = body.server, message.digest
    pool = replica.proposal_pool
    if entry not in pool.messages:
        refuses_successor = replica.application.refuses_successor
        _store_new(
            replica, pool, entry, message, lambda proposal: refuses_successor(proposal.content)
        )


def _store_new(
    replica: Replica,
    pool: InputPool[Any],
    entry: Entry,
    message: Message,
    refuses: Callable[[Any], str | None],
) -> None:
    """Store a new upload or change proposal, unless it is of no use or refused.

    Two messages of one party are kept and listed, and are evidence. A third one, or one that
    comes after we have closed the round, is stored only if another server's list names it.
    """
    party, digest = entry
    first = pool.first(party)
    is_listed = digest in replica.requests.wanted
    if not is_listed and (LIST in replica.state.own or pool.full(party)):
        replica.ignore("upload after closing" if first is None else "another upload")
    elif refuses(message.body) is not None:
        replica.ignore(_INADMISSIBLE[type(message.body)])
        return
    else:
        store(replica, pool, entry, message)
    if first is not None:
        replica.accuse(first, message)


def store(replica: Replica, pool: InputPool[Any], entry: Entry, message: Message) -> None:
    """Store an upload or change proposal that may be listed."""
    state = replica.state
    replica.requests.wanted.pop(entry[1], None)
    pool.store(entry, message, promise=LIST not in state.own)
    replica.effects.append(Persist(message))
    # Before the last client's upload, the deadline, or a list that names it, an upload lets no
    # rule apply.
    replica.state_changed |= (
        state.late
        or bool(replica.upload_lists.current or replica.votes.proposals)
        or len(replica.upload_pool.by_party) >= len(replica.roster.clients)
    )


def _sign_receipt(replica: Replica, client: int, digest: bytes) -> Message:
    receipt = Receipt(replica.state.round, replica.me, client, digest)
    return replica.rules.signed(receipt, replica.signer)


def on_receipt(replica: Replica, peer: int, message: Message) -> None:
    """Compare a receipt with the list that its server has signed in this round."""
    _check_promise(replica, message, replica.upload_lists.current)


def _check_promise(replica: Replica, receipt: Message, lists: Slots) -> None:
    """Compare a receipt with its server's list, which must name the upload too."""
    body = receipt.body
    assert isinstance(body, Receipt)
    upload_list = lists.get(body.server)
    if upload_list is not None and replica.rules.conflict(body, upload_list.body):
        replica.accuse(receipt, upload_list)


def on_list(replica: Replica, peer: int, message: Message) -> None:
    """Keep a server's list, and fetch what we lack of it."""
    body = message.body
    assert isinstance(body, UploadList)
    # The same list comes again in every proposal that it justifies.
    lists = replica.upload_lists.current
    held = lists.get(body.server)
    if held is message or (held is not None and held == message):
        return
    if not replica.rules.proper(message):
        replica.ignore("improper list")
    elif replica.keep(lists, message, replica.quorum):
        replica.upload_pool.expect(body.server, body.entries)
        replica.proposal_pool.expect(body.server, body.proposals)
        # While our round is open, what others list is most likely on its way to us.
        if LIST in replica.state.own or replica.state.late:
            replica.fetch_missing(Inputs(body.entries, body.proposals), peer)


# Proposals, votes and view changes


def on_proposal(replica: Replica, peer: int, message: Message) -> None:
    """Keep a leader's proposal, and what justifies it."""
    body = message.body
    assert isinstance(body, PrePrepare)
    held = replica.votes.proposals.get(body.server)
    if held is message or (held is not None and held == message):
        return
    if body.view < replica.state.view:
        replica.ignore("old view")
    elif not replica.rules.proper(message):
        replica.ignore("improper proposal")
    else:
        # What justifies the proposal counts like messages that came by themselves.
        for change in body.changes:
            replica.keep(replica.view_changes.changes, change, replica.roster.f)
        for upload_list in body.lists:
            on_list(replica, peer, upload_list)
        replica.keep(replica.votes.proposals, message, 1)


def on_prepare(replica: Replica, peer: int, message: Message) -> None:
    """Count a vote for a proposal."""
    replica.keep(replica.votes.prepares, message, replica.quorum)


def on_commit(replica: Replica, peer: int, message: Message) -> None:
    """Count a vote to decide."""
    replica.keep(replica.votes.commits, message, replica.quorum)


def on_change(replica: Replica, peer: int, message: Message) -> None:
    """Count a server that asks for a higher view."""
    if replica.rules.proper(message):
        replica.keep(replica.view_changes.changes, message, replica.roster.f)
    else:
        replica.ignore("improper view change")


# Certificates


def on_cert(replica: Replica, peer: int, message: Message) -> None:
    """Decide the round by its certificate, which others have made."""
    body = message.body
    assert isinstance(body, Cert)
    if body.certificate.record.round != body.round or body.round < replica.state.round:
        replica.ignore("old round")
    elif body.round > replica.state.round:
        request_certificate(replica, peer, body.round)
    elif not replica.rules.certifies(body.certificate, COMMIT):
        replica.ignore("bad certificate")
    else:
        settle(replica, body.certificate, peer)
        # Catch up round by round; whoever was away has also missed what was proved meanwhile.
        if replica.state.round < replica.certificates.highest_round_heard:
            request_certificate(replica, peer, replica.certificates.highest_round_heard)
        else:
            replica.ask_for_evidence()


HANDLERS: dict[type[AnyMessage], Handler] = {
    Upload: on_upload,
    ChangeProposal: on_change_proposal,
    Receipt: on_receipt,
    UploadList: on_list,
    PrePrepare: on_proposal,
    Prepare: on_prepare,
    Commit: on_commit,
    ViewChange: on_change,
    Cert: on_cert,
    Evidence: on_evidence,
    Fetch: on_fetch,
    Part: on_part,
}
