"""Replicas and clients of one committee on a network that a test controls.

Nothing is lost or late unless the test says so.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import (
    Accused,
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
)
from fedrfq.consensus.messages import Kind, Message, Upload
from fedrfq.consensus.rejoin import lost_log_mark
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Roster, Signer, served
from fedrfq.consensus.rules import Rules


class Hashed:
    """Signatures that are hashes of key and data: anyone could make them, but only tests do."""

    def verify(self, key: bytes, data: bytes, signature: bytes) -> bool:
        return signer(key)(data) == signature

    def weak(self, key: bytes) -> bool:
        return key == bytes(32)


def signer(key: bytes) -> Signer:
    return lambda data: hashlib.blake2b(data, key=key, digest_size=64).digest()


def key(role: str, number: int) -> bytes:
    return hashlib.sha256(f"{role} {number}".encode()).digest()


def roster(servers: int = 4, clients: int = 4, **settings: Any) -> Roster:
    keys = (
        tuple(key("server", i) for i in range(servers)),
        tuple(key("client", k) for k in range(clients)),
    )
    return Roster(Hashed(), *keys, **settings)


class Sums:
    """The application of these tests.

    Contents are digits, and the globals are all of them so far. A successor is digits too.
    """

    def start(self) -> Outcome:
        return Outcome(b"", b"", b"0")

    def refuses(self, upload: Upload) -> str | None:
        if upload.content.isdigit():
            return None
        return "not a number"

    def refuses_successor(self, content: bytes) -> str | None:
        if content.isdigit():
            return None
        return "not a number"

    def decide(self, round_: int, before: Outcome, uploads: Sequence[Upload]) -> Outcome:
        contents = [upload.content for upload in uploads]
        total = int(before.state) + sum(map(int, contents))
        return Outcome(
            before.globals_ + b"".join(contents),
            b"".join(b"+" for _ in contents),
            str(total).encode(),
        )


Filter = Callable[[int, int, Message], bool]


class Cluster:
    """A committee, its clients, and the messages under way."""

    def __init__(
        self, servers: int = 4, clients: int = 4, replica: type[Replica] = Replica, **settings: Any
    ) -> None:
        self.roster = roster(servers, clients, **settings)
        self.replica = replica
        self.rules = Rules(self.roster)
        self.parties: dict[int, Any] = {
            i: replica(self.rules, i, signer(key("server", i)), Sums()) for i in range(servers)
        }
        self.parties |= {
            ~k: Client(self.rules, k, signer(key("client", k))) for k in range(clients)
        }
        self.logs: dict[int, list[Message]] = {party: [] for party in self.parties}
        self.decided: dict[int, list[Decided]] = {party: [] for party in self.parties}
        self.timers: dict[tuple[int, Timer], int | None] = {}
        self.accused: dict[int, list[Message]] = {party: [] for party in self.parties}
        self.sent: list[tuple[int, int, Message]] = []
        self.queue: deque[tuple[int, int, Message]] = deque()
        self.passes: Filter = lambda sender, receiver, message: True
        for party in self.parties:
            self.give(party, Start())

    def give(self, party: int, event: Event) -> list[Effect]:
        """Give one event to one party, and carry out the effects."""
        effects: list[Effect] = self.parties[party].step(event)
        for effect in effects:
            self._carry_out(party, effect)
        return effects

    def _carry_out(self, party: int, effect: Effect) -> None:
        servers = range(self.roster.n)
        if isinstance(effect, Send):
            self._post(party, [effect.to], effect.message)
        elif isinstance(effect, Broadcast):
            self._post(party, [i for i in servers if i != party], effect.message)
        elif isinstance(effect, Publish):
            self._post(
                party,
                [~k for k in served(party, self.roster.n, len(self.roster.clients))],
                effect.message,
            )
        elif isinstance(effect, Persist):
            self.logs[party].append(effect.message)
        elif isinstance(effect, Decided):
            self.decided[party].append(effect)
        elif isinstance(effect, Accused):
            self.accused[party].append(effect.evidence)
        elif isinstance(effect, SetTimer):
            self.timers[party, effect.timer] = effect.delay_ms

    def _post(self, sender: int, receivers: Sequence[int], message: Message) -> None:
        for receiver in receivers:
            self.sent.append((sender, receiver, message))
            self.queue.append((sender, receiver, message))

    def settle(self) -> None:
        """Deliver, in order, until nothing is under way; what the filter stops is lost."""
        while self.queue:
            sender, receiver, message = self.queue.popleft()
            if self.passes(sender, receiver, message):
                self.give(receiver, Received(sender, message))

    def train(
        self, round_: int, contents: Sequence[bytes | None] = (b"1", b"2", b"3", b"4")
    ) -> None:
        """Let each client upload its content; a client with None sends nothing."""
        for client, content in enumerate(contents):
            if content is not None:
                self.give(~client, Submit(round_, content))

    def expire(self, timer: Timer, *parties: int) -> None:
        for party in parties or range(self.roster.n):
            self.give(party, Expired(timer))

    def restart(self, server: int) -> None:
        """Restart a server, as after a crash, with what it persisted and nothing else."""
        log = list(self.logs[server])
        self.parties[server] = self.replica(
            self.rules, server, signer(key("server", server)), Sums(), log
        )
        self.give(server, Start())

    def lose(self, server: int, nonce: bytes) -> None:
        """Restart a server that has lost its log and knows it."""
        self.logs[server] = [lost_log_mark(self.rules, nonce)]
        self.parties[server] = self.replica(
            self.rules, server, signer(key("server", server)), Sums(), self.logs[server]
        )
        self.give(server, Start())

    def say(self, server: int, body: Any) -> Message:
        """Return a message with this server's signature, true or not."""
        return self.rules.signed(body, signer(key("server", server)))

    def upload(self, client: int, round_: int, content: bytes) -> Message:
        return self.rules.signed(Upload(round_, client, content), signer(key("client", client)))

    def said(self, server: int, kind: Kind) -> list[Message]:
        """Return the distinct messages of a kind that a server has sent, in order."""
        return list(
            dict.fromkeys(
                m for sender, _, m in self.sent if sender == server and m.body.kind == kind
            )
        )

    def globals_(self, round_: int) -> dict[int, bytes]:
        """Return the global prototypes of a round by server."""
        found = {}
        for server in range(self.roster.n):
            for decision in self.decided[server]:
                if decision.certificate.record.round == round_ and decision.outcome is not None:
                    found[server] = decision.outcome.globals_
        return found


def among(*servers: int) -> Filter:
    """Return a filter by which only these servers hear each other; clients reach everyone."""
    return lambda sender, receiver, message: (
        sender < 0 or receiver < 0 or (sender in servers and receiver in servers)
    )
