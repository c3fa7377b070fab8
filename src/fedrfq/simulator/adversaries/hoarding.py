"""A server that keeps what it can prove to itself, until it hurts."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Received, Send
from fedrfq.consensus.messages import (
    Certificate,
    Fetch,
    Kind,
    Message,
    Part,
    PrePrepare,
    Record,
    ViewChange,
)
from fedrfq.simulator.adversaries.behaviour import Behaviour, proposal_of
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_WITHHELD = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)
_LATER = 2  # views, so that the others have computed something else in between


class Hoard(Behaviour):
    """As a leader it shows a set of its own to just so many that their votes and the ring's own, which are withheld, make
    a prepared certificate that nobody else has. A view or more later it shows it, again and again, before others can do
    without, and hands the set to nobody: all are bound to what some of them have once voted for."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.hidden: dict[
            int, tuple[int, Record]
        ] = {}  # by round, the view and what was proposed in it

    def step(self, event: Event) -> list[Action]:
        actions = super().step(event)
        asked = isinstance(event, Received) and isinstance(event.message.body, Fetch)
        return [
            a
            for a in actions
            if not (asked and isinstance(a, Send) and isinstance(a.message.body, Part))
        ]

    def twist(self, effect: Effect) -> list[Action]:
        message = proposal_of(effect)
        if message is not None and isinstance(message.body, PrePrepare):
            return self._propose(message.body)
        withheld = isinstance(effect, Broadcast | Send) and effect.message.body.kind in _WITHHELD
        if withheld:
            return []
        return [effect]

    def _propose(self, body: PrePrepare) -> list[Action]:
        if body.lists:
            choice = self.ring.choice(body.round)
        else:
            choice = None
        if choice is None or body.round in self.hidden:
            return []
        self.hidden[body.round] = body.view, choice.record
        few = self.rng.sample(self.ring.honest, self.ring.roster.quorum - len(self.ring.servers))
        proposal = self.ring.sign(self.me, replace(body, record=choice.record, lists=choice.lists))
        return [Send(to, proposal) for to in few]

    def extra(self, event: Event) -> list[Action]:
        """Shown when somebody leaves for a view, and as soon as the view before has its proposal or will not have one."""
        if isinstance(event, Received):
            body = event.message.body
        else:
            body = None
        if isinstance(body, ViewChange):
            ahead = self.ring.roster.leader(body.round, body.view) in self.ring.servers
            return self._reveal(body.round, body.view + ahead)
        if isinstance(body, PrePrepare):
            return self._reveal(body.round, body.view + 1)
        return []

    def _reveal(self, round_: int, view: int) -> list[Action]:
        proof = self._proof(round_, view)
        if proof is not None:
            change = self.ring.change(self.me, round_, view, proof)
        else:
            change = None
        if change is not None:
            return [Broadcast(change)]
        return []

    def _proof(self, round_: int, view: int) -> Certificate | None:
        """What is hidden, if it was voted for, and is old enough for this view."""
        if round_ not in self.hidden or view < self.hidden[round_][0] + _LATER:
            return None
        at, record = self.hidden[round_]
        value = record.value(self.ring.rules.run)
        for server in self.ring.servers:
            self.ring.vote(Kind.PREPARE, server, round_, at, value)
        votes = self.ring.votes[Kind.PREPARE, round_, at, value]
        if self.ring.rules.enough(votes):
            return self.ring.rules.certificate(list(votes.values()), record)
        return None
