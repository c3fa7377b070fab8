"""A server of the committee as a state machine: no I/O, no clock, no randomness. Time is an event.

One PBFT instance a round. A step takes in one event, then does whatever the state now allows, rule by rule, until nothing
more is: close the round, join a higher view, start the view's timer, propose, prepare, commit, decide. In whatever order
messages come, the same set of them leads to the same place.

Of each sender one message of a kind is kept, that of the highest view, so nobody can flood a server with views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedrfq.consensus.holdings import Holdings
from fedrfq.consensus.machine import (
    Accused,
    Application,
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    Outcome,
    Persist,
    Publish,
    Received,
    Send,
    SetTimer,
    Start,
    Timer,
    Waiting,
)
from fedrfq.consensus.messages import (
    Any,
    Body,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Fetch,
    Kind,
    List,
    Message,
    Prepare,
    PrePrepare,
    Receipt,
    Record,
    Upload,
    ViewChange,
    What,
    author,
    decode_entries,
    part_digest,
    write_entries,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.wire import Refused

Slots = dict[int, Message]
_RESENT = (Kind.LIST, Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)
_PRIVATE = (What.UPLOAD, What.STATE)  # no client gets another's upload
_SLOWEST = 4  # a resend waits at most 2⁴ times as long as the first
_TAKERS = {
    Kind.UPLOAD: "_on_upload",
    Kind.RECEIPT: "_on_receipt",
    Kind.LIST: "_on_list",
    Kind.PREPREPARE: "_on_proposal",
    Kind.PREPARE: "_on_prepare",
    Kind.COMMIT: "_on_commit",
    Kind.VIEWCHANGE: "_on_change",
    Kind.CERT: "_on_cert",
    Kind.EVIDENCE: "_on_evidence",
    Kind.FETCH: "_on_fetch",
    Kind.BODY: "_on_body",
}


class Replica:
    """`log` is what earlier lives persisted, in order; a CERT with the parts of its outcome may stand at its start for
    everything before it."""

    def __init__(self, rules: Rules, me: int, signer: Signer, application: Application, log: Iterable[Message] = ()) -> None:
        self.rules, self.roster, self.me, self.signer, self.application = rules, rules.roster, me, signer, application
        self.chain: dict[int, Certificate] = {}
        self.outcome: Outcome | None = application.start()
        self.ignored: Counter[str] = Counter()
        self.accused: dict[tuple[int, Kind, int], Message] = {}
        self.horizon = 0  # the furthest round we have heard of
        self.effects: list[Effect] = []
        self.last_lists: Slots = {}
        self.last_parts: dict[bytes, Body] = {}
        self.early: dict[tuple[Kind, int, int], tuple[int, Message]] = {}
        self._enter(1)
        for message in log:
            self._recall(message)
        self.effects = []

    def step(self, event: Event) -> list[Effect]:
        if isinstance(event, Received):
            self._receive(event.peer, event.message)
        elif isinstance(event, Expired):
            self._expire(event.timer)
        elif isinstance(event, Start):
            self._start()
        self._advance()
        effects, self.effects = self.effects, []
        return effects

    def _advance(self) -> None:
        while (
            self._close()
            or self._join()
            or self._time()
            or self._propose()
            or self._prepare()
            or self._commit()
            or self._decide()
        ):
            pass

    # Rounds

    def _enter(self, round_: int) -> None:
        self.round, self.view = round_, 0
        self.holdings = Holdings()
        self.lists: Slots = {}
        self.proposals: Slots = {}
        self.prepares: Slots = {}
        self.commits: Slots = {}
        self.changes: Slots = {}
        self.own: dict[Kind, Message] = {}  # the last we signed of each kind
        self.prepared: Certificate | None = None
        self.parts: dict[bytes, Body] = {}
        self.computed: tuple[Entries, Record, tuple[Message, ...]] | None = None
        self.wanted: dict[bytes, Fetch] = {}
        self.asked: set[tuple[bytes, int]] = set()  # what, and whom
        self.late = self.timing = self.asking = False
        self.resends = 0
        self.accused = {key: message for key, message in self.accused.items() if key[2] >= round_ - 1}
        self._set_timers()

    def _set_timers(self) -> None:
        self.effects += [
            SetTimer(Timer.DEADLINE, self.roster.deadline_ms),
            SetTimer(Timer.VIEW, None),
            SetTimer(Timer.RESEND, self.roster.resend_ms),
        ]

    def _start(self) -> None:
        self._set_timers()
        if self.own or self.chain:
            self._resend()

    def _settle(self, certificate: Certificate, peer: int) -> None:
        """The round is decided: by our own count of votes, or by a certificate that a peer showed us."""
        record, round_ = certificate.record, self.round
        self.chain[round_] = certificate
        message = self.rules.unsigned(Cert(round_, certificate))
        lists = self.computed[2] if self.computed is not None and self.computed[1] == record else ()
        names = (record.set_, record.globals_, record.verdicts, record.state)
        self.last_lists, self.last_parts = self.lists, {name: self.parts[name] for name in names if name in self.parts}
        self.outcome = self._outcome(record)
        self.effects += [Persist(message), Publish(message), Decided(certificate, self.outcome, lists)]
        early, self.early = self.early, {}
        self._enter(round_ + 1)
        if self.outcome is None:
            self._catch_up(record, peer)
        for sender, earlier in early.values():
            self._receive(sender, earlier)

    def _outcome(self, record: Record) -> Outcome | None:
        """What a decided record stands for, if we have its parts."""
        parts = [self.last_parts.get(name) for name in (record.globals_, record.verdicts, record.state)]
        return Outcome(*(part.content for part in parts if part is not None)) if None not in parts else None

    def _catch_up(self, record: Record, peer: int) -> None:
        names = {What.GLOBALS: record.globals_, What.VERDICTS: record.verdicts, What.STATE: record.state}
        for what, name in names.items():
            if name not in self.last_parts:
                self._want(Fetch(record.round, what, name), peer)

    # The rules, in the order of a round; each says whether it did something

    def _close(self) -> bool:
        """Sign the one list of this round: when all clients have sent, or at the deadline when enough have."""
        held = len(self.holdings.by_client)
        if Kind.LIST in self.own or not (held == len(self.roster.clients) or self._overdue(held)):
            return False
        self._sign(List(self.round, self.me, self.holdings.entries()))
        return True

    def _overdue(self, held: int) -> bool:
        return self.late and held >= self.roster.minimum

    def _join(self) -> bool:
        """Follow to the highest view that f+1 others, so one honest server at least, have asked for."""
        views = sorted((m.body.view for s, m in self.changes.items() if s != self.me), reverse=True)  # type: ignore[union-attr]
        if len(views) <= self.roster.f or views[self.roster.f] <= self.view:
            return False
        self._leave_for(views[self.roster.f])
        return True

    def _leave_for(self, view: int) -> None:
        self.view, self.timing = view, False
        self.effects.append(SetTimer(Timer.VIEW, None))
        self._sign(ViewChange(self.round, view, self.me, self.prepared, self.chain.get(self.round - 1)))

    def _time(self) -> bool:
        """The view's time runs once its leader can propose: leaders are not blamed for absent clients."""
        if self.timing or not self._leader_can_propose():
            return False
        self.timing = True
        self.effects.append(SetTimer(Timer.VIEW, self.roster.timeout_ms(self.view)))
        return True

    def _leader_can_propose(self) -> bool:
        if self.view == 0:
            return len(self._usable()) >= self.roster.n - self.roster.f
        asked = [s for s, m in self.changes.items() if m.body.view >= self.view]  # type: ignore[union-attr]
        return self.rules.enough(asked)

    def _usable(self) -> list[Message]:
        """The lists all of whose uploads we hold, by server."""
        return [self.lists[server] for server in sorted(self.lists) if not self.holdings.lacking.get(server)]

    def _propose(self) -> bool:
        """As the view's leader: what is prepared if anything is, else what follows from n − f lists."""
        if self.roster.leader(self.round, self.view) != self.me or self._signed(Kind.PREPREPARE):
            return False
        changes = self._changes_here()
        if self.outcome is None or (self.view > 0 and not self.rules.enough(m.body.server for m in changes)):  # type: ignore[union-attr]
            return False
        bound, lists = self.rules.bound(changes), tuple(self._usable()[: self.roster.n - self.roster.f])
        if bound is not None:
            self._sign(PrePrepare(self.round, self.view, self.me, bound.record, (), changes))
            return True
        if len(lists) < self.roster.n - self.roster.f:
            return False
        record = self._compute(self.rules.union(lists)[0], lists)
        self._sign(PrePrepare(self.round, self.view, self.me, record, lists, changes))
        return True

    def _changes_here(self) -> tuple[Message, ...]:
        """The view changes for this very view; none in view 0."""
        if self.view == 0:
            return ()
        return tuple(m for _, m in sorted(self.changes.items()) if m.body.view == self.view)  # type: ignore[union-attr]

    def _prepare(self) -> bool:
        """Vote for a proposal once we hold what it is made of and have come to the same record ourselves."""
        proposal = self._proposal()
        if proposal is None or self.outcome is None or self._signed(Kind.PREPARE):
            return False
        if not self._follows(proposal):
            return False
        self._persist_parts(proposal.record)
        self._sign(Prepare(self.round, self.view, proposal.record.value(self.rules.run), self.me))
        return True

    def _proposal(self) -> PrePrepare | None:
        """This view's, if we have it."""
        message = self.proposals.get(self.roster.leader(self.round, self.view))
        body = message.body if message is not None else None
        return body if isinstance(body, PrePrepare) and body.view == self.view else None

    def _follows(self, proposal: PrePrepare) -> bool:
        """Whether the record is what we compute ourselves; false, too, as long as something is missing."""
        entries = self._entries(proposal)
        return entries is not None and self._compute(entries, proposal.lists) == proposal.record

    def _entries(self, proposal: PrePrepare) -> Entries | None:
        """The set of a proposal, once all uploads it is made of are here."""
        if proposal.lists:
            single, double = self.rules.union(proposal.lists)
            return single if self._held(single + double, proposal.server) else None
        part = self.parts.get(proposal.record.set_)
        if part is None:
            self._want(Fetch(self.round, What.SET, proposal.record.set_), proposal.server)
            return None
        entries = decode_entries(part.content)
        return entries if self._held(entries, proposal.server) else None

    def _held(self, entries: Entries, peer: int) -> bool:
        """Whether we hold all these uploads; what is missing is fetched."""
        missing = self.holdings.missing(entries)
        for _, digest in missing:
            self._want(Fetch(self.round, What.UPLOAD, digest), peer)
        return not missing

    def _compute(self, entries: Entries, lists: tuple[Message, ...]) -> Record:
        """What the application makes of these uploads; remembered, as it is asked for after every event."""
        if self.computed is not None and self.computed[0] == entries:
            return self.computed[1]
        assert self.outcome is not None
        outcome = self.application.decide(self.round, self.outcome, self.holdings.bodies(entries))
        record = self.rules.record(self.round, self._previous(), entries, outcome)
        self.computed = entries, record, lists
        self._keep_parts(
            {
                record.set_: Body(self.round, What.SET, write_entries(entries)),
                record.globals_: Body(self.round, What.GLOBALS, outcome.globals_),
                record.verdicts: Body(self.round, What.VERDICTS, outcome.verdicts),
                record.state: Body(self.round, What.STATE, outcome.state),
            }
        )
        return record

    def _previous(self) -> bytes:
        last = self.chain.get(self.round - 1)
        return self.rules.run if last is None else last.record.value(self.rules.run)

    def _keep_parts(self, parts: dict[bytes, Body]) -> None:
        """Those of the newest computation, and those of what is prepared: another server may need them."""
        bound = {self.prepared.record.set_} if self.prepared is not None else set()
        self.parts = {name: part for name, part in self.parts.items() if name in bound} | parts

    def _persist_parts(self, record: Record) -> None:
        for name in (record.set_, record.globals_, record.verdicts, record.state):
            self.effects.append(Persist(self.rules.unsigned(self.parts[name])))

    def _commit(self) -> bool:
        """Vote to commit once a quorum has prepared what we have; the proof is kept for the views to come."""
        proposal, mine = self._proposal(), self.own.get(Kind.PREPARE)
        if proposal is None or mine is None or not self._signed(Kind.PREPARE) or self._signed(Kind.COMMIT):
            return False
        votes = self._votes(self.prepares, mine.body.view, mine.body.value)  # type: ignore[union-attr]
        if not self.rules.enough(vote.body.server for vote in votes):  # type: ignore[union-attr]
            return False
        value = proposal.record.value(self.rules.run)
        if value != mine.body.value:  # type: ignore[union-attr]
            return False
        self.prepared = self.rules.certificate(votes, proposal.record)
        self.effects.append(Persist(self.rules.unsigned(Cert(self.round, self.prepared))))
        self._sign(Commit(self.round, self.view, value, self.me))
        return True

    def _votes(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        return [m for m in slots.values() if m.body.view == view and m.body.value == value]  # type: ignore[union-attr]

    def _decide(self) -> bool:
        """A quorum of commits of one view for one value, whatever view we are in ourselves."""
        if len(self.commits) < self.roster.quorum:
            return False
        for view, value in {(m.body.view, m.body.value) for m in self.commits.values()}:  # type: ignore[union-attr]
            votes = self._votes(self.commits, view, value)
            record = self._record(value)
            if record is not None and self.rules.enough(vote.body.server for vote in votes):  # type: ignore[union-attr]
                self._settle(self.rules.certificate(votes, record), votes[0].body.server)  # type: ignore[union-attr]
                return True
        return False

    def _record(self, value: bytes) -> Record | None:
        """The record of a value, from whatever we have seen; its hash proves it."""
        known = [m.body.record for m in self.proposals.values() if isinstance(m.body, PrePrepare)]
        known += [self.prepared.record] if self.prepared is not None else []
        return next((record for record in known if record.value(self.rules.run) == value), None)

    # Signing and asking

    def _signed(self, kind: Kind) -> bool:
        """Whether we have signed one of this kind in this view, or a later one."""
        mine = self.own.get(kind)
        return mine is not None and mine.body.view >= self.view  # type: ignore[union-attr]

    def _sign(self, body: Any) -> None:
        """Say something: durable first, then to all, then to ourselves."""
        message = self.rules.signed(body, self.signer)
        self.own[body.kind] = message
        self.effects += [Persist(message), Broadcast(message)]
        self._take(self.me, message)

    def _want(self, fetch: Fetch, peer: int) -> None:
        self.wanted[fetch.digest] = fetch
        if peer != self.me and (fetch.digest, peer) not in self.asked:
            self.asked.add((fetch.digest, peer))
            self.effects.append(Send(peer, self.rules.unsigned(fetch)))

    def _accuse(self, first: Message, second: Message) -> None:
        evidence = self.rules.unsigned(Evidence(first.body.round, first, second))
        if self._file(evidence):
            self.effects.append(Broadcast(evidence))

    def _file(self, message: Message) -> bool:
        """Keep evidence, once for each party, kind and round."""
        evidence = message.body
        assert isinstance(evidence, Evidence)
        party = author(evidence.first.body)
        assert party is not None
        key = (party, evidence.second.body.kind, evidence.round)
        if key in self.accused:
            return False
        self.accused[key] = message
        self.effects += [Persist(message), Accused(message)]
        return True

    # Timers

    def _expire(self, timer: Timer) -> None:
        if timer is Timer.RESEND:
            self._resend()
        elif timer is Timer.VIEW and self.timing:
            self._leave_for(self.view + 1)
        elif timer is Timer.DEADLINE:
            self.late, held = True, len(self.holdings.by_client)
            if held < self.roster.minimum:
                self.effects.append(Waiting(held, self.roster.minimum))

    def _resend(self) -> None:
        """Messages get lost: say again what we said last, ask again for what is missing; less often as time goes by."""
        for kind in _RESENT:
            message = self.own.get(kind)
            if message is not None and (kind == Kind.LIST or message.body.view == self.view):  # type: ignore[union-attr]
                self.effects.append(Broadcast(message))
        asked = [] if Kind.LIST in self.own else [Fetch(self.round, What.CERT)]
        for fetch in asked + list(self.wanted.values()):
            self.effects.append(Broadcast(self.rules.unsigned(fetch)))
        self.asking = False
        self.effects.append(SetTimer(Timer.RESEND, self.roster.resend_ms << min(self.resends, _SLOWEST)))
        self.resends += 1

    # Messages

    def _receive(self, peer: int, message: Message) -> None:
        body = message.body
        if message.run != self.rules.run:
            self._ignore("another run")
        elif author(body) is None:
            self._take(peer, message)
        elif not self._belongs(body):
            self._ignore("unknown party")
        elif not self.rules.authentic(message):
            self._ignore("bad signature")
        else:
            self._place(peer, message)

    def _belongs(self, body: Any) -> bool:
        party = author(body)
        return party is not None and self.roster.key(party) is not None

    def _place(self, peer: int, message: Message) -> None:
        """An authentic message, by its round: now, soon, far ahead, or over."""
        body = message.body
        if body.round > self.round:
            self._learn(peer, body)
        if body.round == self.round:
            self._take(peer, message)
        elif body.round == self.round + 1:
            self._set_aside(peer, message)
        elif body.round > self.round:
            self._behind(peer, body.round)
        else:
            self._stale(peer, message)

    def _take(self, peer: int, message: Message) -> None:
        getattr(self, _TAKERS[message.body.kind])(peer, message)

    def _ignore(self, reason: str) -> None:
        self.ignored[reason] += 1

    def _keep(self, slots: Slots, message: Message) -> bool:
        """One message of each sender, that of the highest view; two of one view prove a lie."""
        body = message.body
        held = slots.get(body.server)  # type: ignore[union-attr]
        if held is None or getattr(body, "view", 0) > getattr(held.body, "view", 0):
            slots[body.server] = message  # type: ignore[union-attr]
            return True
        if self.rules.conflict(held.body, body):
            self._accuse(held, message)
        return False

    def _on_upload(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Upload)
        entry = body.client, message.digest
        if entry not in self.holdings.uploads:
            self._store(message)
        if entry in self.holdings.promised:
            self.effects.append(Send(~body.client, self._receipt(body.client, message.digest)))

    def _store(self, message: Message) -> None:
        """A new upload: of two of one client both are kept and listed, and prove a lie; more only if a list has them."""
        body = message.body
        assert isinstance(body, Upload)
        first, listed = self.holdings.first(body.client), message.digest in self.wanted
        if not listed and (Kind.LIST in self.own or self.holdings.full(body.client)):
            self._ignore("upload after closing" if first is None else "another upload")
        elif self.application.refuses(body) is not None:
            self._ignore("inadmissible upload")
            return
        else:
            self.wanted.pop(message.digest, None)
            self.holdings.store(message, promise=Kind.LIST not in self.own)
            self.effects.append(Persist(message))
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
        assert isinstance(body, List)
        if not self.rules.proper_list(body):
            self._ignore("improper list")
        elif self._keep(self.lists, message):
            self.holdings.lacking[body.server] = set(self.holdings.missing(body.entries))
            self._held(body.entries, peer)

    def _on_proposal(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, PrePrepare)
        if body.view < self.view:
            self._ignore("old view")
        elif not self.rules.proper_proposal(body):
            self._ignore("improper proposal")
        else:
            for change in body.changes:
                self._keep(self.changes, change)
            for listed in body.lists:
                self._on_list(peer, listed)
            self._keep(self.proposals, message)

    def _on_prepare(self, peer: int, message: Message) -> None:
        self._keep(self.prepares, message)

    def _on_commit(self, peer: int, message: Message) -> None:
        self._keep(self.commits, message)

    def _on_change(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, ViewChange)
        if self.rules.proper_change(body):
            self._keep(self.changes, message)
        else:
            self._ignore("improper view change")

    def _on_cert(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Cert)
        if body.certificate.record.round != body.round or body.round < self.round:
            self._ignore("old round")
        elif body.round > self.round:
            self._behind(peer, body.round)
        elif not self.rules.certifies(body.certificate, Kind.COMMIT):
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
        found = None if peer < 0 and body.what in _PRIVATE else self._find(body)
        if found is not None:
            self.effects.append(Send(peer, found))
        else:
            self._ignore("not to be had")

    def _find(self, fetch: Fetch) -> Message | None:
        """What is asked for; or, for a part of a round so old that we no longer have it, the next certificate."""
        if fetch.what == What.UPLOAD:
            return self.holdings.find(fetch.digest)
        round_ = fetch.round
        if fetch.what != What.CERT:
            part = self.parts.get(fetch.digest) or self.last_parts.get(fetch.digest)
            if part is not None:
                return self.rules.unsigned(part)
            round_ += 1
        certificate = self.chain.get(round_)
        return self.rules.unsigned(Cert(round_, certificate)) if certificate is not None else None

    def _on_body(self, peer: int, message: Message) -> None:
        body = message.body
        assert isinstance(body, Body)
        name = part_digest(body.what, body.content)
        fetch = self.wanted.pop(name, None)
        if fetch is None or not _sound(body):
            self._ignore("nobody asked")
        elif fetch.round == self.round:
            self.parts[name] = body
        else:
            self.last_parts[name] = body
            self._caught_up()

    def _caught_up(self) -> None:
        certificate = self.chain[self.round - 1]
        self.outcome = self._outcome(certificate.record)
        if self.outcome is not None:
            self.effects += [Persist(self.rules.unsigned(part)) for part in self.last_parts.values()]
            self.effects.append(Decided(certificate, self.outcome, ()))

    def _learn(self, peer: int, body: Any) -> None:
        """Who speaks of the next round in a view change shows the certificate of this one."""
        changes = [m.body for m in body.changes] if isinstance(body, PrePrepare) else [body]
        for change in changes:
            last = change.last if isinstance(change, ViewChange) else None
            if last is not None and last.record.round == self.round and self.rules.certifies(last, Kind.COMMIT):
                self._settle(last, peer)

    def _set_aside(self, peer: int, message: Message) -> None:
        """A message of the next round, for when we get there; of a client two uploads, of a server one of each kind."""
        kind, party = message.body.kind, author(message.body)
        assert party is not None
        slot = 0
        if kind == Kind.UPLOAD and (kind, party, 0) in self.early:
            slot = int(self.early[kind, party, 0][1].digest != message.digest)
        self.early[kind, party, slot] = peer, message

    def _behind(self, peer: int, round_: int) -> None:
        """Somebody is further than we: ask for our round's certificate, and again after each one we get."""
        self.horizon = max(self.horizon, round_)
        if not self.asking:
            self.asking, fetch = True, self.rules.unsigned(Fetch(self.round, What.CERT))
            self.effects.append(Send(peer, fetch) if peer >= 0 else Broadcast(fetch))

    def _stale(self, peer: int, message: Message) -> None:
        """Of a round that is over: who still closes it or changes views in it is behind, and gets its certificate."""
        body = message.body
        if isinstance(body, Receipt) and body.round == self.round - 1:
            self._compare(message, self.last_lists)
            return
        self._ignore("old round")
        certificate = self.chain.get(body.round)
        if isinstance(body, List | ViewChange) and certificate is not None:
            self.effects.append(Send(body.server, self.rules.unsigned(Cert(body.round, certificate))))

    # Restart

    def _recall(self, message: Message) -> None:
        """Take up what an earlier life persisted."""
        body = message.body
        if isinstance(body, Cert):
            self._recall_certificate(body.certificate)
        elif isinstance(body, Body):
            name = part_digest(body.what, body.content)
            if name in self.wanted:
                self._on_body(self.me, message)
            else:
                self.parts[name] = body
        elif body.round < self.round:
            return
        elif isinstance(body, Upload):
            self.holdings.store(message, promise=Kind.LIST not in self.own)
        elif isinstance(body, Evidence):
            self._file(message)
        else:
            self.own[body.kind] = message
            self.view = max(self.view, getattr(body, "view", 0))
            self._take(self.me, message)

    def _recall_certificate(self, certificate: Certificate) -> None:
        if certificate.phase == Kind.PREPARE:
            self.prepared = certificate
            return
        if certificate.record.round != self.round:
            self._enter(certificate.record.round)
        self._settle(certificate, self.me)


def _sound(body: Body) -> bool:
    """Whether a set can be read; the other parts are the application's, and certified."""
    try:
        return body.what != What.SET or decode_entries(body.content) is not None
    except Refused:
        return False
