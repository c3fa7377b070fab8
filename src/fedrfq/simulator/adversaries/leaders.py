"""Evil leaders: of two proposals, of wrong results, of sets that leave somebody out; each votes for what it proposes."""

from __future__ import annotations

from dataclasses import replace

from fedrfq.consensus.events import Broadcast, Effect, Event, Received, Send
from fedrfq.consensus.messages import (
    DIGEST,
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
from fedrfq.simulator.adversaries.behaviour import Behaviour, proposal_of
from fedrfq.simulator.adversaries.ring import Choice
from fedrfq.simulator.party import Action


class Equivocate(Behaviour):
    """Different proposals, lists, change proposals and votes to different servers; proposals also where another leads."""

    def twist(self, effect: Effect) -> list[Action]:
        message = proposal_of(effect)
        if message is not None and isinstance(message.body, PrePrepare):
            return self._split(message.body)
        if isinstance(effect, Broadcast) and effect.message.body.kind == Kind.LIST:
            return self._lists(effect.message)
        if isinstance(effect, Broadcast) and isinstance(effect.message.body, Upload):
            return self._change_proposals(effect.message, effect.message.body)
        if isinstance(effect, Broadcast) and effect.message.body.kind in (
            Kind.PREPARE,
            Kind.COMMIT,
        ):
            return self.to_some(effect.message, self.rng.choice((0.3, 0.7, 1.0)))
        return [effect]

    def _split(self, body: PrePrepare) -> list[Action]:
        """Each server gets one of two proposals, now and then both."""
        if body.lists:
            other = self.ring.choice(body.round)
        else:
            other = None
        if other is None:
            return list(self.ring.propose(body, self.ring.honest))
        second = replace(body, record=other.record, lists=other.lists)
        first_to = self.ring.some(self.ring.honest)
        both = self.rng.random() < 0.15
        second_to = [server for server in self.ring.honest if both or server not in first_to]
        return [*self.ring.propose(body, first_to), *self.ring.propose(second, second_to)]

    def _lists(self, message: Message) -> list[Action]:
        other = self.ring.own_list(self.me, message.body.round)
        if other is None:
            return [Broadcast(message)]
        return self.to_some(message, 0.7) + self.to_some(other)

    def _change_proposals(self, message: Message, body: Upload) -> list[Action]:
        other = self.ring.sign(self.me, replace(body, content=self.ring.content(body.round)))
        return self.to_some(message, 0.7) + self.to_some(other)

    def extra(self, event: Event) -> list[Action]:
        """Where another leads, a proposal all the same; and to one that has voted for ours, another one."""
        if isinstance(event, Received):
            body = event.message.body
        else:
            body = None
        if isinstance(body, Prepare) and self.ring.roster.leader(body.round, body.view) == self.me:
            return self._again(body)
        if (
            not isinstance(body, PrePrepare)
            or body.round != self.ring.round
            or self.rng.random() > 0.5
        ):
            return []
        choice = self.ring.choice(body.round)
        if choice is None:
            return list(
                self.ring.back(body.round, body.view, body.record, self.ring.some(self.ring.honest))
            )
        return list(
            self.ring.propose(
                replace(body, server=self.me, record=choice.record, lists=choice.lists), self.others
            )
        )

    def _again(self, vote: Prepare) -> list[Action]:
        if vote.view == 0 and self.rng.random() < 0.5:
            choice = self.ring.choice(vote.round)
        else:
            choice = None
        if choice is None:
            return []
        return list(
            self.ring.propose(
                PrePrepare(vote.round, 0, self.me, choice.record, choice.lists, ()), [vote.server]
            )
        )


class Wrong(Behaviour):
    """Proposes what nobody comes to who computes it, as if it were right, and votes for it; and tells one that has lost
    its log that nothing is decided yet."""

    def twist(self, effect: Effect) -> list[Action]:
        if (
            isinstance(effect, Send)
            and isinstance(part := effect.message.body, Part)
            and part.what == PartKind.STANDING
        ):
            return [
                Send(
                    effect.to,
                    self.ring.rules.unsigned(Part(0, PartKind.STANDING, part.content[:DIGEST])),
                )
            ]
        message = proposal_of(effect)
        if message is None or not isinstance(message.body, PrePrepare):
            return [effect]
        body = message.body
        return list(
            self.ring.propose(replace(body, record=self._falsified(body.record)), self.ring.honest)
        )

    def _falsified(self, record: Record) -> Record:
        other = self.rng.randbytes(32)
        ways = (
            replace(record, globals_=other),
            replace(record, verdicts=other),
            replace(record, state=other),
            replace(record, previous=other),
            replace(record, set_=other),
        )
        return self.rng.choice(ways)


class Censor(Behaviour):
    """Leaves a client out wherever it can, and puts in what does not belong there."""

    def twist(self, effect: Effect) -> list[Action]:
        message = proposal_of(effect)
        if message is not None and isinstance(message.body, PrePrepare):
            return self._propose(message.body)
        if isinstance(effect, Broadcast) and isinstance(effect.message.body, UploadList):
            return [Broadcast(self._list(effect.message))]
        return [effect]

    def _victim(self, round_: int) -> int:
        return (self.me + round_) % len(self.ring.roster.clients)

    def _list(self, message: Message) -> Message:
        body = message.body
        assert isinstance(body, UploadList)
        kept = tuple(entry for entry in body.entries if entry[0] != self._victim(body.round))
        if len({client for client, _ in kept}) < self.ring.roster.minimum:
            return message
        return self.ring.sign(self.me, UploadList(body.round, self.me, kept))

    def _propose(self, body: PrePrepare) -> list[Action]:
        ways = (
            self._few_lists,
            self._one_list,
            self._left_out,
            self._best_lists,
            self._added,
            self._both_count,
        )
        if body.lists:
            choice = self.rng.choice(ways)(body)
        else:
            choice = None
        if choice is None:
            return list(self.ring.propose(body, self.ring.honest))
        return list(
            self.ring.propose(
                replace(body, record=choice.record, lists=choice.lists), self.ring.honest
            )
        )

    def _spares(self, message: Message, round_: int) -> bool:
        assert isinstance(message.body, UploadList)
        return all(client != self._victim(round_) for client, _ in message.body.entries)

    def _few_lists(self, body: PrePrepare) -> Choice | None:
        """Too few lists, those that leave the victim out before others."""
        number = self.rng.choice((1, self.ring.roster.f + 1, len(body.lists) - 1))
        best = sorted(body.lists, key=lambda m: not self._spares(m, body.round))
        return self.ring.follow(body.round, tuple(best[:number]))

    def _one_list(self, body: PrePrepare) -> Choice | None:
        """The own list in the place of all."""
        mine = self.ring.own_list(self.me, body.round)
        if mine is None:
            return None
        return self.ring.follow(body.round, (mine,) * len(body.lists))

    def _left_out(self, body: PrePrepare) -> Choice | None:
        """The proper lists, and a set that is not their union."""
        entries = self.ring.rules.union(body.lists)[0]
        if entries:
            dropped = self.rng.choice(entries)
        else:
            dropped = None
        record = self.ring.record(body.round, tuple(entry for entry in entries if entry != dropped))
        if record is None:
            return None
        return Choice(record, body.lists)

    def _best_lists(self, body: PrePrepare) -> Choice | None:
        """Of all the choices there are, one that leaves the victim out; this is allowed if few list it."""
        for _ in range(4):
            choice = self.ring.choice(body.round)
            if choice is not None and all(self._spares(m, body.round) for m in choice.lists):
                return choice
        return None

    def _added(self, body: PrePrepare) -> Choice | None:
        """An upload more than the lists have."""
        minted = self.ring.mint(body.round)
        if minted is None or not isinstance(minted.body, Upload):
            return None
        client = minted.body.client
        entries = self.ring.rules.union(body.lists)[0]
        kept = [entry for entry in entries if entry[0] != client]
        record = self.ring.record(body.round, tuple(sorted([*kept, (client, minted.digest)])))
        if record is None:
            return None
        return Choice(record, body.lists)

    def _both_count(self, body: PrePrepare) -> Choice | None:
        """One of two uploads of a client that sent two, as if it had sent one."""
        single, double = self.ring.rules.union(body.lists)
        record = self.ring.record(
            body.round, tuple(sorted({**dict(double), **dict(single)}.items()))
        )
        if record is None:
            return None
        return Choice(record, body.lists)
