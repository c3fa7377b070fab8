"""A client of the committee as a state machine.

It sends one upload a round, resends it ever less often until the round is decided, and believes
nothing but certificates.

A client that was promised a place in a round and did not get it shows the servers their receipts.
Its owner finds out from the certified verdicts, which it fetches anyway, and says so with
`LeftOut`: no client ever asks for a set, which names all clients. So a server that gave a receipt
and did not list the upload is convicted if the client was left out and its owner says so before
the next round is decided: servers keep the lists no longer than that.

If the upload counted all the same, thanks to other servers' lists, the lie comes out sooner or
later: where few servers gave a receipt, a client shows what it has in one round of
`ROUNDS_PER_SHOW`. So liars who alone give receipts cannot make all clients speak up in every
round.
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
    OUTCOME,
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
from fedrfq.consensus.records import EMPTY_PARTS
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules

ROUNDS_PER_SHOW = 8


class Client:
    """One client.

    `log` holds the messages that it persisted before a restart: a signed upload is sent again,
    never signed anew. `wants` are the parts of each outcome that it fetches, from one server
    after the other. It reports `Decided` again once all of them are there; the other parts are
    empty. If a round is so old that nobody has its parts any more, the client goes on to the
    next. `public` is the public part that it had before the first round: it is fetched only when
    another one is certified.
    """

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        log: Iterable[Message] = (),
        wants: tuple[PartKind, ...] = (),
        public: bytes = b"",
    ) -> None:
        self.rules = rules
        self.me = me
        self.signer = signer
        self.wants = wants
        self.ignored: Counter[str] = Counter()
        self.effects: list[Effect] = []
        self.asks = me  # modulo n, the server asked last; clients start with different ones
        self.last: Certificate | None = None
        # The wanted parts of the last outcome, so far.
        self.parts: dict[PartKind, bytes] = {PartKind.PUBLIC: public}
        self.promises: dict[int, Message] = {}  # the last round's receipts, until they are shown
        self._enter_round(1)
        for message in log:
            self._recall(message)
        # What recalling the log would send was sent before the restart.
        self.effects = []

    def step(self, event: Event) -> list[Effect]:
        """Take in one event, and return the effects to carry out, in order."""
        if type(event) is Received:
            self._receive(event.peer, event.message)
        elif type(event) is Submit:
            self._sign_upload(event.round, event.content)
        elif type(event) is LeftOut:
            self._show_receipts(event.round)
        elif type(event) is Expired or self.last is not None or self.upload is not None:
            self._resend()
        else:
            # The very first start: there is nothing to send yet.
            self._set_timer()
        effects = self.effects
        self.effects = []
        return effects

    def _enter_round(self, round_: int) -> None:
        self.round = round_
        self.resends = 0
        self.upload: Message | None = None
        self.receipts: dict[int, Message] = {}  # by server, for our upload of this round

    def _sign_upload(self, round_: int, content: bytes) -> None:
        """Sign and send the upload of this round, once."""
        # Two uploads of one round would be evidence against us.
        if round_ != self.round or self.upload is not None:
            return
        self.upload = self.rules.signed(Upload(round_, self.me, content), self.signer)
        self.effects += [Persist(self.upload), Broadcast(self.upload)]
        self.resends = 0
        self._set_timer()

    def _resend(self) -> None:
        """Send the upload again to the servers that gave no receipt, and ask for the certificate.

        A different server is asked each time, as any one of them may be faulty.
        """
        servers = range(self.rules.roster.n)
        if self.upload is not None:
            self.effects += [
                Send(server, self.upload) for server in servers if server not in self.receipts
            ]
        self.asks += 1
        for fetch in [Fetch(self.round, PartKind.CERT), *self.lacking()]:
            self.effects.append(Send(self.asks % len(servers), self.rules.unsigned(fetch)))
        self._set_timer()
        self.resends += 1

    def lacking(self) -> list[Fetch]:
        """Return the requests for the wanted parts of the last outcome that are not there yet."""
        if self.last is None:
            return []
        record = self.last.record
        return [
            Fetch(record.round, what, _digest_in(record, what))
            for what in self.wants
            if what not in self.parts
        ]

    def _set_timer(self) -> None:
        self.effects.append(SetTimer(RESEND, self.rules.roster.wait_ms(self.resends)))

    def _receive(self, peer: int, message: Message) -> None:
        body = message.body
        if not self.rules.of_run(message):
            self.ignored["another run"] += 1
        elif type(body) is Cert:
            self._on_cert(peer, body)
        elif type(body) is Receipt:
            self._on_receipt(message)
        elif type(body) is Part:
            self._on_part(body)

    def _on_cert(self, peer: int, body: Cert) -> None:
        certificate = body.certificate
        # A later round than ours is welcome: its certificate proves all rounds before it.
        if certificate.record.round < self.round:
            self.ignored["old round"] += 1
        elif not self.rules.certifies(certificate, COMMIT):
            self.ignored["bad certificate"] += 1
        else:
            self._settle(peer, certificate)

    def _settle(self, peer: int, certificate: Certificate) -> None:
        """Conclude a round, which may be later than ours if we were away."""
        record = certificate.record
        was_lacking = bool(self.lacking())
        self.last = certificate
        self.parts = self._unchanged_parts(record)
        self.effects += [
            Persist(self.rules.unsigned(Cert(record.round, certificate))),
            Decided(certificate, None, ()),
        ]
        # Receipts of an earlier round are of no use: servers no longer have its lists.
        self.promises = {}
        if record.round == self.round:
            self.promises = self.receipts
        self._enter_round(record.round + 1)
        # With 2f receipts or fewer, perhaps only f of the servers that gave one are honest.
        few_receipts = len(self.promises) <= 2 * self.rules.roster.f
        if few_receipts and (self.me + record.round) % ROUNDS_PER_SHOW == 0:
            self._show_receipts(record.round)
        self._fetch_parts(peer, was_lacking)

    def _unchanged_parts(self, record: Record) -> dict[PartKind, bytes]:
        """Return the parts that need not be fetched.

        These are the empty ones, and the public part if it is still the certified one.
        """
        parts = {EMPTY_PARTS[name]: b"" for name in record.outcome() if name in EMPTY_PARTS}
        public = self.parts.get(PartKind.PUBLIC)
        if public is not None and part_digest(PartKind.PUBLIC, public) == record.public:
            parts[PartKind.PUBLIC] = public
        return parts

    def _fetch_parts(self, peer: int, was_lacking: bool) -> None:
        """Ask the server that told us first for the parts, and perhaps another one too.

        If the last round's parts had not come, the first server may be one that withholds them. The
        timer runs on then, because rounds in quick succession would otherwise set it back for ever.
        """
        servers = {peer}
        if was_lacking:
            self.asks += 1
            servers.add(self.asks % self.rules.roster.n)
        else:
            self._set_timer()
        self.effects += [
            Send(server, self.rules.unsigned(fetch))
            for server in sorted(servers)
            for fetch in self.lacking()
        ]

    def _on_receipt(self, message: Message) -> None:
        body = message.body
        assert isinstance(body, Receipt)
        # Verified last, so that receipts of others cost nothing.
        is_ours = self.upload is not None and (body.round, body.client, body.digest) == (
            self.round,
            self.me,
            self.upload.digest,
        )
        if is_ours and self.rules.authentic(message):
            self.receipts[body.server] = message
        else:
            self.ignored["not a receipt of ours"] += 1

    def _on_part(self, body: Part) -> None:
        # A part is unsigned: that the certified record names its digest is its proof.
        digest = part_digest(body.what, body.content)
        fetch = next((fetch for fetch in self.lacking() if fetch.digest == digest), None)
        if fetch is None:
            self.ignored["nobody asked"] += 1
            return
        self.parts[body.what] = body.content
        part = Part(fetch.round, body.what, body.content)
        self.effects.append(Persist(self.rules.unsigned(part)))
        if not self.lacking():
            assert self.last is not None
            outcome = Outcome(*(self.parts.get(what, b"") for what in OUTCOME))
            self.effects.append(Decided(self.last, outcome, ()))

    def _show_receipts(self, round_: int) -> None:
        """Show the servers the last round's receipts, once, as evidence against broken promises."""
        if self.last is not None and self.last.record.round == round_:
            self.effects += [Broadcast(receipt) for _, receipt in sorted(self.promises.items())]
            self.promises = {}

    def _recall(self, message: Message) -> None:
        """Take up a message from the log."""
        body = message.body
        if isinstance(body, Upload):
            self.upload = message
        elif isinstance(body, Cert):
            self.last = body.certificate
            self.parts = self._unchanged_parts(body.certificate.record)
            self._enter_round(body.round + 1)
        elif isinstance(body, Part):
            self.parts[body.what] = body.content


def _digest_in(record: Record, what: PartKind) -> bytes:
    """Return the digest by which a record names a part of its outcome."""
    return dict(zip(OUTCOME, record.outcome(), strict=True))[what]
