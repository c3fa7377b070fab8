"""A server of the committee as a PBFT state machine: no I/O, no clock, no randomness.

There is one PBFT instance per round, and time is an event. A step takes in one event and then
applies the rules, one after the other, until none applies any more: close the round, join a
higher view, start the view's timer, propose, prepare, commit, decide. The same set of messages
leads to the same state in any order.
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
    """One server's replica.

    `log` holds the messages that the server persisted before a restart, in order, or what
    `compacted` left of them. A compacted log may start with nothing but the commit certificates
    of all rounds so far, in order, next to them the parts of the last round's outcome, and the
    mark of a server that rejoins.
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
        # What recalling the log would send or persist was sent or persisted before the restart.
        self.effects = []

    def step(self, event: Event) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in order."""
        # By exact type, the most frequent first: this is the hottest path of a server.
        if type(event) is Received:
            self._receive(event.peer, event.message)
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
            (self.to_replay and self._replay())
            or (not self.silent and self._speak())
            or (len(self.commits) >= self.quorum and self._decide())
        ):
            pass

    def _speak(self) -> bool:
        """Apply the first of the rules that sign something; return whether one applied."""
        # Joining a view comes before acting in one, so that nothing is signed in a view which we
        # are about to leave.
        return (
            (LIST not in self.own and self._close())
            or (bool(self.changes) and self._join())
            or (len(self.changes if self.view else self.lists) >= self.quorum and self._run_view())
            or (bool(self.proposals) and self._vote())
        )

    def _run_view(self) -> bool:
        """Start the view's timer, and propose if we lead the view."""
        return (not self.timing and self._start_view_timer()) or (
            self.leader == self.me and self._propose()
        )

    def _vote(self) -> bool:
        # One vote of each kind in a view; what was signed in a later view counts as signed too.
        if self._signed(PREPARE):
            return not self._signed(COMMIT) and self._commit()
        # Without the last round's outcome nothing can be computed.
        return self.outcome is not None and self._prepare()

    # The rules, in the order of a round. Each returns whether it did something.

    def _replay(self) -> bool:
        """Take in the messages of this round that came while we were in the last."""
        early = self.to_replay
        self.to_replay = []
        for peer, message in early:
            self._receive(peer, message)
        return True

    def _close(self) -> bool:
        """Close the round with our list, when all clients have sent, or late when enough have."""
        held = self.upload_pool.held
        if held < len(self.roster.clients) and not self._overdue(held):
            return False
        # From here on no receipt is given for a new upload: this list is the only one we ever sign.
        self._sign(UploadList(self.round, self.me, self.upload_pool.entries()))
        self._fetch_listed()
        return True

    def _fetch_listed(self) -> None:
        """Ask each server for the uploads that its list names and we lack."""
        for server, lacking in self.upload_pool.lacking.items():
            self._fetch_missing(tuple(sorted(lacking)), server)

    def _overdue(self, held: int) -> bool:
        return self.late and held >= self.roster.minimum

    def _join(self) -> bool:
        """Join the highest view that f + 1 others have asked for (section 4.5.2).

        One of them is honest. Fewer could be faulty servers that change views without need.
        """
        views = [
            message.view
            for server, message in self.changes.items()
            if message.view > self.view and server != self.me
        ]
        if len(views) <= self.roster.f:
            return False
        # The (f + 1)-th highest: so many servers have asked for it or for a higher view.
        self._leave_for(sorted(views, reverse=True)[self.roster.f])
        return True

    def _leave_for(self, view: int) -> None:
        """Leave the current view for a higher one, and tell the others."""
        self._enter_view(view)
        self.resends = 0
        self.effects += [SetTimer(VIEW, None), SetTimer(RESEND, self.roster.resend_ms)]
        last = self.chain.get(self.round - 1)
        self._sign(ViewChange(self.round, view, self.me, self.prepared, last))
        # The resend timer, which would ask everybody for what is missing, was just set back, so the
        # new leader is asked at once.
        if self.leader != self.me:
            self.effects += [
                Send(self.leader, self.rules.unsigned(fetch)) for fetch in self.wanted.values()
            ]

    def _start_view_timer(self) -> bool:
        """Start the view's timer once its leader can propose.

        So leaders are not blamed for absent clients.
        """
        if not self._leader_can_propose():
            return False
        self.timing = True
        self.effects.append(SetTimer(VIEW, self.roster.timeout_ms(self.view)))
        return True

    def _leader_can_propose(self) -> bool:
        """Return whether we ourselves hold what the leader needs: n − f lists, or view changes."""
        if self.view == 0:
            needed = self.roster.n - self.roster.f
            return len(self.lists) >= needed and len(self._usable_lists()) >= needed
        # A sender's later view change has replaced the one to this view, so it counts too.
        in_view = [s for s, message in self.changes.items() if message.view >= self.view]
        return self.rules.enough(in_view)

    def _usable_lists(self) -> list[Message]:
        """Return the lists all of whose uploads we hold, by ascending server."""
        return [
            self.lists[server]
            for server in sorted(self.lists)
            if not self.upload_pool.lacking.get(server)
        ]

    def _propose(self) -> bool:
        """Propose, as leader, what is prepared if anything is, else what n − f lists yield."""
        # A second proposal in one view would be evidence against us.
        if self.outcome is None or self._signed(PREPREPARE):
            return False
        changes = self._changes_for_view()
        if self.view > 0 and not self.rules.enough([change.server for change in changes]):
            return False
        # Some server may have decided what is prepared, so it must be proposed again as it is.
        bound = self.rules.bound(changes)
        if bound is not None:
            self._sign(PrePrepare(self.round, self.view, self.me, bound.record, (), changes))
            return True
        needed = self.roster.n - self.roster.f
        lists = tuple(self._usable_lists()[:needed])
        if len(lists) < needed:
            return False
        entries, _ = self.rules.union(lists)
        record = self._compute(entries, lists)
        self._sign(PrePrepare(self.round, self.view, self.me, record, lists, changes))
        return True

    def _changes_for_view(self) -> tuple[Message, ...]:
        """Return the view changes for exactly this view; view 0 has none."""
        if self.view == 0:
            return ()
        by_server = sorted(self.changes.items())
        return tuple(message for _, message in by_server if message.view == self.view)

    def _prepare(self) -> bool:
        """Vote for a proposal once we hold its uploads and have computed the same record."""
        proposal = self._proposal()
        if proposal is None or not self._follows(proposal):
            return False
        # The parts come before the vote: who has voted for a record can supply it after a restart.
        self._persist_parts(proposal.record)
        self._sign(Prepare(self.round, self.view, proposal.record.value(self.rules.run), self.me))
        return True

    def _proposal(self) -> PrePrepare | None:
        """Return this view's proposal, if we have it."""
        message = self.proposals.get(self.leader)
        if message is None:
            return None
        body = message.body
        if type(body) is PrePrepare and body.view == self.view:
            return body
        return None

    def _follows(self, proposal: PrePrepare) -> bool:
        """Return whether we compute the same record; false while something is missing."""
        entries = self._entries(proposal)
        return entries is not None and self._compute(entries, proposal.lists) == proposal.record

    def _entries(self, proposal: PrePrepare) -> Entries | None:
        """Return a proposal's set of uploads, once we hold all uploads that it depends on."""
        if proposal.lists:
            # The uploads that do not count are needed too: they prove that their clients sent two.
            single, double = self.rules.union(proposal.lists)
            if self._fetch_missing(single + double, proposal.server):
                return single
            return None
        # A record bound by an earlier view comes without lists. Its hash names the set.
        part = self.parts.get(proposal.record.set_)
        if part is None:
            self._request(Fetch(self.round, PartKind.SET, proposal.record.set_), proposal.server)
            return None
        entries = decode_entries(part.content)
        if self._fetch_missing(entries, proposal.server):
            return entries
        return None

    def _compute(self, entries: Entries, lists: tuple[Message, ...]) -> Record:
        """Return the record that these uploads lead to."""
        # It is asked for after every event, so the newest one is remembered.
        if self.computed is None or self.computed[0] != entries:
            self.computed = entries, self._compute_anew(entries)
        record = self.computed[1]
        if lists:
            self.lists_by_record.setdefault(record, lists)
        return record

    def _compute_anew(self, entries: Entries) -> Record:
        assert self.outcome is not None
        outcome = self.application.decide(
            self.round, self.outcome, self.upload_pool.bodies(entries)
        )
        record = self.rules.record(self.round, self._previous(), entries, outcome)
        contents = (write_entries(entries), *outcome)
        named_parts = zip(record.parts(), PARTS, contents, strict=True)
        self._keep_parts(
            {name: Part(self.round, what, content) for name, what, content in named_parts}
        )
        return record

    def _commit(self) -> bool:
        """Vote to commit once a quorum has prepared what we have (section 4.2).

        The prepared certificate is kept, and durable before the vote, because it binds later views.
        """
        if len(self.prepares) < self.quorum:
            return False
        own_vote = self.own[PREPARE]
        proposal = self._proposal()
        votes = self._votes(self.prepares, own_vote.view, own_vote.value)
        if proposal is None or not self.rules.enough([vote.server for vote in votes]):
            return False
        # After a restart we know our vote, but a faulty leader may have sent another proposal.
        value = proposal.record.value(self.rules.run)
        if value != own_vote.value:
            return False
        self.prepared = self.rules.certificate(votes, proposal.record)
        self.effects.append(Persist(self.rules.unsigned(Cert(self.round, self.prepared))))
        self._sign(Commit(self.round, self.view, value, self.me))
        return True

    def _votes(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        """Return the votes of one view for one value."""
        return [vote for vote in slots.values() if vote.view == view and vote.value == value]

    def _decide(self) -> bool:
        """Decide on a quorum of commits of one view for one value, whatever view we are in."""
        # Sorted, so that the result does not depend on the order in which votes came.
        for view, value in sorted({(vote.view, vote.value) for vote in self.commits.values()}):
            votes = self._votes(self.commits, view, value)
            record = self._record(value)
            if record is not None and self.rules.enough([vote.server for vote in votes]):
                self._settle(self.rules.certificate(votes, record), votes[0].server)
                return True
        return False

    def _record(self, value: bytes) -> Record | None:
        """Return the record with this value, if we have seen it."""
        known = [m.body.record for m in self.proposals.values() if isinstance(m.body, PrePrepare)]
        if self.prepared is not None:
            known.append(self.prepared.record)
        return next((record for record in known if record.value(self.rules.run) == value), None)

    # Signing

    def _signed(self, kind: Kind) -> bool:
        """Return whether we have signed a message of this kind in this view or a later one."""
        return kind in self.own and self.own[kind].view >= self.view

    def _sign(self, body: AnyMessage) -> None:
        """Sign a message, make it durable, send it to all others, and count it ourselves.

        The order matters: what is sent before it is durable may be contradicted after a restart.
        """
        message = self.rules.signed(body, self.signer)
        self.own[body.kind] = message
        self.effects += [Persist(message), Broadcast(message)]
        self._handle(self.me, message)

    def _submit_proposal(self, round_: int, content: bytes) -> None:
        """Upload a change proposal, as a client would, once a round and before we close it.

        No round waits for change proposals, but those that are listed count.
        """
        if round_ != self.round or self.silent or LIST in self.own or UPLOAD in self.own:
            return
        body = Upload(round_, self.roster.proposal_client(self.me), content)
        if self.application.refuses(body) is None:
            message = self.rules.signed(body, self.signer)
            self.own[UPLOAD] = message
            # It persists the upload, which must come before the broadcast.
            self._store_upload((body.client, message.digest), message)
            self.effects.append(Broadcast(message))

    # Timers

    def _start(self) -> None:
        """Begin. After a restart, resend what we signed and ask the others what they signed."""
        self.state_changed = True
        self._set_timers()
        self._start_rejoining()
        if self.own or self.chain:
            self._ask_for_evidence()
        if (self.own or self.chain) and not self.over:
            self._resend()
            self.effects.append(Broadcast(self.rules.unsigned(Fetch(self.round, PartKind.WORDS))))

    def _expire(self, timer: Timer) -> None:
        if timer is RESEND:
            self._resend()
        # A view's timer may ring late, when we have left the view or the round.
        elif timer is VIEW and self.timing and not self.silent:
            self._leave_for(self.view + 1)
        elif timer is DEADLINE:
            self.late = True
            self.state_changed = True
            self._report_too_few()

    def _report_too_few(self) -> None:
        """Report if too few clients have sent by the deadline, and fetch what others list."""
        held = self.upload_pool.held
        if held >= self.roster.minimum or self.over:
            return
        # A silent server fetches too: its silence may end while others wait for its list.
        self._fetch_listed()
        if not self.silent:
            self.effects.append(Waiting(held, self.roster.minimum))

    def _resend(self) -> None:
        """Send again what we signed last, and ask again for what is missing, as messages get lost.

        The longer a view lasts, the less often. When the run is over there is nothing left to send.
        """
        if self.over:
            return
        self._ask_standings()
        self.effects += [self._resent(message) for message in self._latest_signed()]
        self.effects += [Broadcast(self.rules.unsigned(fetch)) for fetch in self.wanted.values()]
        # The view's timer ends a view that is stuck. While it does not run, ask one server after
        # the other for what it signed.
        if self.roster.n > 1 and not self.timing:
            peer = (self.me + 1 + self.resends % (self.roster.n - 1)) % self.roster.n
            self.effects.append(Send(peer, self.rules.unsigned(Fetch(self.round, PartKind.WORDS))))
        # The server that we asked may not have answered: the next one ahead of us is asked again.
        self.certificate_requested = False
        self.effects.append(SetTimer(RESEND, self.roster.wait_ms(self.resends)))
        self.resends += 1

    def _resent(self, message: Message) -> Send | Broadcast:
        """Return the effect that resends a message. After view 0 only the leader needs lists."""
        is_for_leader = message.body.kind == LIST and self.view > 0 and self.leader != self.me
        if is_for_leader:
            return Send(self.leader, message)
        return Broadcast(message)

    # Restart

    def _recall(self, message: Message) -> None:
        """Take up a message from the log."""
        body = message.body
        if isinstance(body, Cert):
            self._recall_certificate(body.certificate)
        elif isinstance(body, Fetch | Part) and body.what == PartKind.STANDING:
            self._recall_standing(body)
        elif isinstance(body, Part):
            self._recall_part(message, body)
        # Before the check of the round: proofs are kept whatever their round is.
        elif isinstance(body, Evidence):
            self.proofs.recall(message)
        elif body.round < self.round:
            return
        elif isinstance(body, Upload):
            self._recall_upload(message, body)
        else:
            # What we signed in a view binds us to it: we must not go back to an earlier one.
            self.own[body.kind] = message
            self._enter_view(max(self.view, message.view))
            self._handle(self.me, message)

    def _recall_upload(self, message: Message, body: Upload) -> None:
        # Uploads that come after our list in the log were fetched for others' lists.
        is_open = LIST not in self.own
        self.upload_pool.store((body.client, message.digest), message, promise=is_open)
        if body.client == self.roster.proposal_client(self.me):
            self.own[UPLOAD] = message

    def _recall_part(self, message: Message, body: Part) -> None:
        """Take up a part of this round or of the last.

        Its round tells which: two rounds may have a part in common, so its digest does not.
        """
        name = part_digest(body.what, body.content)
        if body.round >= self.round:
            self.parts[name] = body
        elif name in self.wanted:
            self._on_part(self.me, message)
        else:
            self.last_parts[name] = body

    def _recall_certificate(self, certificate: Certificate) -> None:
        if certificate.phase == PREPARE:
            self.prepared = certificate
            return
        # A log may start at a later round: a simulated round is given the last one's decision only.
        if certificate.record.round != self.round:
            self._enter_round(certificate.record.round)
        self._settle(certificate, self.me)
