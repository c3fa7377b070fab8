"""A server that lies as it comes: each thing it says may be twisted in any of the ways the others know."""

from __future__ import annotations

from fedrfq.consensus.events import Effect, Event
from fedrfq.consensus.messages import Message
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.adversaries.changing import Mutate
from fedrfq.simulator.adversaries.forging import Forge
from fedrfq.simulator.adversaries.leaders import Censor, Equivocate, Wrong
from fedrfq.simulator.adversaries.repeating import Flood, Replay
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_WAYS: tuple[type[Behaviour], ...] = (
    Behaviour,
    Equivocate,
    Wrong,
    Censor,
    Forge,
    Mutate,
    Replay,
    Flood,
)


class Lie(Behaviour):
    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.ways = [way(ring, me) for way in _WAYS]

    def twist(self, effect: Effect) -> list[Action]:
        return self.rng.choice(self.ways).twist(effect)

    def extra(self, event: Event) -> list[Action]:
        return self.rng.choice(self.ways).extra(event)
