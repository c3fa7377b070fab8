"""A server that keeps a proof to itself until showing it does harm."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Effect, Event, Send
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
from fedrfq.simulator.adversaries.behaviour import (
    Behaviour,
    broadcast_proposal,
    received_body,
)
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_WITHHELD = (Kind.PREPREPARE, Kind.PREPARE, Kind.COMMIT, Kind.VIEWCHANGE)
_REVEAL_AFTER = 2  # views, so that the others have computed something else in between


class Hoard(Behaviour):
    """Hoards a prepared certificate, and binds everyone to it when they can no longer follow it up.

    As a leader it shows its own choice to just enough servers that their votes and the ring's own
    votes, which are withheld, make up a prepared certificate that nobody else has. Two views later
    it shows the certificate again and again, before the others can do without it, and gives the set
    of uploads to nobody: all servers are then bound to what some of them once voted for.
    """

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.hidden: dict[int, tuple[int, Record]] = {}  # by round: the view, and the record

    def step(self, event: Event) -> list[Action]:
        actions = super().step(event)
        if not isinstance(received_body(event), Fetch):
            return actions
        return [action for action in actions if not _hands_out_part(action)]

    def twist(self, effect: Effect) -> list[Action]:
        proposal = broadcast_proposal(effect)
        if proposal is not None:
            return self._propose_to_few(proposal)
        if isinstance(effect, Broadcast | Send) and effect.message.body.kind in _WITHHELD:
            return []
        return [effect]

    def _propose_to_few(self, proposal: PrePrepare) -> list[Action]:
        choice = self.ring.other_choice(proposal)
        if choice is None or proposal.round in self.hidden:
            return []
        self.hidden[proposal.round] = (proposal.view, choice.record)
        # With the ring's own votes these make a quorum, and without them none.
        few = self.rng.sample(self.ring.honest, self.ring.roster.quorum - len(self.ring.servers))
        message = self.ring.sign(self.me, choice.in_place_of(proposal))
        return [Send(to, message) for to in few]

    def extra(self, event: Event) -> list[Action]:
        """Reveal the proof when somebody leaves for a view, or once the view before is settled.

        The view before is settled when it has its proposal, or will have none because a faulty
        server leads it.
        """
        body = received_body(event)
        if isinstance(body, ViewChange):
            view = body.view
            if self.ring.roster.leader(body.round, view) in self.ring.servers:
                view += 1
            return self._reveal(body.round, view)
        if isinstance(body, PrePrepare):
            return self._reveal(body.round, body.view + 1)
        return []

    def _reveal(self, round_: int, view: int) -> list[Action]:
        proof = self._proof(round_, view)
        if proof is None:
            return []
        change = self.ring.view_change(self.me, round_, view, proof)
        if change is None:
            return []
        return [Broadcast(change)]

    def _proof(self, round_: int, view: int) -> Certificate | None:
        """Return the hidden certificate, if it has its votes and is old enough for this view."""
        if round_ not in self.hidden:
            return None
        hidden_view, record = self.hidden[round_]
        if view < hidden_view + _REVEAL_AFTER:
            return None
        value = record.value(self.ring.rules.run)
        for server in self.ring.servers:
            self.ring.vote(Kind.PREPARE, server, round_, hidden_view, value)
        votes = self.ring.votes[Kind.PREPARE, round_, hidden_view, value]
        if not self.ring.rules.enough(votes):
            return None
        return self.ring.rules.certificate(list(votes.values()), record)


def _hands_out_part(action: Action) -> bool:
    return isinstance(action, Send) and isinstance(action.message.body, Part)
