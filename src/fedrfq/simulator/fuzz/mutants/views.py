"""What is carried from view to view, and what is not."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import Certificate, Kind, Message, PrePrepare, ViewChange
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


@breaks("agreement")
class PreparedLeftOut(Replica):
    """Its view changes never say what it has prepared."""

    def _leave_for(self, view: int) -> None:
        held = self.prepared
        self.prepared = None
        super()._leave_for(view)
        self.prepared = held


@breaks("agreement", "validity", "union")
class PreparedUnverified(Rules):
    """Prepared certificates in view changes are believed."""

    def proper_change(self, body: ViewChange) -> bool:
        return super().proper_change(
            ViewChange(body.round, body.view, body.server, None, body.last)
        )


@breaks("agreement")
class LowestPrepared(Rules):
    """A new view carries on with the lowest prepared certificate."""

    def bound(self, changes: Iterable[Message]) -> Certificate | None:
        prepared = [
            change.body.prepared for change in changes if isinstance(change.body, ViewChange)
        ]
        return min((p for p in prepared if p is not None), key=lambda p: p.view, default=None)


@breaks("agreement")
class NewViewUnchecked(Rules):
    """A new view's value need not be the prepared one."""

    def proper_proposal(self, body: PrePrepare) -> bool:
        bound = self.bound(body.changes)
        leads = (
            body.server == self.roster.leader(body.round, body.view)
            and body.record.round == body.round
        )
        return super().proper_proposal(body) or (
            bound is not None and leads and self.proper_changes(body)
        )


@breaks("agreement")
class ChangesOfAnyView(Rules):
    """A new view may be justified by view changes for another view."""

    def proper_changes(self, body: PrePrepare) -> bool:
        changes = [
            m for m in body.changes if isinstance(m.body, ViewChange) and self.proper_change(m.body)
        ]
        mine = {m.server for m in changes if m.body.round == body.round and self.authentic(m)}
        return len(mine) == len(body.changes) >= (self.roster.quorum if body.view else 0)


@breaks("left-view", "agreement")
class VotesInViewsItLeft(Replica):
    """It goes on voting in a view that it has left."""

    def _advance(self) -> None:
        super()._advance()
        if self.view > 0:
            here = self.view
            timing = self.timing
            self._enter_view(here - 1)
            while self._vote():
                pass
            self._enter_view(here)
            self.timing = timing


@breaks("double-sign")
class DoubleVote(Replica):
    """It votes for every proposal it sees in a view."""

    def _on_proposal(self, peer: int, message: Message) -> None:
        super()._on_proposal(peer, message)
        body = message.body
        assert isinstance(body, PrePrepare)
        if body.view == self.view and self.rules.proper(message):
            self.proposals[body.server] = message

    def _signed(self, kind: Kind) -> bool:
        mine = self.own.get(kind)
        proposal = self._proposal()
        if kind != Kind.PREPARE or mine is None or proposal is None or not super()._signed(kind):
            return super()._signed(kind)
        return mine.value == proposal.record.value(self.rules.run)


class _AnyLeader(Rules):
    def proper_proposal(self, body: PrePrepare) -> bool:
        leader = self.roster.leader(body.round, body.view)
        return super().proper_proposal(
            PrePrepare(body.round, body.view, leader, body.record, body.lists, body.changes)
        )


@breaks("leader", rules=_AnyLeader)
class LeaderUnchecked(Replica):
    """It takes a proposal of whoever makes one."""

    def _proposal(self) -> PrePrepare | None:
        bodies = [m.body for m in self.proposals.values() if isinstance(m.body, PrePrepare)]
        return next((body for body in bodies if body.view == self.view), None)


@breaks("progress")
class NeverJoins(Replica):
    """It does not follow others to a higher view."""

    def _join(self) -> bool:
        return False


@breaks("progress")
class JoinsAnyone(Replica):
    """It follows a single server to whatever view that asks for."""

    def _join(self) -> bool:
        views = [m.view for s, m in self.changes.items() if s != self.me]
        if max(views, default=0) <= self.view:
            return False
        self._leave_for(max(views))
        return True
