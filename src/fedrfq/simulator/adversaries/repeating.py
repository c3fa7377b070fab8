"""Servers that say again what was said, or far too much."""

from __future__ import annotations

from fedrfq.consensus.events import Event, Publish, Received, Send
from fedrfq.consensus.messages import (
    Cert,
    Commit,
    Fetch,
    Message,
    Part,
    PartKind,
    Prepare,
    Upload,
    UploadList,
)
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_FAR = 2**31
_BURST = 100  # messages


class Replay(Behaviour):
    """Old messages of all parties, of other rounds, views and runs; old certificates as if they were new."""

    def extra(self, event: Event) -> list[Action]:
        ring = self.ring
        rng = self.rng
        if not isinstance(event, Received) or rng.random() > 0.3:
            return []
        if ring.archive and rng.random() < 0.4:
            pool = ring.archive
        else:
            pool = ring.past
        actions: list[Action] = [
            Send(rng.choice(self.others), rng.choice(pool)) for _ in range(2) if pool
        ]
        if rng.random() < 0.2:
            actions += self._old_certificate()
        return actions

    def _old_certificate(self) -> list[Action]:
        """As it is, and as if it were of this round."""
        old = self.ring.certificate(int(self.rng.random() * self.ring.round))
        if old is None or not isinstance(old.body, Cert):
            return []
        renewed = self.ring.rules.unsigned(Cert(self.ring.round, old.body.certificate))
        return [
            *self.to_some(old),
            *self.to_some(renewed),
            Publish(self.rng.choice((old, renewed))),
        ]


class Flood(Behaviour):
    """Views and rounds far ahead, and many of them; uploads, lists, requests and parts that nobody asked for."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.left = 4 * _BURST
        self.victim = self.rng.choice(self.others)
        ways = (Flood._vote, Flood._change, Flood._early, Flood._upload, Flood._request)
        self.ways = self.rng.sample(ways, self.rng.choice((1, 1, len(ways))))

    def extra(self, event: Event) -> list[Action]:
        if not isinstance(event, Received) or self.left <= 0 or self.rng.random() > 0.1:
            return []
        messages = [
            message
            for _ in range(_BURST)
            if (message := self.rng.choice(self.ways)(self)) is not None
        ]
        self.left -= _BURST
        return [Send(self.victim, message) for message in messages]

    def _view(self) -> int:
        return 1 + int(self.rng.random() * self.rng.choice((3, 50, _FAR)))

    def _vote(self) -> Message | None:
        kind = self.rng.choice((Prepare, Commit))
        return self.ring.sign(
            self.me, kind(self.ring.round, self._view(), self.rng.randbytes(32), self.me)
        )

    def _change(self) -> Message | None:
        return self.ring.change(self.me, self.ring.round, self._view())

    def _early(self) -> Message | None:
        """Of a round to come."""
        round_ = self.ring.round + self.rng.choice((1, 1, 2, 7, _FAR))
        value = self.rng.randbytes(32)
        bodies = (
            Prepare(round_, self._view(), value, self.me),
            UploadList(round_, self.me, ((0, value),)),
        )
        return self.ring.sign(self.me, self.rng.choice(bodies))

    def _upload(self) -> Message | None:
        """One more of a faulty client, of this round or the next."""
        if not self.ring.clients:
            return None
        client = self.rng.choice(self.ring.clients)
        round_ = self.ring.round + self.rng.choice((0, 1))
        return self.ring.sign(~client, Upload(round_, client, self.ring.content(round_)))

    def _request(self) -> Message | None:
        round_ = self.ring.round + self.rng.choice((-1, 0, 1))
        value = self.rng.randbytes(32)
        bodies = (
            Fetch(max(0, round_), self.rng.choice(tuple(PartKind)), value),
            Part(max(0, round_), PartKind.SET, value),
        )
        return self.ring.rules.unsigned(self.rng.choice(bodies))
