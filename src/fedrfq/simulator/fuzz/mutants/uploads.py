"""Mutants with flaws in what goes into a round: uploads, lists, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fedrfq.consensus.certificates import Certificates
from fedrfq.consensus.events import Application
from fedrfq.consensus.messages import Inputs, Kind, Message, PrePrepare, Upload, UploadList
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


@breaks("validity", "union", "agreement")
class ResultUnchecked(Replica):
    """A server votes for a result without recomputing it."""

    def _follows(self, proposal: PrePrepare) -> bool:
        super()._follows(proposal)
        return self._inputs(proposal) is not None


@breaks("union", "censorship")
class UnionUnchecked(Replica):
    """A server takes the leader's word for which uploads count."""

    def _inputs(self, proposal: PrePrepare) -> Inputs | None:
        return super()._inputs(replace(proposal, lists=()))


@breaks("union")
class FirstUploadCounts(Rules):
    """One upload counts of a client that sent two."""

    def union(self, lists: Iterable[Message]) -> tuple[Inputs, Inputs]:
        counted, repeated = super().union(lists)
        one_each = tuple(dict(repeated.uploads).items())
        uploads = tuple(sorted(counted.uploads + one_each))
        return counted._replace(uploads=uploads), repeated


@breaks("validity", "accusation")
class UploadsUnsigned(Rules):
    """Uploads need no signature."""

    def authentic(self, message: Message) -> bool:
        return isinstance(message.body, Upload) or super().authentic(message)


@breaks("union", "accusation")
class ListsUnsigned(Rules):
    """Lists in a proposal need no signature."""

    def authentic(self, message: Message) -> bool:
        return isinstance(message.body, UploadList) or super().authentic(message)


class _AdmitsAll:
    """An application that refuses nothing."""

    def __init__(self, application: Application) -> None:
        self.start = application.start
        self.decide = application.decide

    def refuses(self, upload: Upload) -> str | None:
        return None

    def refuses_successor(self, content: bytes) -> str | None:
        return None


@breaks("validity", "exception")
class InadmissibleStored(Replica):
    """A server stores uploads that the application refuses."""

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        super().__init__(rules, me, signer, _AdmitsAll(application), log)


@breaks("promise")
class ReceiptNotListed(Replica):
    """A server leaves an upload out of its list that it gave a receipt for."""

    def _close(self) -> bool:
        promised = self.upload_pool.promised
        if len(promised) <= self.roster.minimum or Kind.LIST in self.state.own:
            return super()._close()
        self.upload_pool.promised = promised - {max(promised)}
        closed = super()._close()
        self.upload_pool.promised = promised
        return closed


class _NoMinimum(Rules):
    """Rules under which a list may have fewer clients than a round needs."""

    def proper_list(self, body: UploadList) -> bool:
        clients = {client for client, _ in body.entries}
        return len(clients) < self.roster.minimum or super().proper_list(body)


@breaks("promise", rules=_NoMinimum)
class ClosesWithoutMinimum(Replica):
    """At its deadline a server closes a round with fewer clients than the minimum."""

    def _overdue(self, held: int) -> bool:
        return self.state.late


class _Unchained(Certificates):
    def value_before(self, round_: int) -> bytes:
        return self._rules.run


@breaks("agreement")
class UnchainedRounds(Replica):
    """The value of a round does not depend on the round before."""

    make_certificates = _Unchained
