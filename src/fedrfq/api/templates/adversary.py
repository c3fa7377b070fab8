"""example-adversary: a server of the committee that withholds half of what it should broadcast."""

from __future__ import annotations

import fedrfq
from fedrfq.consensus.events import Broadcast, Effect
from fedrfq.simulator.adversaries import Behaviour
from fedrfq.simulator.party import Action


@fedrfq.register("adversary", "example-adversary")
class ExampleAdversary(Behaviour):
    """Sends each broadcast to some of the servers only."""

    # An honest replica is inside: `twist` replaces what it does, `extra(event)` adds to it.
    def twist(self, effect: Effect) -> list[Action]:
        """Return what is done in place of an honest effect; random numbers from self.rng alone."""
        if isinstance(effect, Broadcast):
            return self.send_to_some(effect.message)
        return [effect]
