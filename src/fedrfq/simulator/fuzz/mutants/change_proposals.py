"""Mutants that mishandle change proposals, which servers make under client numbers."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.events import Application
from fedrfq.consensus.messages import Kind, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


class _CountsServers(Rules):
    """Rules under which change proposals count as registered clients."""

    def registered(self, clients: Iterable[int]) -> int:
        return len(set(clients))


@breaks("promise", rules=_CountsServers)
class ChangeProposalsCount(Replica):
    """Change proposals count towards the minimum of clients that a round needs."""

    def _close(self) -> bool:
        self.upload_pool.held = len(self.upload_pool.by_client)
        return super()._close()


@breaks("progress")
class ChangeProposalsAwaited(Replica):
    """A server does not close a round before all servers have made a change proposal."""

    def _close(self) -> bool:
        clients_and_servers = len(self.roster.keys) - self.roster.n
        return len(self.upload_pool.by_client) == clients_and_servers and super()._close()


@breaks("double-sign")
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
        self.state.own.pop(Kind.UPLOAD, None)
