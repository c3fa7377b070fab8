"""How a replica takes in messages: from whom, of which round, and what of them it keeps.

Nothing is signed here but receipts, and nothing is sent but answers, requests and evidence.
"""

from __future__ import annotations

from fedrfq.consensus.events import Accused, Broadcast, Persist, Send
from fedrfq.consensus.messages import (
    COMMIT,
    LIST,
    UPLOAD,
    AnyMessage,
    Cert,
    Commit,
    Entry,
    Evidence,
    Fetch,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Receipt,
    Upload,
    UploadList,
    ViewChange,
    decode_entries,
    part_digest,
)
from fedrfq.consensus.rejoin import Rejoining
from fedrfq.consensus.replica_state import Slots
from fedrfq.consensus.rules import Entries
from fedrfq.consensus.wire import Refused

# Module constants for the hot paths: looking up an enum's member takes longer.
_UPLOAD_PART = PartKind.UPLOAD
_PUBLIC = PartKind.PUBLIC
_STANDING = PartKind.STANDING
_WORDS = PartKind.WORDS
_EVIDENCE = PartKind.EVIDENCE
# What only servers can fetch: no client gets another client's upload.
_PRIVATE = (PartKind.UPLOAD, PartKind.STATE, PartKind.STANDING, PartKind.EVIDENCE)
# What is asked for by the round, not by a digest.
_FETCHED_BY_ROUND = (PartKind.CERT, PartKind.WORDS)
# Messages that have no use once their round is over, so that their signatures need not be checked.
_USELESS_LATER = frozenset((Upload, Prepare, Commit))
# Handlers by name, not as functions, so that a subclass may replace one.
_HANDLERS: dict[type[AnyMessage], str] = {
    Upload: "_on_upload",
    Receipt: "_on_receipt",
    UploadList: "_on_list",
    PrePrepare: "_on_proposal",
    Prepare: "_on_prepare",
    Commit: "_on_commit",
    ViewChange: "_on_change",
    Cert: "_on_cert",
    Evidence: "_on_evidence",
    Fetch: "_on_fetch",
    Part: "_on_part",
}


