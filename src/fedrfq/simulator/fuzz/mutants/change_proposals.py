"""Mutants that mishandle change proposals, and the successor that follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedrfq.consensus.events import Application
from fedrfq.consensus.messages import (
    ChangeProposal,
    Inputs,
    Kind,
    Message,
    PrePrepare,
    UploadList,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import (
    with_change_proposals,
    with_crashes,
    with_servers,
)


class _CountsServers(Rules):
    """Rules under which servers with change proposals count as clients."""

    def proper_list(self, body: UploadList) -> bool:
        clients = {client for client, _ in body.entries}
        return len(clients) < self.roster.minimum or super().proper_list(body)


@breaks("promise", rules=_CountsServers)
class ChangeProposalsCount(Replica):
    """Change proposals count towards the minimum of clients that a round needs."""

    def _overdue(self, held: int) -> bool:
        return super()._overdue(held + self.proposal_pool.held)


@breaks("progress")
class ChangeProposalsAwaited(Replica):
    """A server does not close a round before all servers have made a change proposal."""

    def _close(self) -> bool:
        return self.proposal_pool.held == self.roster.n and super()._close()


@breaks("double-sign", hunt=(with_change_proposals, with_crashes(Kind.PROPOSAL)))
class ChangeProposalForgotten(Replica):
    """After a restart a server makes another change proposal."""

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        super().__init__(rules, me, signer, application, log)
        self.state.own.pop(Kind.PROPOSAL, None)


@breaks("validity", hunt=(with_servers("wrong"),))
class SuccessorUnchecked(Replica):
    """A server takes the leader's word for the federation that follows."""

    def _follows(self, proposal: PrePrepare) -> bool:
        inputs = self._inputs(proposal)
        if inputs is None:
            return False
        computed = self._compute(inputs, proposal.lists)
        return replace(computed, successor=proposal.record.successor) == proposal.record


@breaks("validity")
class SuccessorOfFew(Rules):
    """The proposals of f+1 servers are enough for a successor."""

    def successor(self, proposals: Iterable[ChangeProposal]) -> bytes:
        by_text: dict[bytes, set[int]] = {}
        for proposal in proposals:
            by_text.setdefault(proposal.content, set()).add(proposal.server)
        few = [text for text, servers in by_text.items() if len(servers) > self.roster.f]
        return min(few, default=b"")


@breaks("union", hunt=(with_servers("equivocate"), with_change_proposals))
class ProposalsCountTwice(Rules):
    """A server that has proposed two successors counts for both."""

    def union(self, lists: Iterable[Message]) -> tuple[Inputs, Inputs]:
        counted, repeated = super().union(lists)
        proposals = tuple(sorted(counted.proposals + repeated.proposals))
        return counted._replace(proposals=proposals), repeated._replace(proposals=())


@breaks("over")
class NeverOver(Replica):
    """A server goes on after the round that ends the run."""

    def enter_round(self, round_: int, last_lists: dict[int, Message]) -> None:
        self.state.over = False
        super().enter_round(round_, last_lists)
