"""What a server knows and has signed: the chain of decisions, and the current round's messages."""

from __future__ import annotations

from collections import Counter

from fedrfq.consensus.events import (
    DEADLINE,
    RESEND,
    VIEW,
    Accused,
    Application,
    Broadcast,
    Decided,
    Effect,
    Outcome,
    Persist,
    Publish,
    Send,
    SetTimer,
)
from fedrfq.consensus.evidence import Proofs
from fedrfq.consensus.messages import (
    LIST,
    OUTCOME,
    PREPARE,
    UPLOAD,
    Cert,
    Certificate,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Record,
    part_digest,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.upload_pool import UploadPool

Slots = dict[int, Message]  # one message by server
_ROUNDS_PER_QUESTION = 16  # after which the others are asked for evidence that we have missed


class ReplicaState:
    """The state of a replica, and the changes to it that more than one rule makes."""

    # Slots because there are so many attributes that a dictionary would be slow.
    __slots__ = (
        "abstains_through",
        "answers",
        "application",
        "certificate_requested",
        "chain",
        "changes",
        "commits",
        "computed",
        "early",
        "effects",
        "highest_round_heard",
        "ignored",
        "last_lists",
        "last_parts",
        "late",
        "leader",
        "lists",
        "lists_by_record",
        "me",
        "nonce",
        "outcome",
        "over",
        "own",
        "parts",
        "prepared",
        "prepares",
        "proofs",
        "proposals",
        "public",
        "quorum",
        "requested",
        "resends",
        "roster",
        "round",
        "rules",
        "signer",
        "silent",
        "state_changed",
        "timing",
        "to_replay",
        "upload_pool",
        "view",
        "wanted",
    )

    def __init__(self, rules: Rules, me: int, signer: Signer, application: Application) -> None:
        self.rules = rules
        self.roster = rules.roster
        self.me = me
        self.signer = signer
        self.application = application
        self.quorum = rules.roster.quorum
        self.chain: dict[int, Certificate] = {}  # by round, what was decided
        # The last decided round's outcome; None while only its certificate is known.
        self.outcome: Outcome | None = application.start()
        self.over = False  # whether that outcome ended the run
        self.ignored: Counter[str] = Counter()
        self.proofs = Proofs(rules, application)
        self.highest_round_heard = 0
        self.effects: list[Effect] = []
        # Whether something changed that may let us sign or decide something. Most messages change
        # nothing of the kind, and then the rules need not be tried.
        self.state_changed = False
        self.last_lists: Slots = {}
        self.last_parts: dict[bytes, Part] = {}
        # By its digest, the public part of the last outcome, if we know it: it is in our log, so
        # that the rounds that leave it as it is need not write it again. At first it is empty.
        self.public: dict[bytes, Part] = {
            part_digest(PartKind.PUBLIC, b""): Part(0, PartKind.PUBLIC, b"")
        }
        # Messages of the next round, and those of this one that came while we were in the last;
        # each with the peer that sent it.
        self.early: dict[tuple[Kind, int, int], tuple[int, Message]] = {}
        self.to_replay: list[tuple[int, Message]] = []
        # Rejoining after a lost log: the number in our question, each server's answer to it (the
        # last round it proved to be decided), and the last round in which we may already have
        # signed something that we no longer know of.
        self.nonce: bytes | None = None
        self.answers: dict[int, int] = {}
        self.abstains_through = 0
        self._enter_round(1)

    def _enter_round(self, round_: int) -> None:
        self.round = round_
        self.state_changed = True
        self._enter_view(0)
        self.upload_pool = UploadPool(len(self.roster.clients))
        self.lists: Slots = {}
        self.proposals: Slots = {}
        self.prepares: Slots = {}
        self.commits: Slots = {}
        self.changes: Slots = {}
        self.own: dict[Kind, Message] = {}  # the last message of each kind that we signed
        self.prepared: Certificate | None = None
        self.parts: dict[bytes, Part] = {}  # by digest
        self.computed: tuple[Entries, Record] | None = None
        self.lists_by_record: dict[Record, tuple[Message, ...]] = {}
        self.wanted: dict[bytes, Fetch] = {}  # by digest, what is missing
        self.requested: set[tuple[bytes, int]] = set()  # a digest, and the server we asked for it
        self.certificate_requested = False
        self.late = False  # whether the deadline has passed
        self.resends = 0
        self._update_silence()
        self._set_timers()

    def _update_silence(self) -> None:
        """Determine whether we must be silent.

        A silent server signs nothing: no receipts, lists, votes, view changes or change proposals.
        """
        self.silent = self.over or self.nonce is not None or self.round <= self.abstains_through

    def _enter_view(self, view: int) -> None:
        self.view = view
        self.leader = self.roster.leader(self.round, view)
        self.timing = False  # the view's timer starts once its leader can propose

    def _set_timers(self) -> None:
        deadline = SetTimer(DEADLINE, self.roster.deadline_ms)
        resend = SetTimer(RESEND, self.roster.resend_ms)
        self.effects += [deadline, SetTimer(VIEW, None), resend]

    # Deciding a round

    def _settle(self, certificate: Certificate, peer: int) -> None:
        """Conclude the round with a certificate, our own or one that a peer showed us."""
        record = certificate.record
        self.chain[self.round] = certificate
        message = self.rules.unsigned(Cert(self.round, certificate))
        self.last_lists = self.lists
        parts = self.public | self.parts
        self.last_parts = {name: parts[name] for name in record.parts() if name in parts}
        self._load_outcome(record)
        # If we voted for the record, its parts were made durable before the vote. They come
        # before the certificate in the log, so that a restart finds the outcome when it finds the
        # decision.
        if not self._voted_for(record):
            self._persist_parts(record)
        self.public = {name: part for name, part in parts.items() if name == record.public}
        self.effects += [
            Persist(message),
            Publish(message),
            Decided(certificate, self.outcome, self.lists_by_record.get(record, ())),
        ]
        self.to_replay = list(self.early.values())
        self.early = {}
        self._enter_round(self.round + 1)
        if self.outcome is None:
            self._fetch_outcome(record, peer)
        # Evidence is told to all once, and may be lost on the way.
        if self.round % _ROUNDS_PER_QUESTION == 0:
            self._ask_for_evidence()

    def _load_outcome(self, record: Record) -> None:
        self.outcome = self._outcome(record)
        self.over = self.outcome is not None and self.application.over(self.outcome)

    def _voted_for(self, record: Record) -> bool:
        vote = self.own.get(PREPARE)
        return vote is not None and vote.value == record.value(self.rules.run)

    def _outcome(self, record: Record) -> Outcome | None:
        """Return the outcome that a decided record names, if we have all its parts."""
        contents = []
        for name in record.outcome():
            part = self.last_parts.get(name)
            if part is None:
                return None
            contents.append(part.content)
        return Outcome(*contents)

    def _fetch_outcome(self, record: Record, peer: int) -> None:
        """Ask a peer for the parts of a decided round that we lack, all but its set of uploads."""
        for what, name in zip(OUTCOME, record.outcome(), strict=True):
            if name not in self.last_parts:
                self._request(Fetch(record.round, what, name), peer)

    def _finish_catching_up(self) -> None:
        """Report the last round's outcome once all its parts are here."""
        certificate = self.chain[self.round - 1]
        self._load_outcome(certificate.record)
        if self.outcome is not None:
            self.state_changed = True
            self._update_silence()
            self.effects += [
                Persist(self.rules.unsigned(part))
                for name, part in self.last_parts.items()
                if name not in self.public
            ]
            self.effects.append(Decided(certificate, self.outcome, ()))

    def _previous(self) -> bytes:
        """Return the value of the previous round; before the first, it is the run's id."""
        last = self.chain.get(self.round - 1)
        if last is None:
            return self.rules.run
        return last.record.value(self.rules.run)

    # Parts of records

    def _keep_parts(self, parts: dict[bytes, Part]) -> None:
        """Keep the parts of the newest computation, and every set of this round.

        A faulty server may have kept to itself a prepared certificate for a record we once voted
        for. If it shows the certificate in a later view, the record binds that view, and perhaps
        nobody else can supply its set.
        """
        sets = {name: part for name, part in self.parts.items() if part.what == PartKind.SET}
        self.parts = sets | parts

    def _persist_parts(self, record: Record) -> None:
        self.effects += [
            Persist(self.rules.unsigned(self.parts[name]))
            for name in record.parts()
            if name in self.parts and name not in self.public
        ]

    def _request(self, fetch: Fetch, peer: int) -> None:
        """Note that something is missing, and ask a peer for it once; resends ask everybody."""
        self.wanted[fetch.digest] = fetch
        if peer != self.me and (fetch.digest, peer) not in self.requested:
            self.requested.add((fetch.digest, peer))
            self.effects.append(Send(peer, self.rules.unsigned(fetch)))

    # Messages and evidence

    def _keep(self, slots: Slots, message: Message, threshold: int) -> bool:
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
            self._accuse(held, message)
        return False

    def _accuse(self, first: Message, second: Message) -> None:
        """Record two conflicting messages as evidence, and tell the others if it is new."""
        evidence = self.proofs.accuse(first, second)
        if evidence is not None:
            self.effects += [Persist(evidence), Accused(evidence), Broadcast(evidence)]

    def _ask_for_evidence(self) -> None:
        """Ask all other servers for the proofs of misbehaviour that we have missed."""
        others = [server for server in range(self.roster.n) if server != self.me]
        self.effects.append(Broadcast(self.proofs.ask(others)))

    def _ignore(self, reason: str) -> None:
        """Count a message that has no effect; the reasons are shown in a server's status."""
        self.ignored[reason] += 1

    def _latest_signed(self) -> list[Message]:
        """Return what we signed last in this round, as others may have missed it.

        That is our list, or before it our change proposal, and what we signed in this view.
        """
        # Whoever lacks the change proposal that our list names asks for it.
        superseded = UPLOAD if LIST in self.own else None
        return [
            message
            for kind, message in sorted(self.own.items())
            if kind != superseded and (kind <= LIST or message.view == self.view)
        ]
