"""Servers that repeat what was said before, or say far too much."""

from __future__ import annotations

from collections.abc import Sequence

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

_FAR = 2**31  # views or rounds ahead
_BURST = 100  # messages
_MAX_BURSTS = 4


class Replay(Behaviour):
    """Sends old messages of all parties, rounds and runs, and old certificates as new ones."""

    def extra(self, event: Event) -> list[Action]:
        ring = self.ring
        rng = self.rng
        if not isinstance(event, Received) or rng.random() > 0.3:
            return []
        pool: Sequence[Message] = ring.past
        if ring.archive and rng.random() < 0.4:
            pool = ring.archive
        actions: list[Action] = []
        if pool:
            actions += [Send(rng.choice(self.others), rng.choice(pool)) for _ in range(2)]
        if rng.random() < 0.2:
            actions += self._send_old_certificate()
        return actions

    def _send_old_certificate(self) -> list[Action]:
        """Send an old certificate as it is, and as if it were of this round."""
        old = self.ring.certificate_message(int(self.rng.random() * self.ring.round))
        if old is None or not isinstance(old.body, Cert):
            return []
        renewed = self.ring.rules.unsigned(Cert(self.ring.round, old.body.certificate))
        return [
            *self.send_to_some(old),
            *self.send_to_some(renewed),
            Publish(self.rng.choice((old, renewed))),
        ]


class Flood(Behaviour):
    """Floods one server with messages of far views and rounds, and with things nobody asked for."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.bursts_left = _MAX_BURSTS
        self.victim = self.rng.choice(self.others)
        makers = (
            Flood._make_vote,
            Flood._make_change,
            Flood._make_early,
            Flood._make_upload,
            Flood._make_request,
        )
        self.makers = self.rng.sample(makers, self.rng.choice((1, 1, len(makers))))

    def extra(self, event: Event) -> list[Action]:
        if not isinstance(event, Received) or self.bursts_left == 0 or self.rng.random() > 0.1:
            return []
        self.bursts_left -= 1
        messages = [self.rng.choice(self.makers)(self) for _ in range(_BURST)]
        return [Send(self.victim, message) for message in messages if message is not None]

    def _draw_view(self) -> int:
        return 1 + int(self.rng.random() * self.rng.choice((3, 50, _FAR)))

    def _make_vote(self) -> Message | None:
        kind = self.rng.choice((Prepare, Commit))
        body = kind(self.ring.round, self._draw_view(), self.rng.randbytes(32), self.me)
        return self.ring.sign(self.me, body)

    def _make_change(self) -> Message | None:
        return self.ring.view_change(self.me, self.ring.round, self._draw_view())

    def _make_early(self) -> Message | None:
        """Make a vote or a list of a round to come."""
        round_ = self.ring.round + self.rng.choice((1, 1, 2, 7, _FAR))
        value = self.rng.randbytes(32)
        bodies = (
            Prepare(round_, self._draw_view(), value, self.me),
            UploadList(round_, self.me, ((0, value),)),
        )
        return self.ring.sign(self.me, self.rng.choice(bodies))

    def _make_upload(self) -> Message | None:
        """Make one more upload of a faulty client, of this round or the next."""
        if not self.ring.clients:
            return None
        client = self.rng.choice(self.ring.clients)
        round_ = self.ring.round + self.rng.choice((0, 1))
        return self.ring.sign(~client, Upload(round_, client, self.ring.content(round_)))

    def _make_request(self) -> Message | None:
        """Make a request for something, or a part that nobody asked for."""
        round_ = max(0, self.ring.round + self.rng.choice((-1, 0, 1)))
        value = self.rng.randbytes(32)
        bodies = (
            Fetch(round_, self.rng.choice(tuple(PartKind)), value),
            Part(round_, PartKind.SET, value),
        )
        return self.ring.rules.unsigned(self.rng.choice(bodies))
