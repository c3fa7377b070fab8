"""A client towards the committee: it says one thing a round, repeats it until the round is decided, ever less often, and
believes certificates alone. If it was promised a place in a round and did not get it, it shows the servers their receipts.

That it did not get it its owner reads in the verdicts, which are fetched anyway, and says `LeftOut`: no client ever asks for
a set, which names all clients. So a server that gave a receipt and did not list the upload is convicted if that left the
client out, and if the client is told so before the next round is decided: for so long servers keep the lists. If the upload
counted all the same, by others' lists, the lie comes out sooner or later: where few servers gave a receipt, a client shows
what it has in one round of `SHOWS`, so that liars who alone give receipts cannot make all clients speak up in every round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fedrfq.consensus.events import (
    RESEND,
    Broadcast,
    Decided,
    Effect,
    Event,
    Expired,
    LeftOut,
    Outcome,
    Persist,
    Received,
    Send,
    SetTimer,
    Submit,
)
from fedrfq.consensus.messages import (
    COMMIT,
    Cert,
    Certificate,
    Fetch,
    Message,
    Part,
    PartKind,
    Receipt,
    Record,
    Upload,
    part_digest,
)
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules

SHOWS = 8


class Client:
    """`log` is what earlier lives persisted: a signed upload is sent again, never made anew.

    `wants` are the parts of each outcome that it fetches, from one server after the other: `Decided` is said again once all
    are there, the others empty. If a round is so old that nobody has them any more, it goes on to the next.
    """

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        log: Iterable[Message] = (),
        wants: tuple[PartKind, ...] = (),
    ) -> None:
        self.rules = rules
        self.me = me
        self.signer = signer
        self.wants = wants
        self.ignored: Counter[str] = Counter()
        self.effects: list[Effect] = []
        self.asks = me  # the server asked last: clients ask different ones
        self.last: Certificate | None = None
        self.parts: dict[PartKind, bytes] = {}  # of the last outcome, those wanted and there
        self.promises: dict[int, Message] = {}  # the last round's receipts, until they are shown
        self._enter(1)
        for message in log:
            self._recall(message)
        self.effects = []

    def step(self, event: Event) -> list[Effect]:
        if type(event) is Received:
            self._receive(event.peer, event.message)
        elif type(event) is Submit:
            self._upload(event.round, event.content)
        elif type(event) is LeftOut:
            self._complain(event.round)
        elif type(event) is Expired or self.last is not None or self.upload is not None:
            self._resend()
        else:
            self._set_timer()
        effects = self.effects
        self.effects = []
        return effects

    def _enter(self, round_: int) -> None:
        self.round = round_
        self.resends = 0
        self.upload: Message | None = None
        self.receipts: dict[int, Message] = {}

    def _upload(self, round_: int, content: bytes) -> None:
        if round_ != self.round or self.upload is not None:
            return
        self.upload = self.rules.signed(Upload(round_, self.me, content), self.signer)
        self.effects += [Persist(self.upload), Broadcast(self.upload)]
        self.resends = 0
        self._set_timer()

    def _resend(self) -> None:
        """To the servers that gave no receipt; and ask one server after the other whether the round is over."""
        missing = [server for server in range(self.rules.roster.n) if server not in self.receipts]
        if self.upload is not None:
            self.effects += [Send(server, self.upload) for server in missing]
        self.asks += 1
        fetches = [Fetch(self.round, PartKind.CERT), *self.lacking()]
        self.effects += [
            Send(self.asks % self.rules.roster.n, self.rules.unsigned(fetch)) for fetch in fetches
        ]
        self._set_timer()
        self.resends += 1

    def lacking(self) -> list[Fetch]:
        """The parts of the last outcome that are wanted and not there yet."""
        if self.last is None:
            return []
        record = self.last.record
        return [
            Fetch(record.round, what, _named(record, what))
            for what in self.wants
            if what not in self.parts
        ]

    def _set_timer(self) -> None:
        self.effects.append(SetTimer(RESEND, self.rules.roster.wait_ms(self.resends)))

    def _receive(self, peer: int, message: Message) -> None:
        body = message.body
        if message.run != self.rules.run:
            self.ignored["another run"] += 1
        elif type(body) is Cert:
            self._on_cert(peer, body)
        elif type(body) is Receipt:
            self._on_receipt(message)
        elif type(body) is Part:
            self._on_body(body)

    def _on_cert(self, peer: int, body: Cert) -> None:
        certificate = body.certificate
        if certificate.record.round < self.round:
            self.ignored["old round"] += 1
        elif not self.rules.certifies(certificate, COMMIT):
            self.ignored["bad certificate"] += 1
        else:
            self._settle(peer, certificate)

    def _settle(self, peer: int, certificate: Certificate) -> None:
        """Who tells us first is asked for the parts; and another, if the last round's have not come: it may be the one that
        keeps them back. The timer runs on then, or rounds in quick succession would set it back for ever."""
        record = certificate.record
        asked = {peer}
        starved = bool(self.lacking())
        self.last = certificate
        self.parts = {}
        self.effects += [
            Persist(self.rules.unsigned(Cert(record.round, certificate))),
            Decided(certificate, None, ()),
        ]
        if record.round == self.round:
            self.promises = self.receipts
        else:
            self.promises = {}
        self._enter(record.round + 1)
        if len(self.promises) <= 2 * self.rules.roster.f and (self.me + record.round) % SHOWS == 0:
            self._complain(record.round)
        if starved:
            self.asks += 1
            asked.add(self.asks % self.rules.roster.n)
        else:
            self._set_timer()
        self.effects += [
            Send(server, self.rules.unsigned(fetch))
            for server in sorted(asked)
            for fetch in self.lacking()
        ]

    def _on_receipt(self, message: Message) -> None:
        body = message.body
        assert isinstance(body, Receipt)
        ours = self.upload is not None and (body.round, body.client, body.digest) == (
            self.round,
            self.me,
            self.upload.digest,
        )
        if ours and self.rules.authentic(message):
            self.receipts[body.server] = message
        else:
            self.ignored["not a receipt of ours"] += 1

    def _on_body(self, body: Part) -> None:
        fetch = next(
            (
                fetch
                for fetch in self.lacking()
                if fetch.digest == part_digest(body.what, body.content)
            ),
            None,
        )
        if fetch is None:
            self.ignored["nobody asked"] += 1
            return
        self.parts[body.what] = body.content
        self.effects.append(
            Persist(self.rules.unsigned(Part(fetch.round, body.what, body.content)))
        )
        if not self.lacking():
            assert self.last is not None
            outcome = Outcome(
                *(
                    self.parts.get(what, b"")
                    for what in (PartKind.GLOBALS, PartKind.VERDICTS, PartKind.STATE)
                )
            )
            self.effects.append(Decided(self.last, outcome, ()))

    def _complain(self, round_: int) -> None:
        """Whoever gave us a receipt has to answer for it, once."""
        if self.last is not None and self.last.record.round == round_:
            self.effects += [Broadcast(receipt) for _, receipt in sorted(self.promises.items())]
            self.promises = {}

    def _recall(self, message: Message) -> None:
        body = message.body
        if isinstance(body, Upload):
            self.upload = message
        elif isinstance(body, Cert):
            self.last = body.certificate
            self.parts = {}
            self._enter(body.round + 1)
        elif isinstance(body, Part):
            self.parts[body.what] = body.content


def _named(record: Record, what: PartKind) -> bytes:
    """A part's digest, as the record names it."""
    return {
        PartKind.GLOBALS: record.globals_,
        PartKind.VERDICTS: record.verdicts,
        PartKind.STATE: record.state,
    }[what]
