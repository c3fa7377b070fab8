"""A server of the committee as a PBFT state machine: no I/O, no clock, no randomness.

There is one PBFT instance per round, and time is an event. A step takes in one event and then
applies the rules, one after the other, until none applies any more: close the round, join a
higher view, start the view's timer, propose, prepare, commit, decide. The same set of messages
leads to the same state in any order.

A replica has its parts, each with state of its own. A part knows no other part: what concerns
several of them is done here, in `inbox` when a message comes in, or in `restart`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import ClassVar

from fedrfq.consensus.certificates import Certificates
from fedrfq.consensus.early_messages import EarlyMessages
from fedrfq.consensus.events import (
    DEADLINE,
    RESEND,
    VIEW,
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
    Submit,
    Timer,
    Waiting,
)
from fedrfq.consensus.evidence import Proofs
from fedrfq.consensus.inbox import HANDLERS, Handler, receive, store_upload
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
    Fetch,
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
    write_entries,
)
from fedrfq.consensus.record_parts import RecordParts
from fedrfq.consensus.rejoin import Rejoining
from fedrfq.consensus.replica_state import ReplicaState
from fedrfq.consensus.requests import Requests
from fedrfq.consensus.restart import recall
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.upload_pool import UploadPool
from fedrfq.consensus.view_changes import ViewChanges
from fedrfq.consensus.votes import Slots, Votes

_ROUNDS_PER_QUESTION = 16  # after which the others are asked for evidence that we have missed


class Replica:
    """One server's replica.

    `log` holds the messages that the server persisted before a restart, in order, or what
    `compacted` left of them. A compacted log may start with nothing but the commit certificates
    of all rounds so far, in order, next to them the parts of the last round's outcome, and the
    mark of a server that rejoins.
    """

    # What is done with each message, and the classes of some parts. They are attributes so that
    # the fuzzer can put broken ones in their place.
    handlers: ClassVar[dict[type[AnyMessage], Handler]] = HANDLERS
    make_votes: ClassVar[type[Votes]] = Votes
    make_certificates: ClassVar[type[Certificates]] = Certificates
    make_rejoining: ClassVar[type[Rejoining]] = Rejoining

    __slots__ = (
        "application",
        "certificates",
        "early",
        "effects",
        "forgers",
        "ignored",
        "me",
        "proofs",
        "quorum",
        "record_parts",
        "rejoining",
        "requests",
        "roster",
        "rules",
        "signer",
        "state",
        "state_changed",
        "upload_pool",
        "view_changes",
        "votes",
    )

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        self.rules = rules
        self.roster = rules.roster
        self.quorum = rules.roster.quorum
        self.me = me
        self.signer = signer
        self.application = application
        self.ignored: Counter[str] = Counter()
        self.forgers: set[int] = set()  # servers that sent bad signatures over their own links
        self.effects: list[Effect] = []
        # Whether something changed that may let us sign or decide something. Most messages change
        # nothing of the kind, and then the rules need not be tried.
        self.state_changed = False
        self.state = ReplicaState(rules.roster, application.start())
        self.certificates = self.make_certificates(rules)
        self.record_parts = RecordParts()
        self.rejoining = self.make_rejoining(rules, me)
        self.proofs = Proofs(rules, application)
        self.early = EarlyMessages()
        self.enter_round(1, {})
        for message in log:
            recall(self, message)
        # What recalling the log would send or persist was sent or persisted before the restart.
        self.effects = []

    def enter_round(self, round_: int, last_lists: Slots) -> None:
        """Begin a round; the lists are those of the round before."""
        self.state_changed = True
        self.state.enter_round(round_)
        self.certificates.enter_round()
        self.record_parts.enter_round()
        self.upload_pool = UploadPool(len(self.roster.clients), last_lists)
        self.votes = self.make_votes()
        self.view_changes = ViewChanges()
        self.requests = Requests(self.rules)
        self._set_timers()

    def _set_timers(self) -> None:
        deadline = SetTimer(DEADLINE, self.roster.deadline_ms)
        resend = SetTimer(RESEND, self.roster.resend_ms)
        self.effects += [deadline, SetTimer(VIEW, None), resend]

    # What others may read

    @property
    def round(self) -> int:
        """The round that is being decided."""
        return self.state.round

    @property
    def view(self) -> int:
        """The view that we are in."""
        return self.state.view

    @property
    def leader(self) -> int:
        """The server that leads our view."""
        return self.state.leader

    @property
    def outcome(self) -> Outcome | None:
        """The last decided round's outcome; None while only its certificate is known."""
        return self.state.outcome

    @property
    def chain(self) -> dict[int, Certificate]:
        """The certificates of the decided rounds, by round."""
        return self.certificates.chain

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state.over

    @property
    def silent(self) -> bool:
        """Whether we must sign nothing: no receipts, lists, votes, view changes or proposals."""
        return self.state.over or self.rejoining.silences(self.state.round)

    # Steps

    def step(self, event: Event) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in order."""
        # By exact type, the most frequent first: this is the hottest path of a server.
        if type(event) is Received:
            receive(self, event.peer, event.message)
        elif type(event) is Expired:
            self._expire(event.timer)
        elif type(event) is Start:
            self._start()
        elif type(event) is Submit:
            self._submit_proposal(event.round, event.content)
        if self.state_changed:
            self._advance()
        effects = self.effects
        self.effects = []
        self.state_changed = False
        return effects

    def _advance(self) -> None:
        """Apply the rules until none applies.

        Deciding needs no signature of ours, so a silent server does it too.
        """
        # Each rule is guarded by the cheapest condition without which it cannot apply.
        while (
            (self.early.due and self._replay())
            or (not self.silent and self._speak())
            or (len(self.votes.commits) >= self.quorum and self._decide())
        ):
            pass

    def _speak(self) -> bool:
        """Apply the first of the rules that sign something; return whether one applied."""
        state = self.state
        changes = self.view_changes.changes
        # Joining a view comes before acting in one, so that nothing is signed in a view which we
        # are about to leave.
        return (
            (LIST not in state.own and self._close())
            or (bool(changes) and self._join())
            or (
                len(changes if state.view else self.upload_pool.lists) >= self.quorum
                and self._run_view()
            )
            or (bool(self.votes.proposals) and self._vote())
        )

    def _run_view(self) -> bool:
        """Start the view's timer, and propose if we lead the view."""
        state = self.state
        return (not state.timing and self._start_view_timer()) or (
            state.leader == self.me and self._propose()
        )

    def _vote(self) -> bool:
        # One vote of each kind in a view; what was signed in a later view counts as signed too.
        state = self.state
        if state.signed(PREPARE):
            return not state.signed(COMMIT) and self._commit()
        # Without the last round's outcome nothing can be computed.
        return state.outcome is not None and self._prepare()

    # The rules, in the order of a round. Each returns whether it did something.

    def _replay(self) -> bool:
        """Take in the messages of this round that came while we were in the last."""
        early = self.early.due
        self.early.due = []
        for peer, message in early:
            receive(self, peer, message)
        return True

    def _close(self) -> bool:
        """Close the round with our list, when all clients have sent, or late when enough have."""
        pool = self.upload_pool
        if pool.held < pool.clients and not self._overdue(pool.held):
            return False
        # From here on no receipt is given for a new upload: this list is the only one we ever sign.
        self._sign(UploadList(self.state.round, self.me, pool.entries()))
        self._fetch_listed()
        return True

    def _fetch_listed(self) -> None:
        """Ask each server for the uploads that its list names and we lack."""
        for server, lacking in self.upload_pool.lacking.items():
            self.fetch_missing(tuple(sorted(lacking)), server)

    def _overdue(self, held: int) -> bool:
        return self.state.late and held >= self.roster.minimum

    def _join(self) -> bool:
        """Join a higher view that enough others have asked for."""
        view = self.view_changes.view_to_join(self.state.view, self.me, self.roster.f)
        if view is None:
            return False
        self._leave_for(view)
        return True

    def _leave_for(self, view: int) -> None:
        """Leave the current view for a higher one, and tell the others."""
        state = self.state
        state.enter_view(view)
        state.resends = 0
        self.effects += [SetTimer(VIEW, None), SetTimer(RESEND, self.roster.resend_ms)]
        last = self.certificates.chain.get(state.round - 1)
        self._sign(ViewChange(state.round, view, self.me, self.certificates.prepared, last))
        # The resend timer, which would ask everybody for what is missing, was just set back, so the
        # new leader is asked at once.
        if state.leader != self.me:
            self.effects += [Send(state.leader, fetch) for fetch in self.requests.messages()]

    def _start_view_timer(self) -> bool:
        """Start the view's timer once its leader can propose.

        So leaders are not blamed for absent clients.
        """
        if not self._leader_can_propose():
            return False
        self.state.timing = True
        self.effects.append(SetTimer(VIEW, self.roster.timeout_ms(self.state.view)))
        return True

    def _leader_can_propose(self) -> bool:
        """Return whether we ourselves hold what the leader needs: n − f lists, or view changes."""
        if self.state.view > 0:
            return self.view_changes.open(self.state.view, self.rules)
        needed = self.roster.n - self.roster.f
        pool = self.upload_pool
        return len(pool.lists) >= needed and len(pool.usable_lists()) >= needed

    def _propose(self) -> bool:
        """Propose, as leader, what is prepared if anything is, else what n − f lists yield."""
        state = self.state
        # A second proposal in one view would be evidence against us.
        if state.outcome is None or state.signed(PREPREPARE):
            return False
        changes = self.view_changes.opening(state.view)
        if state.view > 0 and not self.rules.enough([change.server for change in changes]):
            return False
        # Some server may have decided what is prepared, so it must be proposed again as it is.
        bound = self.rules.bound(changes)
        if bound is not None:
            self._sign(PrePrepare(state.round, state.view, self.me, bound.record, (), changes))
            return True
        needed = self.roster.n - self.roster.f
        pool = self.upload_pool
        lists = tuple(self.verified(pool.lists, pool.usable_lists(), needed))
        if not lists:
            return False
        entries, _ = self.rules.union(lists)
        record = self._compute(entries, lists)
        self._sign(PrePrepare(state.round, state.view, self.me, record, lists, changes))
        return True

    def _prepare(self) -> bool:
        """Vote for a proposal once we hold its uploads and have computed the same record."""
        proposal = self._proposal()
        if proposal is None or not self._follows(proposal):
            return False
        state = self.state
        # The parts come before the vote: who has voted for a record can supply it after a restart.
        self.effects += self._persisted(proposal.record)
        self._sign(Prepare(state.round, state.view, proposal.record.value(self.rules.run), self.me))
        return True

    def _proposal(self) -> PrePrepare | None:
        """Return this view's proposal, if we have it."""
        return self.votes.proposal(self.state.leader, self.state.view)

    def _follows(self, proposal: PrePrepare) -> bool:
        """Return whether we compute the same record; false while something is missing."""
        entries = self._entries(proposal)
        return entries is not None and self._compute(entries, proposal.lists) == proposal.record

    def _entries(self, proposal: PrePrepare) -> Entries | None:
        """Return a proposal's set of uploads, once we hold all uploads that it depends on."""
        if proposal.lists:
            # The uploads that do not count are needed too: they prove that their clients sent two.
            single, double = self.rules.union(proposal.lists)
            if self.fetch_missing(single + double, proposal.server):
                return single
            return None
        # A record bound by an earlier view comes without lists. Its hash names the set.
        set_ = proposal.record.set_
        part = self.record_parts.current.get(set_)
        if part is None:
            self.request(Fetch(self.state.round, PartKind.SET, set_), proposal.server)
            return None
        entries = decode_entries(part.content)
        if self.fetch_missing(entries, proposal.server):
            return entries
        return None

    def _compute(self, entries: Entries, lists: tuple[Message, ...]) -> Record:
        """Return the record that these uploads lead to."""
        parts = self.record_parts
        if parts.computed is None or parts.computed[0] != entries:
            parts.computed = entries, self._compute_anew(entries)
        record = parts.computed[1]
        if lists:
            parts.lists_by_record.setdefault(record, lists)
        return record

    def _compute_anew(self, entries: Entries) -> Record:
        round_ = self.state.round
        assert self.state.outcome is not None
        uploads = self.upload_pool.bodies(entries)
        outcome = self.application.decide(round_, self.state.outcome, uploads)
        previous = self.certificates.value_before(round_)
        record = self.rules.record(round_, previous, entries, outcome)
        contents = (write_entries(entries), *outcome)
        named_parts = zip(record.parts(), PARTS, contents, strict=True)
        self.record_parts.keep(
            {name: Part(round_, what, content) for name, what, content in named_parts}
        )
        return record

    def _commit(self) -> bool:
        """Vote to commit once a quorum has prepared what we have (section 4.2).

        The prepared certificate is kept, and durable before the vote, because it binds later views.
        """
        prepares = self.votes.prepares
        if len(prepares) < self.quorum:
            return False
        own_vote = self.state.own[PREPARE]
        proposal = self._proposal()
        votes = self.votes.alike(prepares, own_vote.view, own_vote.value)
        if proposal is None or not self.rules.enough([vote.server for vote in votes]):
            return False
        # After a restart we know our vote, but a faulty leader may have sent another proposal.
        value = proposal.record.value(self.rules.run)
        if value != own_vote.value:
            return False
        votes = self.verified(prepares, votes, self.quorum)
        if not votes:
            return False
        round_ = self.state.round
        prepared = self.rules.certificate(votes, proposal.record)
        self.certificates.prepared = prepared
        self.effects.append(Persist(self.rules.unsigned(Cert(round_, prepared))))
        self._sign(Commit(round_, self.state.view, value, self.me))
        return True

    def _decide(self) -> bool:
        """Decide on a quorum of commits of one view for one value, whatever view we are in."""
        records = self.votes.proposed()
        if self.certificates.prepared is not None:
            records.append(self.certificates.prepared.record)
        quorum = self.votes.committed(self.rules, records)
        if quorum is None:
            return False
        votes = self.verified(self.votes.commits, quorum.votes, self.quorum)
        if not votes:
            return False
        self.settle(self.rules.certificate(votes, quorum.record), votes[0].server)
        return True

    def settle(self, certificate: Certificate, peer: int) -> None:
        """Conclude the round with a certificate, our own or one that a peer showed us."""
        record = certificate.record
        round_ = self.state.round
        message = self.rules.unsigned(Cert(round_, certificate))
        # If we voted for the record, its parts were made durable before the vote. They come
        # before the certificate in the log, so that a restart finds the outcome when it finds the
        # decision.
        if not self._voted_for(record):
            self.effects += self._persisted(record)
        self.certificates.chain[round_] = certificate
        self.record_parts.settle(record)
        self._load_outcome(record)
        lists = self.record_parts.lists_by_record.get(record, ())
        decided = Decided(certificate, self.state.outcome, lists)
        self.effects += [Persist(message), Publish(message), decided]
        self.early.enter_round()
        self.enter_round(round_ + 1, self.upload_pool.lists)
        if self.state.outcome is None:
            # All but the set of uploads.
            for fetch in self.record_parts.lacking(record):
                self.request(fetch, peer)
        # Evidence is told to all once, and may be lost on the way.
        if self.state.round % _ROUNDS_PER_QUESTION == 0:
            self.ask_for_evidence()

    def _voted_for(self, record: Record) -> bool:
        vote = self.state.own.get(PREPARE)
        return vote is not None and vote.value == record.value(self.rules.run)

    def _persisted(self, record: Record) -> list[Effect]:
        """Return what makes the parts of a record durable."""
        parts = self.record_parts.unlogged(record)
        return [Persist(self.rules.unsigned(part)) for part in parts]

    def _load_outcome(self, record: Record) -> None:
        outcome = self.record_parts.outcome(record)
        self.state.outcome = outcome
        self.state.over = outcome is not None and self.application.over(outcome)

    def finish_catching_up(self) -> None:
        """Report the last round's outcome once all its parts are here."""
        certificate = self.certificates.chain[self.state.round - 1]
        self._load_outcome(certificate.record)
        if self.state.outcome is None:
            return
        self.state_changed = True
        parts = self.record_parts
        self.effects += [
            Persist(self.rules.unsigned(part))
            for name, part in parts.last.items()
            if name not in parts.public
        ]
        self.effects.append(Decided(certificate, self.state.outcome, ()))

    # Messages: what is kept, signed, asked for

    def keep(self, slots: Slots, message: Message, threshold: int) -> bool:
        """Keep a sender's message if it is its first or of its highest view; return whether it is.

        One message per sender is kept, so that nobody can flood a server with views. Two different
        messages of one view are evidence. Fewer than `threshold` messages let no rule apply.
        """
        held = slots.get(message.server)
        if held is None or message.view > held.view:
            slots[message.server] = message
            self.state_changed |= len(slots) >= threshold
            return True
        if (
            held is not message
            and held.raw != message.raw
            and self.rules.conflict(held.body, message.body)
        ):
            # Either may have come over its sender's own link, and not have been verified yet.
            forged = self.rules.forged((held, message))
            self._drop(slots, forged)
            if not forged:
                self.accuse(held, message)
        return False

    def verified(self, slots: Slots, messages: Iterable[Message], needed: int) -> list[Message]:
        """Return so many of these messages, all authentic, of the lowest servers; else none.

        They are about to convince others, so those whose signatures could wait are verified now.
        A bad one is dropped from its slot.
        """
        candidates = sorted(messages, key=lambda message: message.server)
        while len(candidates) >= needed:
            chosen = candidates[:needed]
            forged = self.rules.forged(each for each in chosen if each.server != self.me)
            if not forged:
                return chosen
            self._drop(slots, forged)
            candidates = [each for each in candidates if each not in forged]
        return []

    def _drop(self, slots: Slots, forged: Iterable[Message]) -> None:
        """Forget messages with bad signatures; their senders have lied over their own links."""
        for message in forged:
            if slots.get(message.server) is message:
                del slots[message.server]
            self.forgers.add(message.server)
            self.ignore("bad signature")

    def accuse(self, first: Message, second: Message) -> None:
        """Record two conflicting messages as evidence, and tell the others if it is new."""
        evidence = self.proofs.accuse(first, second)
        if evidence is not None:
            self.effects += [Persist(evidence), Accused(evidence), Broadcast(evidence)]

    def ask_for_evidence(self) -> None:
        """Ask all other servers for the proofs of misbehaviour that we have missed."""
        others = [server for server in range(self.roster.n) if server != self.me]
        self.effects.append(Broadcast(self.proofs.ask(others)))

    def ignore(self, reason: str) -> None:
        """Count a message that has no effect; the reasons are shown in a server's status."""
        self.ignored[reason] += 1

    def _sign(self, body: AnyMessage) -> None:
        """Sign a message, make it durable, send it to all others, and count it ourselves.

        The order matters: what is sent before it is durable may be contradicted after a restart.
        """
        message = self.rules.signed(body, self.signer)
        self.state.own[body.kind] = message
        self.effects += [Persist(message), Broadcast(message)]
        self.handlers[type(body)](self, self.me, message)

    def _submit_proposal(self, round_: int, content: bytes) -> None:
        """Upload a change proposal, as a client would, once a round and before we close it.

        No round waits for change proposals, but those that are listed count.
        """
        own = self.state.own
        if round_ != self.state.round or self.silent or LIST in own or UPLOAD in own:
            return
        body = Upload(round_, self.roster.proposal_client(self.me), content)
        if self.application.refuses(body) is None:
            message = self.rules.signed(body, self.signer)
            own[UPLOAD] = message
            # It persists the upload, which must come before the broadcast.
            store_upload(self, (body.client, message.digest), message)
            self.effects.append(Broadcast(message))

    def request(self, fetch: Fetch, peer: int) -> None:
        """Note that something is missing, and ask a peer for it once; resends ask everybody."""
        if self.requests.add(fetch, peer) and peer != self.me:
            self.effects.append(Send(peer, self.rules.unsigned(fetch)))

    def fetch_missing(self, entries: Entries, peer: int) -> bool:
        """Ask a peer for those of these uploads that we lack; return whether we hold all."""
        missing = self.upload_pool.missing(entries)
        for _, digest in missing:
            # If we hold the digest, the list names it for the wrong client: there is no such
            # upload.
            if self.upload_pool.find(digest) is None:
                self.request(Fetch(self.state.round, PartKind.UPLOAD, digest), peer)
        return not missing

    # Timers

    def _start(self) -> None:
        """Begin. After a restart, resend what we signed and ask the others what they signed."""
        self.state_changed = True
        self._set_timers()
        question = self.rejoining.question()
        if question is not None:
            self.effects += [Persist(question), Broadcast(question)]
        is_restart = bool(self.state.own or self.certificates.chain)
        if is_restart or question is not None:
            self.ask_for_evidence()
        if is_restart and not self.state.over:
            self._resend()
            self.effects.append(Broadcast(self._fetch_words()))

    def _fetch_words(self) -> Message:
        """Return the request for what a server has signed last in this round."""
        return self.rules.unsigned(Fetch(self.state.round, PartKind.WORDS))

    def _expire(self, timer: Timer) -> None:
        if timer is RESEND:
            self._resend()
        # A view's timer may ring late, when we have left the view or the round.
        elif timer is VIEW and self.state.timing and not self.silent:
            self._leave_for(self.state.view + 1)
        elif timer is DEADLINE:
            self.state.late = True
            self.state_changed = True
            self._report_too_few()

    def _report_too_few(self) -> None:
        """Report if too few clients have sent by the deadline, and fetch what others list."""
        held = self.upload_pool.held
        if held >= self.roster.minimum or self.state.over:
            return
        # A silent server fetches too: its silence may end while others wait for its list.
        self._fetch_listed()
        if not self.silent:
            self.effects.append(Waiting(held, self.roster.minimum))

    def _resend(self) -> None:
        """Send again what we signed last, and ask again for what is missing, as messages get lost.

        The longer a view lasts, the less often. When the run is over there is nothing left to send.
        """
        state = self.state
        if state.over:
            return
        question = self.rejoining.question()
        if question is not None:
            self.effects.append(Broadcast(question))
        self.effects += [self._resent(message) for message in state.latest_signed()]
        self.effects += [Broadcast(fetch) for fetch in self.requests.messages()]
        # The view's timer ends a view that is stuck. While it does not run, ask one server after
        # the other for what it signed.
        if self.roster.n > 1 and not state.timing:
            peer = (self.me + 1 + state.resends % (self.roster.n - 1)) % self.roster.n
            self.effects.append(Send(peer, self._fetch_words()))
        # The server that we asked may not have answered: the next one ahead of us is asked again.
        self.certificates.requested = False
        self.effects.append(SetTimer(RESEND, self.roster.wait_ms(state.resends)))
        state.resends += 1

    def _resent(self, message: Message) -> Send | Broadcast:
        """Return the effect that resends a message. After view 0 only the leader needs lists."""
        leader = self.state.leader
        is_for_leader = message.body.kind == LIST and self.state.view > 0 and leader != self.me
        if is_for_leader:
            return Send(leader, message)
        return Broadcast(message)
