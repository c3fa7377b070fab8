"""A server that makes things up: uploads nobody signed, lists of others, evidence, certificates; and hands them out."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Publish, Received, Send
from fedrfq.consensus.messages import (
    SIGNATURE,
    Cert,
    Certificate,
    Commit,
    Evidence,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
    encode,
)
from fedrfq.simulator.adversaries.behaviour import Behaviour, proposal_of
from fedrfq.simulator.party import Action, RawBytes

_ALL_VIEWS = 2**32


class Forge(Behaviour):
    def twist(self, effect: Effect) -> list[Action]:
        message = proposal_of(effect)
        if message is not None and isinstance(message.body, PrePrepare) and message.body.lists:
            return self._propose(message.body)
        if isinstance(effect, Broadcast) and isinstance(effect.message.body, UploadList):
            return [Broadcast(self._list(effect.message.body))]
        return [effect]

    def _forged(self, body: Upload | UploadList | Prepare | Commit) -> Message:
        """With no signature worth the name, or with that of a key everybody has."""
        raw = encode(self.ring.rules.run, body)
        if isinstance(body, Upload):
            everybodys = self.ring.weak.get(body.client)
        else:
            everybodys = None
        return Message(
            self.ring.rules.run,
            body,
            raw,
            everybodys(raw) if everybodys else self.rng.randbytes(SIGNATURE),
        )

    def _upload(self, round_: int) -> Message:
        """Of any client; those who ask for it get it."""
        if self.ring.weak:
            client = self.rng.choice(sorted(self.ring.weak))
        else:
            client = int(self.rng.random() * self._clients())
        message = self._forged(Upload(round_, client, self.ring.content(round_)))
        self.ring.uploads.setdefault(round_, {})[message.digest] = message
        return message

    def _clients(self) -> int:
        return len(self.ring.roster.clients)

    def _list(self, body: UploadList) -> Message:
        """With an upload more: one without a body, or a second one that makes an honest client look like a liar."""
        if self.rng.random() < 0.3:
            more = int(self.rng.random() * self._clients()), self.rng.randbytes(32)
        else:
            forged = self._upload(body.round)
            assert isinstance(forged.body, Upload)
            more = forged.body.client, forged.digest
        several = sum(client == more[0] for client, _ in body.entries) > 1
        if several:
            entries = body.entries
        else:
            entries = tuple(sorted({*body.entries, more}))
        return self.ring.sign(self.me, replace(body, entries=entries))

    def _propose(self, body: PrePrepare) -> list[Action]:
        """From lists that others never signed, of uploads that clients never signed."""
        lists = body.lists
        if self.rng.random() < 0.5:
            lists = tuple(self._list_of_another(m) for m in lists)
        else:
            lists = tuple(self._list(m.body) if m.body.server == self.me else m for m in lists)  # type: ignore[union-attr, arg-type]
        choice = self.ring.follow(body.round, lists)
        if choice is None:
            return list(self.ring.propose(body, self.ring.honest))
        return list(
            self.ring.propose(replace(body, record=choice.record, lists=lists), self.ring.honest)
        )

    def _list_of_another(self, message: Message) -> Message:
        body = message.body
        assert isinstance(body, UploadList)
        if body.server == self.me or len(body.entries) <= self.ring.roster.minimum:
            return message
        return self._forged(replace(body, entries=body.entries[1:]))

    def extra(self, event: Event) -> list[Action]:
        if (
            not isinstance(event, Received)
            or event.peer in self.ring.servers
            or self.rng.random() > 0.2
        ):
            return []  # two forgers would spur each other on without end
        if isinstance(event.message.body, Prepare | Commit):
            return self._vote_of_another(event.message.body)
        ways = (
            self._some_upload,
            self._evidence,
            self._certificate,
            self._prepared_only,
            self._noise,
        )
        return self.rng.choice(ways)(event.message)

    def _some_upload(self, message: Message) -> list[Action]:
        return self.to_some(self._upload(self.ring.round))

    def _evidence(self, message: Message) -> list[Action]:
        """Against whoever just spoke: the same twice, something forged, or two things that go together well."""
        body = message.body
        past = self.ring.past
        if past:
            second = self.rng.choice(past)
        else:
            second = message
        if isinstance(body, Upload) and self.rng.random() < 0.5:
            second = self._forged(replace(body, content=self.ring.content(body.round)))
        alike = [
            m
            for m in past
            if m.body.kind == body.kind
            and getattr(m.body, "server", 0) == getattr(body, "server", 0)
        ]
        if alike and self.rng.random() < 0.5:
            second = self.rng.choice(alike)
        if not message.signature or not second.signature:
            return []
        return [Broadcast(self.ring.rules.unsigned(Evidence(body.round, message, second)))]

    def _certificate(self, message: Message) -> list[Action]:
        """A decision nobody took, of this round or the next, for servers and clients."""
        round_ = self.ring.round
        choice = self.ring.choice(round_)
        if choice is None:
            return []
        certificate = self.fake(Kind.COMMIT, 0, round_, choice.record.value(self.ring.rules.run))
        whole = self.ring.rules.unsigned(
            Cert(round_, Certificate(Kind.COMMIT, 0, choice.record, certificate))
        )
        return [Broadcast(whole), Publish(whole)]

    def _prepared_only(self, message: Message) -> list[Action]:
        """What is only prepared, as if it were decided."""
        found = self.prepared(self.ring.round, _ALL_VIEWS)
        if found is None:
            return []
        whole = self.ring.rules.unsigned(Cert(self.ring.round, found))
        return [Broadcast(whole), Publish(whole)]

    def prepared(self, round_: int, view: int) -> Certificate | None:
        """The lowest certificate that votes of views below this one make up, with ours."""
        for (kind, of, at, value), votes in sorted(self.ring.votes.items()):
            record = self.ring.records.get(round_, {}).get(value)
            if kind == Kind.PREPARE and of == round_ and at < view and record is not None:
                whole = dict(votes) | {
                    s: self.ring.vote(kind, s, of, at, value) for s in self.ring.servers
                }
                if len(whole) >= self.ring.roster.quorum:
                    return self.ring.rules.certificate(list(whole.values()), record)
        return None

    def _vote_of_another(self, body: Prepare | Commit) -> list[Action]:
        """For what was just voted on, in the name of an honest server."""
        others = [
            replace(body, server=server) for server in self.ring.honest if server != body.server
        ]
        return [Broadcast(self._forged(other)) for other in others]

    def fake(
        self, kind: Kind, view: int, round_: int, value: bytes
    ) -> tuple[tuple[int, bytes], ...]:
        """Not the signatures of a quorum."""
        mine = [
            (server, self.ring.vote(kind, server, round_, view, value).signature)
            for server in self.ring.servers
        ]
        missing = self.ring.roster.quorum - len(mine)
        others = [(server, self.rng.randbytes(SIGNATURE)) for server in self.ring.honest]
        ways = (
            sorted(mine),
            (mine * self.ring.roster.quorum)[: self.ring.roster.quorum],
            sorted(mine + others[:missing]),
        )
        return tuple(self.rng.choice(ways))

    def _noise(self, message: Message) -> list[Action]:
        """Bytes that are almost a message."""
        data = bytearray(message.wire)
        data[int(self.rng.random() * len(data))] ^= 1 << int(self.rng.random() * 8)
        to = self.rng.choice(self.others)
        return [
            RawBytes(to, bytes(data)),
            RawBytes(to, message.wire[:-1]),
            RawBytes(to, self.rng.randbytes(60)),
            Send(to, message),
        ]
