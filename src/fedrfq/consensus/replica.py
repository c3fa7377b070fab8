"""A server of the committee as a PBFT state machine: no I/O, no clock, no randomness.

There is one PBFT instance per round, and time is an event. A step takes in one event and then
applies the rules, one after the other, until none applies any more: close the round, join a
higher view, start the view's timer, propose, prepare, commit, decide. The same set of messages
leads to the same state in any order.

A replica has its parts, each with state of its own. A part knows no other part: what concerns
several of them is done here, or by functions of the replica: in `inbox` and `answers` when a
message comes in, in `timers` when time has passed, in `settling` when a round is decided, and in
`restart`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, ClassVar

from fedrfq.consensus.certificates import Certificates
from fedrfq.consensus.early_messages import EarlyMessages
from fedrfq.consensus.events import (
    RESEND,
    VIEW,
    Accused,
    Application,
    Broadcast,
    Effect,
    Event,
    Expired,
    Outcome,
    Persist,
    Propose,
    Received,
    Send,
    SetTimer,
    Start,
)
from fedrfq.consensus.evidence import Proofs
from fedrfq.consensus.inbox import HANDLERS, Handler, receive, store
from fedrfq.consensus.input_pool import InputPool
from fedrfq.consensus.messages import (
    COMMIT,
    LIST,
    PARTS,
    PREPARE,
    PREPREPARE,
    PROPOSAL,
    AnyMessage,
    Cert,
    Certificate,
    ChangeProposal,
    Commit,
    Entries,
    Fetch,
    Inputs,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.record_parts import RecordParts
from fedrfq.consensus.rejoin import Rejoining
from fedrfq.consensus.replica_state import ReplicaState
from fedrfq.consensus.requests import Requests
from fedrfq.consensus.restart import recall
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.settling import persisted, settle
from fedrfq.consensus.timers import expire, set_timers, start
from fedrfq.consensus.upload_lists import UploadLists
from fedrfq.consensus.view_changes import ViewChanges
from fedrfq.consensus.votes import Slots, Votes


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
    make_proofs: ClassVar[type[Proofs]] = Proofs

    __slots__ = (
        "application",
        "certificates",
        "early",
        "effects",
        "forgers",
        "ignored",
        "me",
        "proofs",
        "proposal_pool",
        "quorum",
        "record_parts",
        "rejoining",
        "requests",
        "roster",
        "rules",
        "signer",
        "state",
        "state_changed",
        "upload_lists",
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
        self.proofs = self.make_proofs(rules, application)
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
        self.upload_pool: InputPool[Upload] = InputPool()
        self.proposal_pool: InputPool[ChangeProposal] = InputPool()
        self.upload_lists = UploadLists(last_lists)
        self.votes = self.make_votes()
        self.view_changes = ViewChanges()
        self.requests = Requests(self.rules)
        set_timers(self)

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
        """Whether the run has ended, and we know its outcome and successor."""
        return self.state.over and self.state.outcome is not None

    @property
    def silent(self) -> bool:
        """Whether we must sign nothing: no receipts, lists, votes, view changes or proposals."""
        state = self.state
        return state.over or self.rejoining.silences(state.round)

    # Steps

    def step(self, event: Event) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in order."""
        # By exact type, the most frequent first: this is the hottest path of a server.
        if type(event) is Received:
            receive(self, event.peer, event.message)
        elif type(event) is Expired:
            expire(self, event.timer)
        elif type(event) is Start:
            start(self)
        elif type(event) is Propose:
            self._propose_change(event.round, event.content)
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
                len(changes if state.view else self.upload_lists.current) >= self.quorum
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
        held = self.upload_pool.held
        if held < len(self.roster.clients) and not self._overdue(held):
            return False
        uploads = self.upload_pool.entries()
        proposals = self.proposal_pool.entries()
        # From here on no receipt is given for a new upload: this list is the only one we ever sign.
        self._sign(UploadList(self.state.round, self.me, uploads, proposals))
        self.fetch_listed()
        return True

    def fetch_listed(self) -> None:
        """Ask each server for what its list names and we lack."""
        proposals = self.proposal_pool.lacking
        for server, uploads in self.upload_pool.lacking.items():
            lacking = Inputs(tuple(sorted(uploads)), tuple(sorted(proposals[server])))
            self.fetch_missing(lacking, server)

    def _overdue(self, held: int) -> bool:
        return self.state.late and held >= self.roster.minimum

    def _join(self) -> bool:
        """Join a higher view that enough others have asked for."""
        view = self.view_changes.view_to_join(self.state.view, self.me, self.roster.f)
        if view is None:
            return False
        self.leave_for(view)
        return True

    def leave_for(self, view: int) -> None:
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
        return len(self.upload_lists.current) >= needed and len(self._usable_lists()) >= needed

    def _usable_lists(self) -> list[Message]:
        """Return the lists of which we hold all uploads and proposals, by ascending server."""
        uploads = self.upload_pool.lacking
        proposals = self.proposal_pool.lacking
        lists = sorted(self.upload_lists.current.items())
        return [message for server, message in lists if not (uploads[server] or proposals[server])]

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
        lists = tuple(self.verified(self.upload_lists.current, self._usable_lists(), needed))
        if not lists:
            return False
        inputs, _ = self.rules.union(lists)
        record = self._compute(inputs, lists)
        self._sign(PrePrepare(state.round, state.view, self.me, record, lists, changes))
        return True

    def _prepare(self) -> bool:
        """Vote for a proposal once we hold its uploads and have computed the same record."""
        proposal = self._proposal()
        if proposal is None or not self._follows(proposal):
            return False
        state = self.state
        # The parts come before the vote: who has voted for a record can supply it after a restart.
        self.effects += persisted(self, proposal.record)
        self._sign(Prepare(state.round, state.view, proposal.record.value(self.rules.run), self.me))
        return True

    def _proposal(self) -> PrePrepare | None:
        """Return this view's proposal, if we have it."""
        return self.votes.proposal(self.state.leader, self.state.view)

    def _follows(self, proposal: PrePrepare) -> bool:
        """Return whether we compute the same record; false while something is missing."""
        inputs = self._inputs(proposal)
        return inputs is not None and self._compute(inputs, proposal.lists) == proposal.record

    def _inputs(self, proposal: PrePrepare) -> Inputs | None:
        """Return a proposal's set, once we hold all uploads and proposals that it depends on."""
        if proposal.lists:
            counted, repeated = self.rules.union(proposal.lists)
            holds_counted = self.fetch_missing(counted, proposal.server)
            # What does not count is needed too: it proves that its authors sent two.
            if self.fetch_missing(repeated, proposal.server) and holds_counted:
                return counted
            return None
        # A record bound by an earlier view comes without lists. Its hash names the set.
        set_ = proposal.record.set_
        part = self.record_parts.current.get(set_)
        if part is None:
            self.request(Fetch(self.state.round, PartKind.SET, set_), proposal.server)
            return None
        inputs = Inputs.decode(part.content)
        if self.fetch_missing(inputs, proposal.server):
            return inputs
        return None

    def _compute(self, inputs: Inputs, lists: tuple[Message, ...]) -> Record:
        """Return the record that these uploads and proposals lead to."""
        parts = self.record_parts
        if parts.computed is None or parts.computed[0] != inputs:
            parts.computed = inputs, self._compute_anew(inputs)
        record = parts.computed[1]
        if lists:
            parts.lists_by_record.setdefault(record, lists)
        return record

    def _compute_anew(self, inputs: Inputs) -> Record:
        round_ = self.state.round
        assert self.state.outcome is not None
        uploads = self.upload_pool.bodies(inputs.uploads)
        outcome = self.application.decide(round_, self.state.outcome, uploads)
        if inputs.proposals:
            outcome = outcome._replace(successor=self._successor(inputs))
        previous = self.certificates.value_before(round_)
        record = self.rules.record(round_, previous, inputs, outcome)
        contents = (inputs.write(), *outcome)
        named_parts = zip(record.parts(), PARTS, contents, strict=True)
        self.record_parts.keep(
            {name: Part(round_, what, content) for name, what, content in named_parts}
        )
        return record

    def _successor(self, inputs: Inputs) -> bytes:
        """Return the federation that follows, if enough of the proposals are for the same."""
        return self.rules.successor(self.proposal_pool.bodies(inputs.proposals))

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
        settle(self, self.rules.certificate(votes, quorum.record), votes[0].server)
        return True

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
            self._drop(slots, self.rules.forged((held, message)))
            # This keeps nothing unless both signatures hold.
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

    def _propose_change(self, round_: int, content: bytes) -> None:
        """Propose the federation that is to follow, once a round and before we close it.

        No round waits for change proposals, but those that are listed count.
        """
        own = self.state.own
        if round_ != self.state.round or self.silent or LIST in own or PROPOSAL in own:
            return
        if self.application.refuses_successor(content) is None:
            message = self.rules.signed(ChangeProposal(round_, self.me, content), self.signer)
            own[PROPOSAL] = message
            # It persists the proposal, which must come before the broadcast.
            store(self, self.proposal_pool, (self.me, message.digest), message)
            self.effects.append(Broadcast(message))

    def request(self, fetch: Fetch, peer: int) -> None:
        """Note that something is missing, and ask a peer for it once; resends ask everybody."""
        if self.requests.add(fetch, peer) and peer != self.me:
            self.effects.append(Send(peer, self.rules.unsigned(fetch)))

    def fetch_missing(self, inputs: Inputs, peer: int) -> bool:
        """Ask a peer for those uploads and proposals that we lack; return whether we hold all."""
        holds_uploads = self._fetch_entries(PartKind.UPLOAD, self.upload_pool, inputs.uploads, peer)
        if not inputs.proposals:  # as in almost all rounds
            return holds_uploads
        proposals = self.proposal_pool
        return (
            self._fetch_entries(PartKind.PROPOSAL, proposals, inputs.proposals, peer)
            and holds_uploads
        )

    def _fetch_entries(
        self, what: PartKind, pool: InputPool[Any], entries: Entries, peer: int
    ) -> bool:
        missing = pool.missing(entries)
        for _, digest in missing:
            # If we hold the digest, the list names it for the wrong party: there is no such
            # message.
            if pool.find(digest) is None:
                self.request(Fetch(self.state.round, what, digest), peer)
        return not missing
