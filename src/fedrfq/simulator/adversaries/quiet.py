"""Servers that say less than they should: nothing at all, or nothing they remember."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Effect, Event, Received, Send, Start
from fedrfq.consensus.messages import Message
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action


class Silent(Behaviour):
    def step(self, event: Event) -> list[Action]:
        self.ring.learn(event)
        return []


class Amnesiac(Behaviour):
    """Crashes and comes back again and again, each time with nothing but what it was first given."""

    away = 0

    def step(self, event: Event) -> list[Action]:
        if self.away == 0 and self.rng.random() < 0.02:
            self.away = 1 + int(self.rng.random() * 20)
            self.inner = self.honest(self.log)
        if self.away:
            self.away -= 1
            if self.away:
                return []
            return super().step(Start())
        return super().step(event)


class Twins(Behaviour):
    """Two honest replicas with one key: each speaks with its own half of the servers, and of the clients."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.second = self.honest(log)
        parties = self.others + [~client for client in range(len(ring.roster.clients))]
        self.mine = set(ring.some(parties))

    def step(self, event: Event) -> list[Action]:
        self.ring.learn(event)
        actions: list[Action] = []
        for first, twin in ((True, self.inner), (False, self.second)):
            if (
                not isinstance(event, Received)
                or (event.peer in self.mine) == first
                or self.rng.random() < 0.1
            ):
                actions += [
                    action for effect in twin.step(event) for action in self._to(effect, first)
                ]
        return actions

    def _to(self, effect: Effect, first: bool) -> list[Action]:
        if isinstance(effect, Broadcast):
            return [Send(to, effect.message) for to in self.others if (to in self.mine) == first]
        return [effect]
