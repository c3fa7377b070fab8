"""Servers that speak as clients."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.messages import Kind, Message, Upload
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


class _Everybody(Rules):
    def registered(self, clients: Iterable[int]) -> int:
        return len(set(clients))


@breaks("promise", rules=_Everybody)
class ChangeProposalsCount(Replica):
    """Change proposals count towards the clients that a round needs."""

    def _close(self) -> bool:
        self.holdings.held = len(self.holdings.by_client)
        return super()._close()


@breaks("progress")
class ChangeProposalsAwaited(Replica):
    """A round is not closed before all servers have moved something."""

    def _close(self) -> bool:
        return (
            len(self.holdings.by_client) == len(self.roster.keys) - self.roster.n
            and super()._close()
        )


@breaks("double-sign")
class ChangeProposalForgotten(Replica):
    """After a restart it moves something else."""

    def _recall(self, message: Message) -> None:
        super()._recall(message)
        if isinstance(message.body, Upload):
            self.own.pop(Kind.UPLOAD, None)
