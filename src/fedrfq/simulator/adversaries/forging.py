"""A server that forges: uploads nobody signed, others' lists and votes, evidence, certificates."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Publish, Received, Send
from fedrfq.consensus.messages import (
    SIGNATURE,
    AnyMessage,
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
from fedrfq.simulator.adversaries.behaviour import Behaviour, broadcast_body
from fedrfq.simulator.party import Action, RawBytes

_ABOVE_ALL_VIEWS = 2**32


class Forge(Behaviour):
    """Makes up messages in the names of others, and hands them out."""

    def twist(self, effect: Effect) -> list[Action]:
        body = broadcast_body(effect)
        if isinstance(body, PrePrepare) and body.lists:
            return self._propose_forged_lists(body)
        if isinstance(body, UploadList):
            return [Broadcast(self._list_forged_upload(body))]
        return [effect]

    def _forge(self, body: Upload | UploadList | Prepare | Commit) -> Message:
        """Return a message with random bytes as its signature, unless its author's key is weak."""
        raw = encode(self.ring.rules.run, body)
        weak_signer = None
        if isinstance(body, Upload):
            weak_signer = self.ring.weak.get(body.client)
        if weak_signer is not None:
            signature = weak_signer(raw)
        else:
            signature = self.rng.randbytes(SIGNATURE)
        return Message(self.ring.rules.run, body, raw, signature)

    def _forge_upload(self, round_: int) -> Message:
        """Forge an upload of any client, and keep it for those who ask for it."""
        if self.ring.weak:
            client = self.rng.choice(sorted(self.ring.weak))
        else:
            client = self._draw_client()
        message = self._forge(Upload(round_, client, self.ring.content(round_)))
        self.ring.uploads.setdefault(round_, {})[message.digest] = message
        return message

    def _draw_client(self) -> int:
        return int(self.rng.random() * len(self.ring.roster.clients))

    def _list_forged_upload(self, body: UploadList) -> Message:
        """Add an entry to a list: an upload that does not exist, or a forged one.

        A second upload of a client makes an honest client look like a liar.
        """
        if self.rng.random() < 0.3:
            client = self._draw_client()
            digest = self.rng.randbytes(32)
        else:
            forged = self._forge_upload(body.round)
            assert isinstance(forged.body, Upload)
            client = forged.body.client
            digest = forged.digest
        entries = body.entries
        # A list with three uploads of one client would be refused before anything is looked at.
        if sum(listed == client for listed, _ in entries) <= 1:
            entries = tuple(sorted({*entries, (client, digest)}))
        return self.ring.sign(self.me, replace(body, entries=entries))

    def _propose_forged_lists(self, proposal: PrePrepare) -> list[Action]:
        """Propose from lists that others never signed, or of uploads that clients never signed."""
        if self.rng.random() < 0.5:
            lists = tuple(self._forge_list(message) for message in proposal.lists)
        else:
            lists = tuple(self._forge_own_list(message) for message in proposal.lists)
        choice = self.ring.choice_from(proposal.round, lists)
        if choice is not None:
            proposal = choice.in_place_of(proposal)
        return self.ring.propose(proposal, self.ring.honest)

    def _forge_list(self, message: Message) -> Message:
        """Drop an entry from another server's list."""
        body = message.body
        assert isinstance(body, UploadList)
        if body.server == self.me or len(body.entries) <= self.ring.roster.minimum:
            return message
        return self._forge(replace(body, entries=body.entries[1:]))

    def _forge_own_list(self, message: Message) -> Message:
        """Add an entry to the own list, and leave those of others alone."""
        body = message.body
        assert isinstance(body, UploadList)
        if body.server != self.me:
            return message
        return self._list_forged_upload(body)

    def extra(self, event: Event) -> list[Action]:
        # Two forgers that react to each other would never stop.
        if not isinstance(event, Received) or event.peer in self.ring.servers:
            return []
        if self.rng.random() > 0.2:
            return []
        if isinstance(event.message.body, Prepare | Commit):
            return self._votes_of_others(event.message.body)
        ways = (
            self._send_upload,
            self._false_evidence,
            self._false_decision,
            self._prepared_as_decided,
            self._noise,
        )
        return self.rng.choice(ways)(event.message)

    def _send_upload(self, message: Message) -> list[Action]:
        return self.send_to_some(self._forge_upload(self.ring.round))

    def _false_evidence(self, message: Message) -> list[Action]:
        """Accuse the author of a message by a repetition, a forgery, or two compatible messages."""
        body = message.body
        past = self.ring.past
        second = message
        if past:
            second = self.rng.choice(past)
        if isinstance(body, Upload) and self.rng.random() < 0.5:
            second = self._forge(replace(body, content=self.ring.content(body.round)))
        alike = [other for other in past if _is_alike(other.body, body)]
        if alike and self.rng.random() < 0.5:
            second = self.rng.choice(alike)
        if not message.signature or not second.signature:
            return []
        return [Broadcast(self.ring.rules.unsigned(Evidence(body.round, message, second)))]

    def _false_decision(self, message: Message) -> list[Action]:
        """Tell servers and clients of a decision that nobody took."""
        round_ = self.ring.round
        choice = self.ring.draw_choice(round_)
        if choice is None:
            return []
        value = choice.record.value(self.ring.rules.run)
        signatures = self.fake_signatures(Kind.COMMIT, 0, round_, value)
        return self._tell_all(Certificate(Kind.COMMIT, 0, choice.record, signatures))

    def _prepared_as_decided(self, message: Message) -> list[Action]:
        """Tell servers and clients that something is decided which is only prepared."""
        certificate = self.lowest_prepared(self.ring.round, _ABOVE_ALL_VIEWS)
        if certificate is None:
            return []
        return self._tell_all(certificate)

    def _tell_all(self, certificate: Certificate) -> list[Action]:
        message = self.ring.rules.unsigned(Cert(self.ring.round, certificate))
        return [Broadcast(message), Publish(message)]

    def lowest_prepared(self, round_: int, view: int) -> Certificate | None:
        """Return the lowest certificate that known votes of views below this one make up.

        The votes of all faulty servers are added to them.
        """
        for (kind, vote_round, vote_view, value), votes in sorted(self.ring.votes.items()):
            if kind != Kind.PREPARE or vote_round != round_ or vote_view >= view:
                continue
            record = self.ring.records.get(round_, {}).get(value)
            if record is None:
                continue
            with_ours = dict(votes)
            for server in self.ring.servers:
                with_ours[server] = self.ring.vote(kind, server, round_, vote_view, value)
            if len(with_ours) >= self.ring.roster.quorum:
                return self.ring.rules.certificate(list(with_ours.values()), record)
        return None

    def _votes_of_others(self, body: Prepare | Commit) -> list[Action]:
        """Forge the votes of all other honest servers for what one of them has just voted for."""
        others = [server for server in self.ring.honest if server != body.server]
        return [Broadcast(self._forge(replace(body, server=server))) for server in others]

    def fake_signatures(
        self, kind: Kind, view: int, round_: int, value: bytes
    ) -> tuple[tuple[int, bytes], ...]:
        """Return signatures that are not a quorum's: too few, repeated, or random bytes."""
        ours = [
            (server, self.ring.vote(kind, server, round_, view, value).signature)
            for server in self.ring.servers
        ]
        quorum = self.ring.roster.quorum
        missing = quorum - len(ours)
        others = [(server, self.rng.randbytes(SIGNATURE)) for server in self.ring.honest]
        too_few = sorted(ours)
        repeated = (ours * quorum)[:quorum]
        padded = sorted(ours + others[:missing])
        return tuple(self.rng.choice((too_few, repeated, padded)))

    def _noise(self, message: Message) -> list[Action]:
        """Send bytes that are almost a message, then the message itself."""
        flipped = bytearray(message.wire)
        flipped[int(self.rng.random() * len(flipped))] ^= 1 << int(self.rng.random() * 8)
        to = self.rng.choice(self.others)
        return [
            RawBytes(to, bytes(flipped)),
            RawBytes(to, message.wire[:-1]),
            RawBytes(to, self.rng.randbytes(60)),
            Send(to, message),
        ]


def _is_alike(first: AnyMessage, second: AnyMessage) -> bool:
    """Return whether two bodies are of one kind and, where servers sign them, of one server."""
    return first.kind == second.kind and getattr(first, "server", 0) == getattr(second, "server", 0)
