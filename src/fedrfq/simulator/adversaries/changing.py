"""Attacks on the change of views: what a quorum may have decided in an old view is to be forgotten in the new one."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Received
from fedrfq.consensus.messages import Certificate, Kind, Message, PrePrepare, Record, ViewChange
from fedrfq.simulator.adversaries.bad_new_views import ATTACKS, Attack
from fedrfq.simulator.adversaries.behaviour import proposal_of
from fedrfq.simulator.adversaries.forging import Forge
from fedrfq.simulator.adversaries.ring import Ring
from fedrfq.simulator.party import Action

_MOST_ATTACKS = 3  # volleys on one view


class Mutate(Forge):
    """Leads new views with view changes of the wrong kind, claims what was never prepared, votes out of turn."""

    def __init__(self, ring: Ring, me: int, log: tuple[Message, ...] = ()) -> None:
        super().__init__(ring, me, log)
        self.attacks: dict[tuple[int, int], int] = {}

    def twist(self, effect: Effect) -> list[Action]:
        if not isinstance(effect, Broadcast):
            return [effect]
        body = effect.message.body
        if isinstance(body, ViewChange):
            return self._change(effect.message, body)
        message = proposal_of(effect)
        if message is not None and isinstance(message.body, PrePrepare):
            return self._propose_first(message.body)
        if body.kind in (Kind.PREPARE, Kind.COMMIT):
            return self.to_some(effect.message, self.rng.choice((0.0, 0.4, 1.0)))
        return [effect]

    def _propose_first(self, body: PrePrepare) -> list[Action]:
        """In view 0 to some, so that some prepare it and some do not; in a later view an attack may come instead."""
        if body.view and self.rng.random() < 0.7:
            return []
        if body.lists:
            choice = self.ring.choice(body.round)
        else:
            choice = None
        if choice is not None:
            body = replace(body, record=choice.record, lists=choice.lists)
        return list(self.ring.propose(body, self.ring.some(self.ring.honest, 0.8)))

    def _change(self, message: Message, body: ViewChange) -> list[Action]:
        """The true one, one that conceals, one that claims too much, or one that claims what others have left behind."""
        ways = (
            lambda: self.prepared(body.round, body.view - 1),
            lambda: self.fake_prepared(body.round, body.view),
            lambda: None,
        )
        if self.rng.random() < 0.2:
            return [Broadcast(message)]
        other = self.ring.change(self.me, body.round, body.view, self.rng.choice(ways)())
        return [Broadcast(other or message)]

    def fake_prepared(self, round_: int, view: int) -> Certificate | None:
        """Of something that was never prepared; by too few, by one many times, by votes of other views or phases."""
        choice = self.ring.choice(round_)
        if choice is None:
            return None
        value = choice.record.value(self.ring.rules.run)
        earlier = int(self.rng.random() * view)
        signatures = self.fake(Kind.PREPARE, earlier, round_, value)
        if self.rng.random() < 0.4:
            signatures = self._mixed(round_) or signatures
        return Certificate(Kind.PREPARE, earlier, choice.record, signatures)

    def _mixed(self, round_: int) -> tuple[tuple[int, bytes], ...] | None:
        """Votes that are real, but not for this."""
        found: dict[int, bytes] = {}
        for (_, of, _, _), votes in self.ring.votes.items():
            if of == round_:
                found |= {server: vote.signature for server, vote in votes.items()}
        if found:
            return tuple(sorted(found.items())[: self.ring.roster.quorum])
        return None

    def extra(self, event: Event) -> list[Action]:
        if isinstance(event, Received):
            body = event.message.body
        else:
            body = None
        if isinstance(body, ViewChange):
            return self._on_change(body)
        if not isinstance(body, PrePrepare):
            return []
        if body.view:
            return self._help(body)
        return self._strange_votes(body.round, body.view, body.record)

    def _help(self, body: PrePrepare) -> list[Action]:
        """An honest leader's mistake, if it is one: those who vote for it need the set and our votes."""
        if self.rng.random() < 0.3:
            return self._strange_votes(body.round, body.view, body.record)
        part = self.ring.parts.get(body.record.set_)
        found: list[Action]
        if part is not None and not body.lists:
            found = [Broadcast(part)]
        else:
            found = []
        return found + list(self.ring.back(body.round, body.view, body.record, self.ring.honest))

    def _strange_votes(self, round_: int, view: int, record: Record) -> list[Action]:
        """Now and then, for a value of this round, known or random, in this view or another."""
        if self.rng.random() < 0.5:
            return []
        known = list(self.ring.records.get(round_, {}).values())
        value = self.rng.choice([*known, record]).value(self.ring.rules.run)
        if self.rng.random() < 0.2:
            value = self.rng.randbytes(32)
        view = max(0, view + self.rng.choice((-1, 0, 0, 0, 1, 2)))
        kinds = self.rng.sample((Kind.PREPARE, Kind.COMMIT), 1 + int(self.rng.random() * 2))
        return [
            a
            for kind in kinds
            for a in self.to_some(self.ring.vote(kind, self.me, round_, view, value))
        ]

    def _on_change(self, body: ViewChange) -> list[Action]:
        """Hurry others along; and where one of us leads the view, attack."""
        place = body.round, body.view
        leader = self.ring.roster.leader(*place)
        if leader != self.me:
            if self.rng.random() < 0.2:
                return self._hurry(body)
            return []
        if self.attacks.get(place, 0) >= _MOST_ATTACKS or self.rng.random() < 0.3:
            return []
        self.attacks[place] = self.attacks.get(place, 0) + 1
        return [
            action
            for attack in self.rng.sample(ATTACKS, 4)
            for action in self._attack(attack, *place)
        ]

    def _attack(self, attack: Attack, round_: int, view: int) -> list[Action]:
        made = attack(self, round_, view)
        if made is None:
            return []
        proposal = PrePrepare(round_, view, self.me, made[0].record, made[0].lists, made[1])
        return list(self.ring.propose(proposal, self.ring.honest))

    def _hurry(self, body: ViewChange) -> list[Action]:
        change = self.ring.change(self.me, body.round, body.view)
        if change is not None:
            return self.to_some(change, 0.8)
        return []

    def known(self, round_: int, view: int) -> dict[int, Message]:
        """The view changes there are, with those of all the faulty: nothing prepared, they say."""
        ours = {server: self.ring.change(server, round_, view) for server in self.ring.servers}
        return self.ring.changes.get((round_, view), {}) | {
            s: m for s, m in ours.items() if m is not None
        }