class Inbox(Rejoining):
    """Takes in what peers send."""

    __slots__ = ()

    # From the wire to a handler

    def _receive(self, peer: int, message: Message) -> None:
        """Check a message's signature, and pass it on by its round."""
        # The cheap checks come first: verifying a signature is the most expensive one.
        if message.verified_by is self.rules:
            if message.body.round == self.round:  # as almost always
                self._handle(peer, message)
            else:
                self._route_by_round(peer, message)
        elif message.run != self.rules.run:
            self._ignore("another run")
        elif message.author is None:
            self._handle(peer, message)
        elif message.author not in self.roster.keys:
            self._ignore("unknown party")
        elif message.body.round < self.round and type(message.body) in _USELESS_LATER:
            self._ignore("old round")
        elif not self.rules.authentic(message):
            self._ignore("bad signature")
        else:
            self._route_by_round(peer, message)

    def _route_by_round(self, peer: int, message: Message) -> None:
        """Treat an authentic message by its round: this one, the next, a later or a past one."""
        body = message.body
        if body.round > self.round:
            self._learn_decision(peer, body)
        # Only now: learning that this round is decided moves us to the next.
        ahead = body.round - self.round
        if ahead == 0:
            self._handle(peer, message)
        elif ahead < 0:
            self._answer_stale(peer, message)
        elif ahead == 1:
            self._set_aside(peer, message)
        else:
            self._request_certificate(peer, body.round)

    def _learn_decision(self, peer: int, body: AnyMessage) -> None:
        """Take this round's certificate from the view changes that a later message carries."""
        changes = [body]
        if isinstance(body, PrePrepare):
            changes = [message.body for message in body.changes]
        for change in changes:
            if not isinstance(change, ViewChange) or change.last is None:
                continue
            last = change.last
            if last.record.round == self.round and self.rules.certifies(last, COMMIT):
                self._settle(last, peer)

    def _set_aside(self, peer: int, message: Message) -> None:
        """Keep a message of the next round until we get there.

        Of each party one message of a kind is kept, but two different uploads, which are evidence.
        """
        # Checked again in its round, but until then it must not take more room than an honest one.
        if not self.proofs.could_be_honest(message):
            self._ignore("improper early message")
            return
        kind = message.body.kind
        party = message.author
        assert party is not None
        slot = 0
        if kind == UPLOAD and (kind, party, 0) in self.early:
            slot = int(self.early[kind, party, 0][1].digest != message.digest)
        self.early[kind, party, slot] = peer, message

    def _request_certificate(self, peer: int, round_: int) -> None:
        """Ask for this round's certificate, as others are in a later round; once until a resend."""
        self.highest_round_heard = max(self.highest_round_heard, round_)
        if self.certificate_requested:
            return
        self.certificate_requested = True
        fetch = self.rules.unsigned(Fetch(self.round, PartKind.CERT))
        # A client would not know: all servers are asked instead.
        self.effects.append(Send(peer, fetch) if peer >= 0 else Broadcast(fetch))

    def _answer_stale(self, peer: int, message: Message) -> None:
        """Treat a message of a round that is over.

        A server that still closes such a round or changes views in it is behind: it gets the
        round's certificate. A client may show a receipt of the last round, whose lists are kept
        for that.
        """
        body = message.body
        if type(body) is Receipt and body.round == self.round - 1:
            self._check_promise(message, self.last_lists)
            return
        self._ignore("old round")
        certificate = self.chain.get(body.round)
        if certificate is not None and (type(body) is UploadList or type(body) is ViewChange):
            cert = self.rules.unsigned(Cert(body.round, certificate))
            self.effects.append(Send(body.server, cert))

    def _handle(self, peer: int, message: Message) -> None:
        getattr(self, _HANDLERS[type(message.body)])(peer, message)

    # Uploads, receipts and lists

    def _on_upload(self, peer: int, message: Message) -> None:
        body = message.body
        digest = message.digest
        assert isinstance(body, Upload)
        if self.over:
            self._ignore("the run is over")
            return
        entry = body.client, digest
        if entry not in self.upload_pool.uploads:
            self._store_upload(entry, message)
        # A receipt is given again for an upload that is sent again: the first may be lost. Servers
        # need none for their change proposals.
        if (
            entry in self.upload_pool.promised
            and body.client < len(self.roster.clients)
            and not self.silent
        ):
            self.effects.append(Send(~body.client, self._sign_receipt(body.client, digest)))

    def _store_upload(self, entry: Entry, message: Message) -> None:
        """Store a new upload, unless it is of no use or the application refuses it.

        Two uploads of one client are kept and listed, and are evidence. A third one, or one that
        comes after we have closed the round, is stored only if another server's list names it.
        """
        client, digest = entry
        body = message.body
        assert isinstance(body, Upload)
        closed = LIST in self.own
        first = self.upload_pool.first(client)
        is_listed = digest in self.wanted
        if not is_listed and (closed or self.upload_pool.full(client)):
            self._ignore("upload after closing" if first is None else "another upload")
        elif self.application.refuses(body) is not None:
            self._ignore("inadmissible upload")
            return
        else:
            self.wanted.pop(digest, None)
            self.upload_pool.store(entry, message, promise=not closed)
            self.effects.append(Persist(message))
            # Before the last client's upload, the deadline, or a list that names it, an upload lets
            # no rule apply.
            self.state_changed |= (
                self.late
                or bool(self.lists or self.proposals)
                or self.upload_pool.held >= self.upload_pool.clients
            )
        if first is not None:
            self._accuse(first, message)

    def _sign_receipt(self, client: int, digest: bytes) -> Message:
        return self.rules.signed(Receipt(self.round, self.me, client, digest), self.signer)

    def _on_receipt(self, peer: int, message: Message) -> None:
        self._check_promise(message, self.lists)

    def _check_promise(self, receipt: Message, lists: Slots) -> None:
        """Compare a receipt with its server's list, which must name the upload too."""
        body = receipt.body
        assert isinstance(body, Receipt)
        upload_list = lists.get(body.server)
        if upload_list is not None and self.rules.conflict(body, upload_list.body):
            self._accuse(receipt, upload_list)

    def _on_list(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, UploadList)
        # The same list comes again in every proposal that it justifies.
        held = self.lists.get(body.server)
        if held is message or (held is not None and held == message):
            return
        if not self.rules.proper(message):
            self._ignore("improper list")
        elif self._keep(self.lists, message, self.quorum):
            self.upload_pool.lacking[body.server] = set(self.upload_pool.missing(body.entries))
            # While our round is open, what others list is most likely on its way to us.
            if LIST in self.own or self.late:
                self._fetch_missing(body.entries, peer)

    def _fetch_missing(self, entries: Entries, peer: int) -> bool:
        """Ask a peer for those of these uploads that we lack; return whether we hold all."""
        missing = self.upload_pool.missing(entries)
        for _, digest in missing:
            # If we hold the digest, the list names it for the wrong client: there is no such
            # upload.
            if self.upload_pool.find(digest) is None:
                self._request(Fetch(self.round, PartKind.UPLOAD, digest), peer)
        return not missing

    # Proposals, votes and view changes

    def _on_proposal(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, PrePrepare)
        held = self.proposals.get(body.server)
        if held is message or (held is not None and held == message):
            return
        if body.view < self.view:
            self._ignore("old view")
        elif not self.rules.proper(message):
            self._ignore("improper proposal")
        else:
            # What justifies the proposal counts like messages that came by themselves.
            for change in body.changes:
                self._keep(self.changes, change, self.roster.f)
            for upload_list in body.lists:
                self._on_list(peer, upload_list)
            self._keep(self.proposals, message, 1)

    def _on_prepare(self, peer: int, message: Message) -> None:
        self._keep(self.prepares, message, self.quorum)

    def _on_commit(self, peer: int, message: Message) -> None:
        self._keep(self.commits, message, self.quorum)

    def _on_change(self, peer: int, message: Message) -> None:
        if self.rules.proper(message):
            self._keep(self.changes, message, self.roster.f)
        else:
            self._ignore("improper view change")

    # Certificates and evidence

    def _on_cert(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Cert)
        if body.certificate.record.round != body.round or body.round < self.round:
            self._ignore("old round")
        elif body.round > self.round:
            self._request_certificate(peer, body.round)
        elif not self.rules.certifies(body.certificate, COMMIT):
            self._ignore("bad certificate")
        else:
            self._settle(body.certificate, peer)
            # Catch up round by round; whoever was away has also missed what was proved meanwhile.
            if self.round < self.highest_round_heard:
                self._request_certificate(peer, self.highest_round_heard)
            else:
                self._ask_for_evidence()

    def _on_evidence(self, peer: int, message: Message) -> None:
        refusal = self.proofs.take(message)
        if refusal is None:
            self.effects += [Persist(message), Accused(message)]
        else:
            self._ignore(refusal)

    def _on_handed_evidence(self, peer: int, body: Part) -> None:
        """Take in a proof that we asked a server for, and ask it for the next."""
        evidence = self.proofs.read(peer, body)
        if evidence is None:
            self._ignore("nobody asked")
            return
        self._on_evidence(peer, evidence)
        question = self.proofs.ask_on(peer)
        if question is not None:
            self.effects.append(Send(peer, question))

    # Requests and answers

    def _on_fetch(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Fetch)
        is_client = peer < 0
        answer = None
        if not (is_client and body.what in _PRIVATE):
            answer = self._find(body)
        if answer is not None:
            self.effects.append(Send(peer, answer))
        elif body.what is _WORDS and not is_client and body.round == self.round:
            self.effects += [Send(peer, signed) for signed in self._latest_signed()]
        else:
            self._ignore("not to be had")

    def _find(self, fetch: Fetch) -> Message | None:
        """Return what is asked for, if we have it.

        For the words of a round that is over, that is its certificate. For a part that is too old
        to be kept, it is the next round's certificate, which shows the asker that it is behind.
        """
        if fetch.what is _UPLOAD_PART:
            return self.upload_pool.find(fetch.digest)
        if fetch.what is _STANDING:
            return self._standing(fetch.digest)
        if fetch.what is _EVIDENCE:
            return self.proofs.answer(fetch)
        round_ = fetch.round
        if fetch.what not in _FETCHED_BY_ROUND:
            part = self.parts.get(fetch.digest) or self.last_parts.get(fetch.digest)
            if part is not None:
                # Or a client could get the private state under the name of another part.
                if part.what == fetch.what:
                    return self.rules.unsigned(part)
                return None
            round_ += 1
        certificate = self.chain.get(round_)
        if certificate is not None:
            return self.rules.unsigned(Cert(round_, certificate))
        return None

    def _on_part(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Part)
        if body.what is _STANDING:
            self._on_standing(peer, body)
            return
        if body.what is _EVIDENCE:
            self._on_handed_evidence(peer, body)
            return
        # A part is unsigned: that it has a digest we asked for is its proof.
        name = part_digest(body.what, body.content)
        fetch = self.wanted.pop(name, None)
        if fetch is None or not _is_readable(body):
            self._ignore("nobody asked")
        elif fetch.round == self.round:
            self.parts[name] = Part(self.round, body.what, body.content)
            self.state_changed = True
        else:
            part = Part(fetch.round, body.what, body.content)
            self.last_parts[name] = part
            # At once: the next round may leave it as it is before the other parts have come.
            if body.what is _PUBLIC:
                self.public = {name: part}
                self.effects.append(Persist(self.rules.unsigned(part)))
            self._finish_catching_up()

    def _on_standing(self, peer: int, body: Part) -> None:
        """Count an answer to our question; it also shows how far behind we are."""
        last = self._proven_round(peer, body)
        if last is None:
            self._ignore("no answer of use")
            return
        if last >= self.round:
            self._request_certificate(peer, last + 1)
        self._count_answer(peer, last)


def _is_readable(body: Part) -> bool:
    """Return whether a part can be decoded.

    Only a set is ours to decode; the other parts belong to the application, and are certified.
    """
    if body.what != PartKind.SET:
        return True
    try:
        decode_entries(body.content)
    except Refused:
        return False
    return True
