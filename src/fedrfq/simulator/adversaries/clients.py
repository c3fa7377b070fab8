"""Faulty clients: that say different things to different servers, malformed things, or too little too late."""

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
    """Follows the rounds as an honest client does; what it uploads is the subclass's affair."""

    def __init__(self, ring: Ring, me: int, make: type[Client] = Client) -> None:
        self.ring = ring
        self.me = me
        self.rng = ring.rng
        self.inner = make(ring.rules, me, ring.signers[~me])
        self.servers = range(ring.roster.n)

    def step(self, event: Event) -> list[Action]:
        return [action for effect in self.inner.step(event) for action in self._twist(effect)]

    def _twist(self, effect: Effect) -> list[Action]:
        if isinstance(effect, Broadcast | Send) and isinstance(effect.message.body, Upload):
            if isinstance(effect, Send):
                targets = [effect.to]
            else:
                targets = list(self.servers)
            return [a for to in targets for a in self.upload(to, effect.message)]
        return [effect]

    def upload(self, to: int, message: Message) -> list[Action]:
        return [Send(to, message)]


class Equivocating(FaultyClient):
    """Two or three signed uploads of a round, to different servers, now and then two to one."""

    def __init__(self, ring: Ring, me: int) -> None:
        super().__init__(ring, me)
        self.versions: dict[int, list[Message]] = {}

    def upload(self, to: int, message: Message) -> list[Action]:
        body = message.body
        assert isinstance(body, Upload)
        if body.round not in self.versions:
            number = self.rng.choice((1, 2))
            others = [replace(body, content=self.ring.content(body.round)) for _ in range(number)]
            self.versions[body.round] = [
                message,
                *(self.ring.sign(~self.me, other) for other in others),
            ]
        versions = self.versions[body.round]
        return [Send(to, self.rng.choice(versions)) for _ in range(self.rng.choice((1, 1, 1, 2)))]


class Malformed(FaultyClient):
    """Contents the application refuses, signatures that are none, another's name."""

    def upload(self, to: int, message: Message) -> list[Action]:
        body = message.body
        ring = self.ring
        assert isinstance(body, Upload)
        ways: tuple[Callable[[], Message], ...] = (
            lambda: ring.sign(~self.me, replace(body, content=body.content + b"!")),
            lambda: ring.sign(~self.me, replace(body, content=b"")),
            lambda: ring.sign(~self.me, replace(body, content=bytes(len(body.content)))),
            lambda: ring.sign(~self.me, replace(body, content=body.content[:-1] + b"\x7f")),
            lambda: Message(message.run, body, message.raw, self.rng.randbytes(SIGNATURE)),
            lambda: ring.rules.signed(
                replace(body, client=(self.me + 1) % len(ring.roster.clients)),
                ring.signers[~self.me],
            ),
            lambda: ring.rules.signed(replace(body, client=self.me + 1000), ring.signers[~self.me]),
            lambda: message,
        )
        return [Send(to, self.rng.choice(ways)())]


class Late(FaultyClient):
    """To few servers, and at the last moment."""

    def step(self, event: Event) -> list[Action]:
        if isinstance(event, Expired) and event.timer is Timer.DEADLINE:
            few = self.ring.some(self.servers, 0.4)
            return [Send(to, self.inner.upload) for to in few if self.inner.upload is not None]
        actions = super().step(event)
        if isinstance(event, Submit):
            last_moment = int(self.ring.roster.deadline_ms * (0.5 + 0.5 * self.rng.random()))
            actions.append(SetTimer(Timer.DEADLINE, last_moment))
        return actions

    def upload(self, to: int, message: Message) -> list[Action]:
        return []


CLIENTS: dict[str, type[FaultyClient]] = {
    "equivocating": Equivocating,
    "malformed": Malformed,
    "late": Late,
}
