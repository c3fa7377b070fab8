"""The base of all faulty servers: an honest replica inside, whose effects a subclass may twist."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Decided, Effect, Event, Persist, Received, Send
from fedrfq.consensus.messages import AnyMessage, Message, PrePrepare
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action


class Behaviour:
    """A server that takes part as an honest one would, except where a subclass says otherwise.

    A subclass overrides `twist` to replace an honest effect and `extra` to add actions of its own.
    `log` is the log that the honest replica inside starts from.
    """

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        self.ring = ring
        self.me = me
        self.rng = ring.rng
        self.log = log
        self.others = [server for server in range(ring.roster.n) if server != me]
        self.inner = self.make_replica(log)

    def make_replica(self, log: tuple[Message, ...]) -> Replica:
        """Return an honest replica with this server's key."""
        ring = self.ring
        return Replica(ring.rules, self.me, ring.signers[self.me], ring.application, log)

    def step(self, event: Event) -> list[Action]:
        """Let the replica inside take the event, twist what it does, and add to it."""
        self.ring.learn(event)
        actions: list[Action] = []
        for effect in self.inner.step(event):
            if type(effect) is Decided:
                self.ring.decided(effect)
            # Faulty servers keep no log.
            elif type(effect) is not Persist:
                actions += self.twist(effect)
        if type(event) is Received:
            answers = self.ring.answer(event.message.body)
            actions += [Send(event.peer, message) for message in answers]
            # Faulty servers that react to each other with more lies would never stop.
            if event.peer >= 0 and event.peer in self.ring.signers:
                return actions
        return actions + self.extra(event)

    def twist(self, effect: Effect) -> list[Action]:
        """Return what is done in place of an honest effect."""
        return [effect]

    def extra(self, event: Event) -> list[Action]:
        """Return what is done in addition after an event."""
        return []

    def send_to_some(self, message: Message, share: float = 0.5) -> list[Action]:
        """Send a message to each other server with this probability."""
        return [Send(to, message) for to in self.ring.some(self.others, share)]


def broadcast_body(effect: Effect) -> AnyMessage | None:
    """Return the body of the message that an effect broadcasts, if it broadcasts one."""
    if isinstance(effect, Broadcast):
        return effect.message.body
    return None


def broadcast_proposal(effect: Effect) -> PrePrepare | None:
    """Return the proposal that an effect broadcasts, if it broadcasts one."""
    body = broadcast_body(effect)
    if isinstance(body, PrePrepare):
        return body
    return None


def received_body(event: Event) -> AnyMessage | None:
    """Return the body of the message that an event brings, if it brings one."""
    if isinstance(event, Received):
        return event.message.body
    return None
