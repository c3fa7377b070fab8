"""Faulty leaders: they propose two things at once, wrong results, or sets that leave somebody out.

Each of them votes for what it proposes.
"""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Send
from fedrfq.consensus.messages import (
    DIGEST,
    ChangeProposal,
    Entries,
    Inputs,
    Kind,
    Message,
    Part,
    PartKind,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
)
from fedrfq.simulator.adversaries.behaviour import (
    Behaviour,
    broadcast_body,
    broadcast_proposal,
    received_body,
)
from fedrfq.simulator.adversaries.ring import Choice
from fedrfq.simulator.party import Action


class Equivocate(Behaviour):
    """Sends different proposals, lists, change proposals and votes to different servers.

    It also proposes where another server leads.
    """

    def twist(self, effect: Effect) -> list[Action]:
        if not isinstance(effect, Broadcast):
            return [effect]
        message = effect.message
        body = message.body
        if isinstance(body, PrePrepare):
            return self._propose_two(body)
        if isinstance(body, UploadList):
            return self._send_two_lists(message)
        if isinstance(body, ChangeProposal):
            return self._send_two_change_proposals(message, body)
        if body.kind in (Kind.PREPARE, Kind.COMMIT):
            return self.send_to_some(message, self.rng.choice((0.3, 0.7, 1.0)))
        return [effect]

    def _propose_two(self, proposal: PrePrepare) -> list[Action]:
        """Send each server one of two proposals, and sometimes some of them both."""
        other = self.ring.other_choice(proposal)
        if other is None:
            return self.ring.propose(proposal, self.ring.honest)
        first_targets = self.ring.some(self.ring.honest)
        overlap = self.rng.random() < 0.15
        second_targets = [s for s in self.ring.honest if overlap or s not in first_targets]
        return [
            *self.ring.propose(proposal, first_targets),
            *self.ring.propose(other.in_place_of(proposal), second_targets),
        ]

    def _send_two_lists(self, message: Message) -> list[Action]:
        other = self.ring.mint_list(self.me, message.body.round)
        if other is None:
            return [Broadcast(message)]
        return self.send_to_some(message, 0.7) + self.send_to_some(other)

    def _send_two_change_proposals(self, message: Message, body: ChangeProposal) -> list[Action]:
        other = self.ring.sign(self.me, replace(body, content=self.ring.successor(body.round)))
        return self.send_to_some(message, 0.7) + self.send_to_some(other)

    def extra(self, event: Event) -> list[Action]:
        """Propose where another server leads, and propose again to those who voted for ours."""
        body = received_body(event)
        if isinstance(body, Prepare) and self.ring.roster.leader(body.round, body.view) == self.me:
            return self._propose_again(body)
        if not isinstance(body, PrePrepare) or body.round != self.ring.round:
            return []
        if self.rng.random() > 0.5:
            return []
        choice = self.ring.draw_choice(body.round)
        if choice is None:
            targets = self.ring.some(self.ring.honest)
            return self.ring.vote_together(body.round, body.view, body.record, targets)
        rival = replace(choice.in_place_of(body), server=self.me)
        return self.ring.propose(rival, self.others)

    def _propose_again(self, vote: Prepare) -> list[Action]:
        if vote.view != 0 or self.rng.random() >= 0.5:
            return []
        choice = self.ring.draw_choice(vote.round)
        if choice is None:
            return []
        proposal = PrePrepare(vote.round, 0, self.me, choice.record, choice.lists, ())
        return self.ring.propose(proposal, [vote.server])


class Wrong(Behaviour):
    """Proposes results that nobody gets who computes them, and votes for them.

    It also tells a server that has lost its log that nothing is decided yet.
    """

    def twist(self, effect: Effect) -> list[Action]:
        if isinstance(effect, Send):
            return [Send(effect.to, self._deny_progress(effect.message))]
        proposal = broadcast_proposal(effect)
        if proposal is None:
            return [effect]
        record = self._falsify(proposal.record)
        if self.rng.random() < 0.2:
            record = self._end_run(proposal)
        return self.ring.propose(replace(proposal, record=record), self.ring.honest)

    def _deny_progress(self, message: Message) -> Message:
        """Turn an answer to a server that rejoins into "nothing is decided"."""
        part = message.body
        if not isinstance(part, Part) or part.what != PartKind.STANDING:
            return message
        # An answer starts with the nonce of its request; what follows is the last certificate.
        denial = Part(0, PartKind.STANDING, part.content[:DIGEST])
        return self.ring.rules.unsigned(denial)

    def _end_run(self, proposal: PrePrepare) -> Record:
        """Name a successor that somebody has proposed, but too few."""
        successor = self.ring.successor(proposal.round)
        digest = self.ring.keep_part(proposal.round, PartKind.SUCCESSOR, successor)
        return replace(proposal.record, successor=digest)

    def _falsify(self, record: Record) -> Record:
        other = self.rng.randbytes(32)
        ways = (
            replace(record, globals_=other),
            replace(record, verdicts=other),
            replace(record, state=other),
            replace(record, public=other),
            replace(record, successor=other),
            replace(record, previous=other),
            replace(record, set_=other),
        )
        return self.rng.choice(ways)


