"""A server that lies at random, in all the ways that the other behaviours know."""

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

_BEHAVIOURS: tuple[type[Behaviour], ...] = (
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
    """Draws a behaviour anew for every effect and every event; honesty is one of them."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.behaviours = [behaviour(ring, me) for behaviour in _BEHAVIOURS]

    def twist(self, effect: Effect) -> list[Action]:
        return self.rng.choice(self.behaviours).twist(effect)

    def extra(self, event: Event) -> list[Action]:
        return self.rng.choice(self.behaviours).extra(event)
