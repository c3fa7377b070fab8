"""How messages come in: from whom, of which round, and what of them is kept. Nothing is said here but answers.

Of each sender one message of a kind is kept, that of the highest view, so nobody can flood a server with views.
"""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Persist, Send
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

_AN_UPLOAD = PartKind.UPLOAD
_STANDING = PartKind.STANDING
_WORDS = PartKind.WORDS
_PRIVATE = (PartKind.UPLOAD, PartKind.STATE, PartKind.STANDING)  # no client gets another's upload
_OF_ROUNDS = (PartKind.CERT, PartKind.WORDS)  # asked for by the round, not by a digest
_PERISHABLE = frozenset(
    (Upload, Prepare, Commit)
)  # once their round is over, they are not worth a look at the signature
_TAKERS: dict[type[AnyMessage], str] = {
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
    Part: "_on_body",
}


class Inbox(Rejoining):
    """Takes in what peers send."""

    __slots__ = ()

    def _receive(self, peer: int, message: Message) -> None:
        if message.vouched is self.rules:
            if message.body.round == self.round:  # as almost always
                self._take(peer, message)
            else:
                self._place(peer, message)
        elif message.run != self.rules.run:
            self._ignore("another run")
        elif message.author is None:
            self._take(peer, message)
        elif message.author not in self.roster.keys:
            self._ignore("unknown party")
        elif message.body.round < self.round and type(message.body) in _PERISHABLE:
            self._ignore("old round")
        elif not self.rules.authentic(message):
            self._ignore("bad signature")
        else:
            self._place(peer, message)

    def _place(self, peer: int, message: Message) -> None:
        """An authentic message, by its round: now, soon, far ahead, or over."""
        body = message.body
        if body.round > self.round:
            self._learn(peer, body)
        ahead = body.round - self.round
        if ahead == 0:
            self._take(peer, message)
        elif ahead < 0:
            self._stale(peer, message)
        elif ahead == 1:
            self._set_aside(peer, message)
        else:
            self._behind(peer, body.round)

    def _learn(self, peer: int, body: AnyMessage) -> None:
        """Who speaks of the next round in a view change shows the certificate of this one."""
        if isinstance(body, PrePrepare):
            changes = [m.body for m in body.changes]
        else:
            changes = [body]
        for change in changes:
            if isinstance(change, ViewChange):
                last = change.last
            else:
                last = None
            if (
                last is not None
                and last.record.round == self.round
                and self.rules.certifies(last, COMMIT)
            ):
                self._settle(last, peer)

    def _set_aside(self, peer: int, message: Message) -> None:
        """A message of the next round, for when we get there; of a client two uploads, of a server one of each kind."""
        kind = message.body.kind
        party = message.author
        assert party is not None
        slot = 0
        if kind == UPLOAD and (kind, party, 0) in self.early:
            slot = int(self.early[kind, party, 0][1].digest != message.digest)
        self.early[kind, party, slot] = peer, message

    def _behind(self, peer: int, round_: int) -> None:
        """Somebody is further than we: ask for our round's certificate, and again after each one we get."""
        self.horizon = max(self.horizon, round_)
        if not self.asking:
            self.asking, fetch = True, self.rules.unsigned(Fetch(self.round, PartKind.CERT))
            self.effects.append(Send(peer, fetch) if peer >= 0 else Broadcast(fetch))

    def _stale(self, peer: int, message: Message) -> None:
        """Of a round that is over: who still closes it or changes views in it is behind, and gets its certificate."""
        body = message.body
        if type(body) is Receipt and body.round == self.round - 1:
            self._compare(message, self.last_lists)
            return
        self._ignore("old round")
        certificate = self.chain.get(body.round)
        if certificate is not None and (type(body) is UploadList or type(body) is ViewChange):
            self.effects.append(
                Send(body.server, self.rules.unsigned(Cert(body.round, certificate)))
            )

    def _take(self, peer: int, message: Message) -> None:
        getattr(self, _TAKERS[type(message.body)])(peer, message)

    def _on_upload(self, peer: int, message: Message) -> None:
        body = message.body
        digest = message.digest
        assert isinstance(body, Upload)
        if self.over:
            self._ignore("the run is over")
            return
        entry = body.client, digest
        if entry not in self.holdings.uploads:
            self._store(entry, message)
        if (
            entry in self.holdings.promised
            and body.client < len(self.roster.clients)
            and not self.silent
        ):
            self.effects.append(Send(~body.client, self._receipt(body.client, digest)))

    def _store(self, entry: Entry, message: Message) -> None:
        """A new upload: of two of one client both are kept and listed, and prove a lie; more only if a list has them."""
        (client, digest) = entry
        body = message.body
        closed = LIST in self.own
        assert isinstance(body, Upload)
        first = self.holdings.first(client)
        listed = digest in self.wanted
        if not listed and (closed or self.holdings.full(client)):
            self._ignore("upload after closing" if first is None else "another upload")
        elif self.application.refuses(body) is not None:
            self._ignore("inadmissible upload")
            return
        else:
            self.wanted.pop(digest, None)
            self.holdings.store(entry, message, promise=not closed)
            self.effects.append(Persist(message))
            self.moved |= (
                self.late
                or bool(self.lists or self.proposals)
                or self.holdings.held >= self.holdings.clients
            )
        if first is not None:
            self._accuse(first, message)

    def _receipt(self, client: int, digest: bytes) -> Message:
        return self.rules.signed(Receipt(self.round, self.me, client, digest), self.signer)

    def _on_receipt(self, peer: int, message: Message) -> None:
        self._compare(message, self.lists)

    def _compare(self, receipt: Message, lists: Slots) -> None:
        """A client shows what it was promised: a list without it proves a lie."""
        body = receipt.body
        assert isinstance(body, Receipt)
        listed = lists.get(body.server)
        if listed is not None and self.rules.conflict(body, listed.body):
            self._accuse(receipt, listed)

    def _on_list(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, UploadList)
        held = self.lists.get(body.server)
        if held is message or (held is not None and held == message):
            return
        if not self.rules.proper(message):
            self._ignore("improper list")
        elif self._keep(self.lists, message, self.quorum):
            self.holdings.lacking[body.server] = set(self.holdings.missing(body.entries))
            if LIST in self.own or self.late:  # before, what others list is most likely on its way
                self._held(body.entries, peer)

    def _held(self, entries: Entries, peer: int) -> bool:
        """Whether we hold all these uploads; what is missing is fetched."""
        missing = self.holdings.missing(entries)
        for _, digest in missing:
            if (
                self.holdings.find(digest) is None
            ):  # else it is another client's, and there is nothing to be had
                self._want(Fetch(self.round, PartKind.UPLOAD, digest), peer)
        return not missing

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
            for change in body.changes:
                self._keep(self.changes, change, self.roster.f)
            for listed in body.lists:
                self._on_list(peer, listed)
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

    def _on_cert(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Cert)
        if body.certificate.record.round != body.round or body.round < self.round:
            self._ignore("old round")
        elif body.round > self.round:
            self._behind(peer, body.round)
        elif not self.rules.certifies(body.certificate, COMMIT):
            self._ignore("bad certificate")
        else:
            self._settle(body.certificate, peer)
            if self.round < self.horizon:
                self._behind(peer, self.horizon)

    def _on_evidence(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Evidence)
        if not self.round - 1 <= body.round <= self.round:
            self._ignore("evidence of another round")
        elif not self.rules.proves(body):
            self._ignore("evidence that proves nothing")
        else:
            self._file(message)

    def _on_fetch(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Fetch)
        if peer < 0 and body.what in _PRIVATE:
            found = None
        else:
            found = self._find(body)
        if found is not None:
            self.effects.append(Send(peer, found))
        elif body.what is _WORDS and peer >= 0 and body.round == self.round:
            self.effects += [Send(peer, word) for word in self._words()]
        else:
            self._ignore("not to be had")

    def _find(self, fetch: Fetch) -> Message | None:
        """What is asked for. Of a round that is over that is its certificate; instead of a part so old that we no longer
        have it, the next one."""
        if fetch.what is _AN_UPLOAD:
            return self.holdings.find(fetch.digest)
        if fetch.what is _STANDING:
            return self._standing(fetch.digest)
        round_ = fetch.round
        if fetch.what not in _OF_ROUNDS:
            part = self.parts.get(fetch.digest) or self.last_parts.get(fetch.digest)
            if part is not None:
                if part.what == fetch.what:
                    return self.rules.unsigned(part)
                return None
            round_ += 1
        certificate = self.chain.get(round_)
        if certificate is not None:
            return self.rules.unsigned(Cert(round_, certificate))
        return None

    def _on_body(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Part)
        if body.what is _STANDING:
            self._on_standing(peer, body)
            return
        name = part_digest(body.what, body.content)
        fetch = self.wanted.pop(name, None)
        if fetch is None or not _sound(body):
            self._ignore("nobody asked")
        elif fetch.round == self.round:
            self.parts[name] = Part(self.round, body.what, body.content)
            self.moved = True
        else:
            self.last_parts[name] = Part(fetch.round, body.what, body.content)
            self._caught_up()

    def _on_standing(self, peer: int, body: Part) -> None:
        """An answer to our question where the others stand; it shows, too, how far behind we are."""
        last = self._stands(peer, body)
        if last is None:
            self._ignore("no answer of use")
            return
        if last >= self.round:
            self._behind(peer, last + 1)
        self._count(peer, last)


def _sound(body: Part) -> bool:
    """Whether a set can be read; the other parts are the application's, and certified."""
    try:
        return body.what != PartKind.SET or decode_entries(body.content) is not None
    except Refused:
        return False
