"""Faulty clients: they send different uploads, malformed uploads, or too few too late."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import (
    Broadcast,
    Effect,
    Event,
    Expired,
    Send,
    SetTimer,
    Submit,
    Timer,
)
from fedrfq.consensus.messages import SIGNATURE, Message, Upload
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action


class FaultyClient:
    """A client that follows the rounds honestly; a subclass decides what it uploads."""

    def __init__(self, ring: Ring, me: int, client: type[Client] = Client) -> None:
        self.ring = ring
        self.me = me
        self.rng = ring.rng
        self.inner = client(ring.rules, me, ring.signers[~me])
        self.servers = range(ring.roster.n)

    def step(self, event: Event) -> list[Action]:
        """Let the honest client inside take the event, and replace the uploads it sends."""
        return [action for effect in self.inner.step(event) for action in self._twist(effect)]

    def _twist(self, effect: Effect) -> list[Action]:
        if not isinstance(effect, Broadcast | Send):
            return [effect]
        if not isinstance(effect.message.body, Upload):
            return [effect]
        if isinstance(effect, Send):
            return self.upload(effect.to, effect.message)
        return [action for to in self.servers for action in self.upload(to, effect.message)]

    def upload(self, to: int, message: Message) -> list[Action]:
        """Return what is sent to a server in place of the honest upload."""
        return [Send(to, message)]


class Equivocating(FaultyClient):
    """Signs two or three uploads of a round for different servers; some servers get two."""

    def __init__(self, ring: Ring, me: int) -> None:
        super().__init__(ring, me)
        self.versions: dict[int, list[Message]] = {}  # by round

    def upload(self, to: int, message: Message) -> list[Action]:
        body = message.body
        assert isinstance(body, Upload)
        if body.round not in self.versions:
            self.versions[body.round] = [message, *self._other_versions(body)]
        versions = self.versions[body.round]
        return [Send(to, self.rng.choice(versions)) for _ in range(self.rng.choice((1, 1, 1, 2)))]

    def _other_versions(self, body: Upload) -> list[Message]:
        number = self.rng.choice((1, 2))
        bodies = [replace(body, content=self.ring.content(body.round)) for _ in range(number)]
        return [self.ring.sign(~self.me, other) for other in bodies]


class Malformed(FaultyClient):
    """Sends content that the application refuses, bad signatures, and uploads in others' names."""

    def upload(self, to: int, message: Message) -> list[Action]:
        body = message.body
        assert isinstance(body, Upload)
        neighbour = (self.me + 1) % len(self.ring.roster.clients)
        stranger = self.me + 1000
        # Only the drawn one is made: the bad signature draws random bytes itself.
        makers: tuple[Callable[[], Message], ...] = (
            lambda: self._sign(replace(body, content=body.content + b"!")),
            lambda: self._sign(replace(body, content=b"")),
            lambda: self._sign(replace(body, content=bytes(len(body.content)))),
            lambda: self._sign(replace(body, content=body.content[:-1] + b"\x7f")),
            lambda: Message(message.run, body, message.raw, self.rng.randbytes(SIGNATURE)),
            lambda: self._sign(replace(body, client=neighbour)),
            lambda: self._sign(replace(body, client=stranger)),
            lambda: message,
        )
        return [Send(to, self.rng.choice(makers)())]

    def _sign(self, body: Upload) -> Message:
        return self.ring.sign(~self.me, body)


class Late(FaultyClient):
    """Sends its upload to few servers, and at the last moment."""

    def step(self, event: Event) -> list[Action]:
        if isinstance(event, Expired) and event.timer is Timer.DEADLINE:
            return self._send_to_few()
        actions = super().step(event)
        # Honest clients have no deadline, so its timer is free to be used here.
        if isinstance(event, Submit):
            last_moment = int(self.ring.roster.deadline_ms * (0.5 + 0.5 * self.rng.random()))
            actions.append(SetTimer(Timer.DEADLINE, last_moment))
        return actions

    def _send_to_few(self) -> list[Action]:
        few = self.ring.some(self.servers, 0.4)
        if self.inner.upload is None:
            return []
        return [Send(to, self.inner.upload) for to in few]

    def upload(self, to: int, message: Message) -> list[Action]:
        return []


CLIENTS: dict[str, type[FaultyClient]] = {
    "equivocating": Equivocating,
    "malformed": Malformed,
    "late": Late,
}
