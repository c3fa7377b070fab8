"""A server of the committee as a state machine: no I/O, no clock, no randomness. Time is an event.

One PBFT instance a round. A step takes in one event, then does whatever the state now allows, rule by rule, until nothing
more is: close the round, join a higher view, start the view's timer, propose, prepare, commit, decide. In whatever order
messages come, the same set of them leads to the same place.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.events import (
    DEADLINE,
    RESEND,
    VIEW,
    Application,
    Broadcast,
    Effect,
    Event,
    Expired,
    Persist,
    Received,
    Send,
    SetTimer,
    Start,
    Submit,
    Timer,
    Waiting,
)
from fedrfq.consensus.inbox import Inbox
from fedrfq.consensus.messages import (
    COMMIT,
    LIST,
    PARTS,
    PREPARE,
    PREPREPARE,
    UPLOAD,
    AnyMessage,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
    ViewChange,
    decode_entries,
    part_digest,
    write_entries,
)
from fedrfq.consensus.replica_state import Slots
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules


class Replica(Inbox):
    """`log` is what earlier lives persisted, in order, or its `essence`: it may start with nothing but the commit CERTs of
    all rounds so far, in order, the parts of the last one's outcome next to it, and the mark of a server that rejoins.
    """

    __slots__ = ()

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        super().__init__(rules, me, signer, application)
        for message in log:
            self._recall(message)
        self.effects = []

    def step(self, event: Event) -> list[Effect]:
        if type(event) is Received:
            self._receive(event.peer, event.message)
        elif type(event) is Expired:
            self._expire(event.timer)
        elif type(event) is Start:
            self._start()
        elif type(event) is Submit:
            self._move(event.round, event.content)
        if self.moved:
            self._advance()
        effects = self.effects
        self.effects = []
        self.moved = False
        return effects

    def _advance(self) -> None:
        while (
            (self.due and self._replay())
            or (not self.silent and self._speak())
            or (len(self.commits) >= self.quorum and self._decide())
        ):
            pass

    def _speak(self) -> bool:
        return (
            (LIST not in self.own and self._close())
            or (bool(self.changes) and self._join())
            or (len(self.changes if self.view else self.lists) >= self.quorum and self._open())
            or (bool(self.proposals) and self._vote())
        )

    def _open(self) -> bool:
        """A view in which something may be proposed."""
        return (not self.timing and self._time()) or (self.leader == self.me and self._propose())

    def _vote(self) -> bool:
        if self._signed(PREPARE):
            return not self._signed(COMMIT) and self._commit()
        return self.outcome is not None and self._prepare()

    # The rules, in the order of a round; each says whether it did something

    def _replay(self) -> bool:
        """What came of this round while we were in the last."""
        due = self.due
        self.due = []
        for peer, message in due:
            self._receive(peer, message)
        return True

    def _close(self) -> bool:
        """Sign the one list of this round: when all clients have sent, or at the deadline when enough have."""
        held = self.holdings.held
        if held < len(self.roster.clients) and not self._overdue(held):
            return False
        self._sign(UploadList(self.round, self.me, self.holdings.entries()))
        self._fetch_listed()
        return True

    def _fetch_listed(self) -> None:
        """What others list and we do not hold."""
        for server, lacking in self.holdings.lacking.items():
            self._held(tuple(sorted(lacking)), server)

    def _overdue(self, held: int) -> bool:
        return self.late and held >= self.roster.minimum

    def _join(self) -> bool:
        """Follow to the highest view that f+1 others, so one honest server at least, have asked for."""
        higher = [m.view for s, m in self.changes.items() if m.view > self.view and s != self.me]
        if len(higher) <= self.roster.f:
            return False
        self._leave_for(sorted(higher, reverse=True)[self.roster.f])
        return True

    def _leave_for(self, view: int) -> None:
        self._enter_view(view)
        self.resends = 0
        self.effects += [SetTimer(VIEW, None), SetTimer(RESEND, self.roster.resend_ms)]
        self._sign(
            ViewChange(self.round, view, self.me, self.prepared, self.chain.get(self.round - 1))
        )
        if (
            self.leader != self.me
        ):  # all are asked when the timer rings, which has just been set back
            self.effects += [
                Send(self.leader, self.rules.unsigned(fetch)) for fetch in self.wanted.values()
            ]

    def _time(self) -> bool:
        """The view's time runs once its leader can propose: leaders are not blamed for absent clients."""
        if not self._leader_can_propose():
            return False
        self.timing = True
        self.effects.append(SetTimer(VIEW, self.roster.timeout_ms(self.view)))
        return True

    def _leader_can_propose(self) -> bool:
        if self.view == 0:
            least = self.roster.n - self.roster.f
            return len(self.lists) >= least and len(self._usable()) >= least
        asked = [s for s, m in self.changes.items() if m.view >= self.view]
        return self.rules.enough(asked)

    def _usable(self) -> list[Message]:
        """The lists all of whose uploads we hold, by server."""
        return [
            self.lists[server]
            for server in sorted(self.lists)
            if not self.holdings.lacking.get(server)
        ]

    def _propose(self) -> bool:
        """As the view's leader: what is prepared if anything is, else what follows from n − f lists."""
        if self.outcome is None or self._signed(PREPREPARE):
            return False
        changes = self._changes_here()
        if self.view > 0 and not self.rules.enough([m.server for m in changes]):
            return False
        bound = self.rules.bound(changes)
        lists = tuple(self._usable()[: self.roster.n - self.roster.f])
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
        return tuple(m for _, m in sorted(self.changes.items()) if m.view == self.view)

    def _prepare(self) -> bool:
        """Vote for a proposal once we hold what it is made of and have come to the same record ourselves."""
        proposal = self._proposal()
        if proposal is None or not self._follows(proposal):
            return False
        self._persist_parts(proposal.record)
        self._sign(Prepare(self.round, self.view, proposal.record.value(self.rules.run), self.me))
        return True

    def _proposal(self) -> PrePrepare | None:
        """This view's, if we have it."""
        message = self.proposals.get(self.leader)
        if message is not None:
            body = message.body
        else:
            body = None
        if type(body) is PrePrepare and body.view == self.view:
            return body
        return None

    def _follows(self, proposal: PrePrepare) -> bool:
        """Whether the record is what we compute ourselves; false, too, as long as something is missing."""
        entries = self._entries(proposal)
        return entries is not None and self._compute(entries, proposal.lists) == proposal.record

    def _entries(self, proposal: PrePrepare) -> Entries | None:
        """The set of a proposal, once all uploads it is made of are here."""
        if proposal.lists:
            single, double = self.rules.union(proposal.lists)
            if self._held(single + double, proposal.server):
                return single
            return None
        part = self.parts.get(proposal.record.set_)
        if part is None:
            self._want(Fetch(self.round, PartKind.SET, proposal.record.set_), proposal.server)
            return None
        entries = decode_entries(part.content)
        if self._held(entries, proposal.server):
            return entries
        return None

    def _compute(self, entries: Entries, lists: tuple[Message, ...]) -> Record:
        """What the application makes of these uploads; remembered, as it is asked for after every event."""
        if self.computed is None or self.computed[0] != entries:
            self.computed = entries, self._computed(entries)
        record = self.computed[1]
        if lists:
            self.origins.setdefault(record, lists)
        return record

    def _computed(self, entries: Entries) -> Record:
        assert self.outcome is not None
        outcome = self.application.decide(self.round, self.outcome, self.holdings.bodies(entries))
        record = self.rules.record(self.round, self._previous(), entries, outcome)
        contents = zip(record.parts(), PARTS, (write_entries(entries), *outcome), strict=True)
        self._keep_parts(
            {name: Part(self.round, what, content) for name, what, content in contents}
        )
        return record

    def _commit(self) -> bool:
        """Vote to commit once a quorum has prepared what we have; the proof is kept for the views to come."""
        if len(self.prepares) < self.quorum:
            return False
        mine = self.own[PREPARE]
        proposal = self._proposal()
        votes = self._votes(self.prepares, mine.view, mine.value)
        if proposal is None or not self.rules.enough([vote.server for vote in votes]):
            return False
        value = proposal.record.value(self.rules.run)
        if value != mine.value:
            return False
        self.prepared = self.rules.certificate(votes, proposal.record)
        self.effects.append(Persist(self.rules.unsigned(Cert(self.round, self.prepared))))
        self._sign(Commit(self.round, self.view, value, self.me))
        return True

    def _votes(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        return [m for m in slots.values() if m.view == view and m.value == value]

    def _decide(self) -> bool:
        """A quorum of commits of one view for one value, whatever view we are in ourselves."""
        for view, value in sorted({(m.view, m.value) for m in self.commits.values()}):
            votes = self._votes(self.commits, view, value)
            record = self._record(value)
            if record is not None and self.rules.enough([vote.server for vote in votes]):
                self._settle(self.rules.certificate(votes, record), votes[0].server)
                return True
        return False

    def _record(self, value: bytes) -> Record | None:
        """The record of a value, from whatever we have seen; its hash proves it."""
        known = [m.body.record for m in self.proposals.values() if isinstance(m.body, PrePrepare)]
        known += [self.prepared.record] if self.prepared is not None else []
        return next((record for record in known if record.value(self.rules.run) == value), None)

    # Speaking

    def _signed(self, kind: Kind) -> bool:
        """Whether we have signed one of this kind in this view, or a later one."""
        return kind in self.own and self.own[kind].view >= self.view

    def _sign(self, body: AnyMessage) -> None:
        """Say something: durable first, then to all, then to ourselves."""
        message = self.rules.signed(body, self.signer)
        self.own[body.kind] = message
        self.effects += [Persist(message), Broadcast(message)]
        self._take(self.me, message)

    def _move(self, round_: int, content: bytes) -> None:
        """Speak as a client, once a round and before we close it: no round waits for it, but what is listed counts."""
        if round_ != self.round or self.silent or LIST in self.own or UPLOAD in self.own:
            return
        body = Upload(round_, self.roster.mover(self.me), content)
        if self.application.refuses(body) is None:
            message = self.own[UPLOAD] = self.rules.signed(body, self.signer)
            self._store((body.client, message.digest), message)
            self.effects.append(Broadcast(message))

    # Timers

    def _start(self) -> None:
        """After a restart: say again what we said, and ask the others what they did."""
        self.moved = True
        self._set_timers()
        self._mark()
        if (self.own or self.chain) and not self.over:
            self._resend()
            self.effects.append(Broadcast(self.rules.unsigned(Fetch(self.round, PartKind.WORDS))))

    def _expire(self, timer: Timer) -> None:
        if timer is RESEND:
            self._resend()
        elif timer is VIEW and self.timing and not self.silent:
            self._leave_for(self.view + 1)
        elif timer is DEADLINE:
            self.late = self.moved = True
            held = self.holdings.held
            if held < self.roster.minimum and not self.over:
                self._fetch_listed()  # in silence, too: it may end while others wait for our list
                if not self.silent:
                    self.effects.append(Waiting(held, self.roster.minimum))

    def _resend(self) -> None:
        """Messages get lost: say again what we said last, ask again for what is missing, and as long as the view's time
        does not run, which would end it, one server after the other what it has said; less often as a view grows old. When
        the run is over there is nothing left to say."""
        if self.over:
            return
        self._ask()
        self.effects += [self._again(message) for message in self._words()]
        self.effects += [Broadcast(self.rules.unsigned(fetch)) for fetch in self.wanted.values()]
        if self.roster.n > 1 and not self.timing:
            peer = (self.me + 1 + self.resends % (self.roster.n - 1)) % self.roster.n
            self.effects.append(Send(peer, self.rules.unsigned(Fetch(self.round, PartKind.WORDS))))
        self.asking = False
        self.effects.append(SetTimer(RESEND, self.roster.wait_ms(self.resends)))
        self.resends += 1

    def _again(self, message: Message) -> Send | Broadcast:
        """After view 0 a list is of use to the leader alone."""
        to_leader = message.body.kind == LIST and self.view > 0 and self.leader != self.me
        if to_leader:
            return Send(self.leader, message)
        return Broadcast(message)

    # Restart

    def _recall(self, message: Message) -> None:
        """Take up what an earlier life persisted."""
        body = message.body
        if isinstance(body, Cert):
            self._recall_certificate(body.certificate)
        elif isinstance(body, Fetch | Part) and body.what == PartKind.STANDING:
            self._recall_standing(body)
        elif isinstance(body, Part):
            self._recall_part(message, body)
        elif isinstance(body, Evidence):  # of the last round, too
            self._file(message)
        elif body.round < self.round:
            return
        elif isinstance(body, Upload):
            self.holdings.store(
                (body.client, message.digest), message, promise=LIST not in self.own
            )
            if body.client == self.roster.mover(self.me):
                self.own[UPLOAD] = message
        else:
            self.own[body.kind] = message
            self._enter_view(max(self.view, message.view))
            self._take(self.me, message)

    def _recall_part(self, message: Message, body: Part) -> None:
        """Of this round, or of the last: two rounds may have a part in common, so its digest does not tell."""
        name = part_digest(body.what, body.content)
        if body.round >= self.round:
            self.parts[name] = body
        elif name in self.wanted:
            self._on_body(self.me, message)
        else:
            self.last_parts[name] = body

    def _recall_certificate(self, certificate: Certificate) -> None:
        if certificate.phase == PREPARE:
            self.prepared = certificate
            return
        if certificate.record.round != self.round:
            self._enter(certificate.record.round)
        self._settle(certificate, self.me)
