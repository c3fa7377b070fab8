"""Attacks on the view change: a new view is to forget what an old one may have decided."""

from __future__ import annotations

from fedrfq.consensus.events import Broadcast, Effect, Event
from fedrfq.consensus.messages import Certificate, Kind, Message, PrePrepare, Record, ViewChange
from fedrfq.simulator.adversaries.bad_new_views import ATTACKS, Attack
from fedrfq.simulator.adversaries.behaviour import received_body
from fedrfq.simulator.adversaries.forging import Forge
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_MAX_VOLLEYS = 3  # of attacks on one view
_VOLLEY = 4  # attacks


class Mutate(Forge):
    """Leads new views with improper view changes, claims false certificates, votes at random."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.volleys: dict[tuple[int, int], int] = {}  # by round and view

    def twist(self, effect: Effect) -> list[Action]:
        if not isinstance(effect, Broadcast):
            return [effect]
        body = effect.message.body
        if isinstance(body, ViewChange):
            return self._twist_change(effect.message, body)
        if isinstance(body, PrePrepare):
            return self._twist_proposal(body)
        if body.kind in (Kind.PREPARE, Kind.COMMIT):
            return self.send_to_some(effect.message, self.rng.choice((0.0, 0.4, 1.0)))
        return [effect]

    def _twist_proposal(self, proposal: PrePrepare) -> list[Action]:
        """Propose to some, so that some prepare it; in a later view, an attack may come instead."""
        if proposal.view and self.rng.random() < 0.7:
            return []
        choice = self.ring.other_choice(proposal)
        if choice is not None:
            proposal = choice.in_place_of(proposal)
        return self.ring.propose(proposal, self.ring.some(self.ring.honest, 0.8))

    def _twist_change(self, message: Message, body: ViewChange) -> list[Action]:
        """Send the true view change, or one that conceals, claims too much, or claims too old."""
        # Only the drawn one is made, because making it draws from the generator too.
        certificates = (
            lambda: self.lowest_prepared(body.round, body.view - 1),
            lambda: self.fake_prepared(body.round, body.view),
            lambda: None,
        )
        if self.rng.random() < 0.2:
            return [Broadcast(message)]
        certificate = self.rng.choice(certificates)()
        other = self.ring.view_change(self.me, body.round, body.view, certificate)
        return [Broadcast(other or message)]

    def fake_prepared(self, round_: int, view: int) -> Certificate | None:
        """Return a certificate for something that was never prepared in an earlier view.

        Too few signed it, or one server signed it many times, or the votes are of other views or
        phases.
        """
        choice = self.ring.draw_choice(round_)
        if choice is None:
            return None
        value = choice.record.value(self.ring.rules.run)
        earlier = int(self.rng.random() * view)
        signatures = self.fake_signatures(Kind.PREPARE, earlier, round_, value)
        if self.rng.random() < 0.4:
            signatures = self._unrelated_signatures(round_) or signatures
        return Certificate(Kind.PREPARE, earlier, choice.record, signatures)

    def _unrelated_signatures(self, round_: int) -> tuple[tuple[int, bytes], ...]:
        """Return signatures of votes that are real, but for something else."""
        signatures: dict[int, bytes] = {}
        for (_, vote_round, _, _), votes in self.ring.votes.items():
            if vote_round == round_:
                signatures |= {server: vote.signature for server, vote in votes.items()}
        return tuple(sorted(signatures.items())[: self.ring.roster.quorum])

    def extra(self, event: Event) -> list[Action]:
        body = received_body(event)
        if isinstance(body, ViewChange):
            return self._on_view_change(body)
        if not isinstance(body, PrePrepare):
            return []
        if body.view:
            return self._support(body)
        return self._strange_votes(body.round, body.view, body.record)

    def _support(self, proposal: PrePrepare) -> list[Action]:
        """Help an honest leader's proposal through, in case it is a mistake.

        Those who vote for it need the set of uploads and the ring's votes.
        """
        if self.rng.random() < 0.3:
            return self._strange_votes(proposal.round, proposal.view, proposal.record)
        actions: list[Action] = []
        part = self.ring.parts.get(proposal.record.set_)
        if part is not None and not proposal.lists:
            actions.append(Broadcast(part))
        return actions + self.ring.vote_together(
            proposal.round, proposal.view, proposal.record, self.ring.honest
        )

    def _strange_votes(self, round_: int, view: int, record: Record) -> list[Action]:
        """Sometimes vote for a value of this round, known or random, in this view or another."""
        if self.rng.random() < 0.5:
            return []
        known = list(self.ring.records.get(round_, {}).values())
        value = self.rng.choice([*known, record]).value(self.ring.rules.run)
        if self.rng.random() < 0.2:
            value = self.rng.randbytes(32)
        view = max(0, view + self.rng.choice((-1, 0, 0, 0, 1, 2)))
        kinds = self.rng.sample((Kind.PREPARE, Kind.COMMIT), 1 + int(self.rng.random() * 2))
        actions: list[Action] = []
        for kind in kinds:
            actions += self.send_to_some(self.ring.vote(kind, self.me, round_, view, value))
        return actions

    def _on_view_change(self, body: ViewChange) -> list[Action]:
        """Hurry others along to the view; if this server leads it, attack."""
        place = (body.round, body.view)
        if self.ring.roster.leader(*place) != self.me:
            if self.rng.random() < 0.2:
                return self._hurry(body)
            return []
        if self.volleys.get(place, 0) >= _MAX_VOLLEYS or self.rng.random() < 0.3:
            return []
        self.volleys[place] = self.volleys.get(place, 0) + 1
        actions: list[Action] = []
        for attack in self.rng.sample(ATTACKS, _VOLLEY):
            actions += self._attack(attack, *place)
        return actions

    def _attack(self, attack: Attack, round_: int, view: int) -> list[Action]:
        new_view = attack(self, round_, view)
        if new_view is None:
            return []
        choice, changes = new_view
        proposal = PrePrepare(round_, view, self.me, choice.record, choice.lists, changes)
        return self.ring.propose(proposal, self.ring.honest)

    def _hurry(self, body: ViewChange) -> list[Action]:
        change = self.ring.view_change(self.me, body.round, body.view)
        if change is None:
            return []
        return self.send_to_some(change, 0.8)

    def known_changes(self, round_: int, view: int) -> dict[int, Message]:
        """Return the view changes for a view by server; all faulty ones show nothing prepared."""
        changes = dict(self.ring.changes.get((round_, view), {}))
        for server in self.ring.servers:
            change = self.ring.view_change(server, round_, view)
            if change is not None:
                changes[server] = change
        return changes
