"""Mutants with flaws in the view change: what is carried from view to view, and who leads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedrfq.consensus.inbox import HANDLERS, on_proposal
from fedrfq.consensus.messages import Certificate, Kind, Message, PrePrepare, ViewChange
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import (
    decided_alone,
    prepared_in_secret,
    with_servers,
)


@breaks("agreement", hunt=(decided_alone,))
class PreparedLeftOut(Replica):
    """A server's view changes never say what it has prepared."""

    def leave_for(self, view: int) -> None:
        held = self.certificates.prepared
        self.certificates.prepared = None
        super().leave_for(view)
        self.certificates.prepared = held


@breaks("agreement", "validity", "union", hunt=(with_servers("mutate"), decided_alone))
class PreparedUnverified(Rules):
    """Prepared certificates in view changes are believed without proof."""

    def proper_change(self, body: ViewChange) -> bool:
        return super().proper_change(replace(body, prepared=None))


@breaks("agreement", hunt=(with_servers("mutate"), decided_alone, prepared_in_secret))
class LowestPrepared(Rules):
    """A new view carries on with the lowest prepared certificate."""

    def bound(self, changes: Iterable[Message]) -> Certificate | None:
        bodies = [message.body for message in changes]
        shown = [body.prepared for body in bodies if isinstance(body, ViewChange)]
        prepared = [certificate for certificate in shown if certificate is not None]
        return min(prepared, key=lambda certificate: certificate.view, default=None)


@breaks("agreement", hunt=(with_servers("mutate"), decided_alone))
class NewViewUnchecked(Rules):
    """A new view's value need not be the prepared one."""

    def proper_proposal(self, body: PrePrepare) -> bool:
        if super().proper_proposal(body):
            return True
        is_leader = body.server == self.roster.leader(body.round, body.view)
        is_of_round = body.record.round == body.round
        is_bound = self.bound(body.changes) is not None
        return is_bound and is_leader and is_of_round and self.proper_changes(body)


@breaks("agreement", hunt=(with_servers("mutate"), decided_alone))
class ChangesOfAnyView(Rules):
    """View changes for another view justify a new view."""

    def proper_changes(self, body: PrePrepare) -> bool:
        changes = [
            m for m in body.changes if isinstance(m.body, ViewChange) and self.proper_change(m.body)
        ]
        servers = {m.server for m in changes if m.body.round == body.round and self.authentic(m)}
        needed = self.roster.quorum if body.view else 0
        return len(servers) == len(body.changes) >= needed


@breaks("left-view", "agreement")
class VotesInViewsItLeft(Replica):
    """A server goes on voting in a view that it has left."""

    def _advance(self) -> None:
        super()._advance()
        if self.view > 0:
            here = self.view
            timing = self.state.timing
            self.state.enter_view(here - 1)
            while self._vote():
                pass
            self.state.enter_view(here)
            self.state.timing = timing


def _replace_proposal(replica: Replica, peer: int, message: Message) -> None:
    on_proposal(replica, peer, message)
    body = message.body
    assert isinstance(body, PrePrepare)
    if body.view == replica.view and replica.rules.proper(message):
        replica.votes.proposals[body.server] = message


@breaks("double-sign")
class DoubleVote(Replica):
    """A server votes for every proposal that it sees in a view."""

    handlers = HANDLERS | {PrePrepare: _replace_proposal}

    def _vote(self) -> bool:
        proposal = self._proposal()
        mine = self.state.own.get(Kind.PREPARE)
        if self.state.signed(Kind.PREPARE) and mine is not None and proposal is not None:
            is_new = mine.value != proposal.record.value(self.rules.run)
            if is_new and self.outcome is not None:
                return self._prepare()
        return super()._vote()


class _AnyLeader(Rules):
    """Rules under which every server may propose."""

    def proper_proposal(self, body: PrePrepare) -> bool:
        leader = self.roster.leader(body.round, body.view)
        return super().proper_proposal(replace(body, server=leader))


@breaks("leader", rules=_AnyLeader)
class LeaderUnchecked(Replica):
    """A server accepts a proposal of any server, not only of the leader."""

    def _proposal(self) -> PrePrepare | None:
        bodies = [m.body for m in self.votes.proposals.values() if isinstance(m.body, PrePrepare)]
        return next((body for body in bodies if body.view == self.view), None)


@breaks("progress")
class NeverJoins(Replica):
    """A server does not follow others to a higher view."""

    def _join(self) -> bool:
        return False


@breaks("progress")
class JoinsAnyone(Replica):
    """A server follows a single other server to any view."""

    def _join(self) -> bool:
        views = [m.view for s, m in self.view_changes.changes.items() if s != self.me]
        if max(views, default=0) <= self.view:
            return False
        self.leave_for(max(views))
        return True
