"""A faulty server: an honest replica inside, whose every effect it may twist, and to which it adds its own."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Decided, Effect, Event, Persist, Received, Send
from fedrfq.consensus.messages import Message
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action


class Behaviour:
    """Takes part as an honest server would, until a subclass says otherwise. `log`: as an honest replica's."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        self.ring = ring
        self.me = me
        self.rng = ring.rng
        self.log = log
        self.others = [server for server in range(ring.roster.n) if server != me]
        self.inner = self.honest(log)

    def honest(self, log: tuple[Message, ...]) -> Replica:
        return Replica(
            self.ring.rules, self.me, self.ring.signers[self.me], self.ring.application, log
        )

    def step(self, event: Event) -> list[Action]:
        self.ring.learn(event)
        actions: list[Action] = []
        for effect in self.inner.step(event):
            if type(effect) is Decided:
                self.ring.decided(effect)
            elif type(effect) is not Persist:
                actions += self.twist(effect)
        if type(event) is Received:
            actions += [Send(event.peer, message) for message in self.ring.answer(event)]
            if event.peer >= 0 and event.peer in self.ring.signers:
                return actions  # what liars say to each other would have no end
        return actions + self.extra(event)

    def twist(self, effect: Effect) -> list[Action]:
        """What is done in place of an honest effect."""
        return [effect]

    def extra(self, event: Event) -> list[Action]:
        """What is done besides, after an event."""
        return []

    def to_some(self, message: Message, share: float = 0.5) -> list[Action]:
        return [Send(to, message) for to in self.ring.some(self.others, share)]


def proposal_of(effect: Effect) -> Message | None:
    """The proposal that is broadcast, if one is."""
    if isinstance(effect, Broadcast) and effect.message.body.kind.name == "PREPREPARE":
        return effect.message
    return None
