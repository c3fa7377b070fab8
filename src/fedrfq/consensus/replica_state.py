"""What a server knows and has said, over the rounds: the chain of decisions, this round's messages, its own word."""

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
from fedrfq.consensus.messages import (
    LIST,
    PARTS,
    PREPARE,
    UPLOAD,
    Cert,
    Certificate,
    Evidence,
    Fetch,
    Kind,
    Message,
    Part,
    PartKind,
    Record,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.consensus.upload_pool import UploadPool

Slots = dict[int, Message]


class ReplicaState:
    """The state of a replica, and the few ways to change it that more than one rule needs."""

    __slots__ = (  # so many that a dictionary would be slow
        "abstains",
        "accused",
        "answers",
        "application",
        "asked",
        "asking",
        "chain",
        "changes",
        "commits",
        "computed",
        "due",
        "early",
        "effects",
        "holdings",
        "horizon",
        "ignored",
        "last_lists",
        "last_parts",
        "late",
        "leader",
        "lists",
        "me",
        "moved",
        "nonce",
        "origins",
        "outcome",
        "over",
        "own",
        "parts",
        "prepared",
        "prepares",
        "proposals",
        "quorum",
        "resends",
        "roster",
        "round",
        "rules",
        "signer",
        "silent",
        "timing",
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
        self.chain: dict[int, Certificate] = {}
        self.outcome: Outcome | None = application.start()
        self.ignored: Counter[str] = Counter()
        self.accused: dict[tuple[int, Kind, int], Message] = {}
        self.horizon = 0  # the furthest round we have heard of
        self.effects: list[Effect] = []
        self.moved = False  # whether something changed on which it depends what we say or decide
        self.last_lists: Slots = {}
        self.last_parts: dict[bytes, Part] = {}
        self.early: dict[tuple[Kind, int, int], tuple[int, Message]] = {}  # of the next round
        self.due: list[tuple[int, Message]] = []  # of this one, come while we were in the last
        self.over = False  # the last outcome ended the run
        self.nonce: bytes | None = (
            None  # our log is lost, and with this number we ask the others where they stand
        )
        self.answers: dict[int, int] = {}  # by server, the last round it showed us to be decided
        self.abstains = (
            0  # the last round in which an earlier life may have said something we do not know of
        )
        self._enter(1)

    def _enter(self, round_: int) -> None:
        self.round = round_
        self.moved = True
        self._enter_view(0)
        self.holdings = UploadPool(len(self.roster.clients))
        self.lists: Slots = {}
        self.proposals: Slots = {}
        self.prepares: Slots = {}
        self.commits: Slots = {}
        self.changes: Slots = {}
        self.own: dict[Kind, Message] = {}  # the last we signed of each kind
        self.prepared: Certificate | None = None
        self.parts: dict[bytes, Part] = {}
        self.computed: tuple[Entries, Record] | None = None
        self.origins: dict[Record, tuple[Message, ...]] = {}  # the lists a record followed from
        self.wanted: dict[bytes, Fetch] = {}
        self.asked: set[tuple[bytes, int]] = set()  # what, and whom
        self.late = self.asking = False
        self.resends = 0
        self.accused = {
            key: message for key, message in self.accused.items() if key[2] >= round_ - 1
        }
        self._weigh()
        self._set_timers()

    def _weigh(self) -> None:
        """Whether we must not say anything of our own: neither receipts, lists, votes, view changes nor change proposals."""
        self.silent = self.over or self.nonce is not None or self.round <= self.abstains

    def _enter_view(self, view: int) -> None:
        self.view, self.leader = view, self.roster.leader(self.round, view)
        self.timing = False

    def _set_timers(self) -> None:
        deadline = SetTimer(DEADLINE, self.roster.deadline_ms)
        resend = SetTimer(RESEND, self.roster.resend_ms)
        self.effects += [deadline, SetTimer(VIEW, None), resend]

    def _settle(self, certificate: Certificate, peer: int) -> None:
        """The round is decided: by our own count of votes, or by a certificate that a peer showed us."""
        record = certificate.record
        self.chain[self.round] = certificate
        message = self.rules.unsigned(Cert(self.round, certificate))
        self.last_lists = self.lists
        parts = self.parts
        self.last_parts = {name: parts[name] for name in record.parts() if name in parts}
        self._conclude(record)
        if self.outcome is not None and not self._voted_for(
            record
        ):  # computed, and never made durable
            self._persist_parts(record)
        self.effects += [
            Persist(message),
            Publish(message),
            Decided(certificate, self.outcome, self.origins.get(record, ())),
        ]
        self.due = list(self.early.values())
        self.early = {}
        self._enter(self.round + 1)
        if self.outcome is None:
            self._catch_up(record, peer)

    def _conclude(self, record: Record) -> None:
        self.outcome = self._outcome(record)
        self.over = self.outcome is not None and self.application.over(self.outcome)

    def _voted_for(self, record: Record) -> bool:
        mine = self.own.get(PREPARE)
        return mine is not None and mine.value == record.value(self.rules.run)

    def _outcome(self, record: Record) -> Outcome | None:
        """What a decided record stands for, if we have its parts."""
        parts = [
            self.last_parts.get(name) for name in (record.globals_, record.verdicts, record.state)
        ]
        if None not in parts:
            return Outcome(*(part.content for part in parts if part is not None))
        return None

    def _catch_up(self, record: Record, peer: int) -> None:
        for what, name in list(zip(PARTS, record.parts(), strict=True))[1:]:
            if name not in self.last_parts:
                self._want(Fetch(record.round, what, name), peer)

    def _caught_up(self) -> None:
        certificate = self.chain[self.round - 1]
        self._conclude(certificate.record)
        if self.outcome is not None:
            self.moved = True
            self._weigh()
            self.effects += [
                Persist(self.rules.unsigned(part)) for part in self.last_parts.values()
            ]
            self.effects.append(Decided(certificate, self.outcome, ()))

    def _previous(self) -> bytes:
        last = self.chain.get(self.round - 1)
        if last is None:
            return self.rules.run
        return last.record.value(self.rules.run)

    def _keep_parts(self, parts: dict[bytes, Part]) -> None:
        """Those of the newest computation, and every set of this round: what we once voted for may bind a later view, by a
        certificate that a faulty server has kept to itself, and then nobody else can hand it out."""
        self.parts = {
            name: part for name, part in self.parts.items() if part.what == PartKind.SET
        } | parts

    def _persist_parts(self, record: Record) -> None:
        self.effects += [
            Persist(self.rules.unsigned(self.parts[name]))
            for name in record.parts()
            if name in self.parts
        ]

    def _want(self, fetch: Fetch, peer: int) -> None:
        self.wanted[fetch.digest] = fetch
        if peer != self.me and (fetch.digest, peer) not in self.asked:
            self.asked.add((fetch.digest, peer))
            self.effects.append(Send(peer, self.rules.unsigned(fetch)))

    def _keep(self, slots: Slots, message: Message, least: int) -> bool:
        """One message of each sender, that of the highest view; two of one view prove a lie. Fewer than `least` of them
        change nothing."""
        held = slots.get(message.server)
        if held is None or message.view > held.view:
            slots[message.server] = message
            self.moved |= len(slots) >= least
            return True
        if (
            held is not message
            and held.raw != message.raw
            and self.rules.conflict(held.body, message.body)
        ):
            self._accuse(held, message)
        return False

    def _accuse(self, first: Message, second: Message) -> None:
        evidence = self.rules.unsigned(Evidence(first.body.round, first, second))
        if self._file(evidence):
            self.effects.append(Broadcast(evidence))

    def _file(self, message: Message) -> bool:
        """Keep evidence, once for each party, kind and round."""
        evidence = message.body
        assert isinstance(evidence, Evidence)
        party = evidence.first.author
        assert party is not None
        key = (party, evidence.second.body.kind, evidence.round)
        if key in self.accused:
            return False
        self.accused[key] = message
        self.effects += [Persist(message), Accused(message)]
        return True

    def _ignore(self, reason: str) -> None:
        self.ignored[reason] += 1

    def _words(self) -> list[Message]:
        """What we have said last in this round: our list, before it our change proposal, and what we signed in this view."""
        # who misses what our list names asks for it
        if LIST in self.own:
            past = UPLOAD
        else:
            past = None
        return [
            m
            for kind, m in sorted(self.own.items())
            if kind != past and (kind <= LIST or m.view == self.view)
        ]
