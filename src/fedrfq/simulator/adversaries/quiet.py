"""Servers that never say anything of their own: silent, forgetful, or two at once."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Effect, Event, Received, Send, Start
from fedrfq.consensus.messages import Message
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action


class Silent(Behaviour):
    """Says nothing at all; the ring still learns what it hears."""

    def step(self, event: Event) -> list[Action]:
        self.ring.learn(event)
        return []


class Amnesiac(Behaviour):
    """Crashes again and again, and each time comes back with only the log it first had."""

    away = 0  # events that it still misses

    def step(self, event: Event) -> list[Action]:
        if self.away == 0 and self.rng.random() < 0.02:
            self.away = 1 + int(self.rng.random() * 20)
            self.inner = self.make_replica(self.log)
        if self.away == 0:
            return super().step(event)
        self.away -= 1
        if self.away:
            return []
        return super().step(Start())


class Twins(Behaviour):
    """Two honest replicas with one key; each talks to its own half of the servers and clients.

    After Bano et al., "Twins: BFT Systems Made Robust" (2021).
    """

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.second = self.make_replica(log)
        parties = self.others + [~client for client in range(len(ring.roster.clients))]
        self.first_half = set(ring.some(parties))

    def step(self, event: Event) -> list[Action]:
        self.ring.learn(event)
        actions: list[Action] = []
        # The twins share one set of timers: whichever sets one last sets it for both.
        for is_first, twin in ((True, self.inner), (False, self.second)):
            if self._reaches(event, is_first):
                for effect in twin.step(event):
                    actions += self._to_half(effect, is_first)
        return actions

    def _reaches(self, event: Event, is_first: bool) -> bool:
        """Return whether a twin sees an event: of the other half's messages, one in ten."""
        return (
            not isinstance(event, Received)
            or (event.peer in self.first_half) == is_first
            or self.rng.random() < 0.1
        )

    def _to_half(self, effect: Effect, is_first: bool) -> list[Action]:
        if not isinstance(effect, Broadcast):
            return [effect]
        half = [server for server in self.others if (server in self.first_half) == is_first]
        return [Send(to, effect.message) for to in half]
