"""A server whose signatures do not hold."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Send
from fedrfq.consensus.messages import SIGNATURE, Commit, Message, Prepare, UploadList, encode
from fedrfq.simulator.adversaries.behaviour import Behaviour
from fedrfq.simulator.party import Action


class Missign(Behaviour):
    """Sends its own lists and votes over its own links, but with signatures that do not hold.

    Others may count them until they have to show them to somebody. Some servers get the true
    message instead, or both, or a second vote with a bad signature that conflicts with the first.
    """

    def twist(self, effect: Effect) -> list[Action]:
        if not isinstance(effect, Broadcast):
            return [effect]
        body = effect.message.body
        if not isinstance(body, UploadList | Prepare | Commit):
            return [effect]
        actions: list[Action] = []
        for to in self.others:
            actions += [Send(to, message) for message in self._choose(effect.message, body)]
        return actions

    def _choose(self, true: Message, body: UploadList | Prepare | Commit) -> tuple[Message, ...]:
        """Return what one server gets in place of a message."""
        bad = self._missigned(body)
        other = bad
        if not isinstance(body, UploadList):
            other = self._missigned(replace(body, value=self.rng.randbytes(32)))
        return self.rng.choice(
            ((bad,), (bad,), (true,), (bad, true), (true, bad), (true, other), (other, true))
        )

    def _missigned(self, body: UploadList | Prepare | Commit) -> Message:
        run = self.ring.rules.run
        return Message(run, body, encode(run, body), self.rng.randbytes(SIGNATURE))