class Censor(Behaviour):
    """Leaves a client out wherever it can, and adds uploads that do not belong there."""

    def twist(self, effect: Effect) -> list[Action]:
        body = broadcast_body(effect)
        if isinstance(body, PrePrepare):
            return self._propose_censored(body)
        if isinstance(body, UploadList):
            return [self._censor_list(effect, body)]
        return [effect]

    def _victim(self, round_: int) -> int:
        return (self.me + round_) % len(self.ring.roster.clients)

    def _censor_list(self, effect: Effect, body: UploadList) -> Action:
        kept = tuple(entry for entry in body.entries if entry[0] != self._victim(body.round))
        if len({client for client, _ in kept}) < self.ring.roster.minimum:
            return effect
        censored = UploadList(body.round, self.me, kept, body.proposals)
        return Broadcast(self.ring.sign(self.me, censored))

    def _propose_censored(self, proposal: PrePrepare) -> list[Action]:
        ways = (
            self._too_few_lists,
            self._own_list_only,
            self._drop_entry,
            self._lists_without_victim,
            self._add_entry,
            self._count_equivocators,
        )
        # Without lists the leader is bound to a prepared value, and there is nothing to choose.
        if proposal.lists:
            choice = self.rng.choice(ways)(proposal)
            if choice is not None:
                proposal = choice.in_place_of(proposal)
        return self.ring.propose(proposal, self.ring.honest)

    def _omits_victim(self, message: Message, round_: int) -> bool:
        assert isinstance(message.body, UploadList)
        return all(client != self._victim(round_) for client, _ in message.body.entries)

    def _too_few_lists(self, proposal: PrePrepare) -> Choice | None:
        """Use too few lists, and first those that leave the victim out."""
        number = self.rng.choice((1, self.ring.roster.f + 1, len(proposal.lists) - 1))
        best = sorted(proposal.lists, key=lambda m: not self._omits_victim(m, proposal.round))
        return self.ring.choice_from(proposal.round, tuple(best[:number]))

    def _own_list_only(self, proposal: PrePrepare) -> Choice | None:
        """Put the own list in the place of all lists."""
        mine = self.ring.mint_list(self.me, proposal.round)
        if mine is None:
            return None
        return self.ring.choice_from(proposal.round, (mine,) * len(proposal.lists))

    def _drop_entry(self, proposal: PrePrepare) -> Choice | None:
        """Keep the proper lists, but propose less than their union."""
        inputs = self.ring.rules.union(proposal.lists)[0]
        if inputs.proposals and self.rng.random() < 0.5:
            inputs = inputs._replace(proposals=self._without_one(inputs.proposals))
        elif inputs.uploads:
            inputs = inputs._replace(uploads=self._without_one(inputs.uploads))
        return self._unjustified(proposal, inputs)

    def _without_one(self, entries: Entries) -> Entries:
        dropped = self.rng.choice(entries)
        return tuple(entry for entry in entries if entry != dropped)

    def _lists_without_victim(self, proposal: PrePrepare) -> Choice | None:
        """Look for lists that all leave the victim out, which is allowed where few list it."""
        for _ in range(4):
            choice = self.ring.draw_choice(proposal.round)
            if choice is None:
                continue
            if all(self._omits_victim(message, proposal.round) for message in choice.lists):
                return choice
        return None

    def _add_entry(self, proposal: PrePrepare) -> Choice | None:
        """Keep the proper lists, but propose an upload that is in none of them."""
        minted = self.ring.mint_upload(proposal.round)
        if minted is None or not isinstance(minted.body, Upload):
            return None
        client = minted.body.client
        inputs = self.ring.rules.union(proposal.lists)[0]
        others = [entry for entry in inputs.uploads if entry[0] != client]
        uploads = tuple(sorted([*others, (client, minted.digest)]))
        return self._unjustified(proposal, inputs._replace(uploads=uploads))

    def _count_equivocators(self, proposal: PrePrepare) -> Choice | None:
        """Count one upload or proposal of each party that sent two, although neither may count."""
        counted, repeated = self.ring.rules.union(proposal.lists)
        uploads = {**dict(repeated.uploads), **dict(counted.uploads)}
        proposals = {**dict(repeated.proposals), **dict(counted.proposals)}
        one_each = Inputs(tuple(sorted(uploads.items())), tuple(sorted(proposals.items())))
        return self._unjustified(proposal, one_each)

    def _unjustified(self, proposal: PrePrepare, inputs: Inputs) -> Choice | None:
        """Return a choice of this set, with the lists of the honest proposal beside it."""
        record = self.ring.compute_record(proposal.round, inputs)
        if record is None:
            return None
        return Choice(record, proposal.lists)
