"""What goes into a round: uploads, lists, and what follows from them."""

from __future__ import annotations

from collections.abc import Iterable

from fedrfq.consensus.events import Application, Persist
from fedrfq.consensus.messages import Kind, Message, PrePrepare, Record, Upload, UploadList
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Entries, Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


class _KeepsWhatItHas(Replica):
    def _persist_parts(self, record: Record) -> None:
        names = (record.set_, record.globals_, record.verdicts, record.state)
        self.effects += [
            Persist(self.rules.unsigned(self.parts[name])) for name in names if name in self.parts
        ]


@breaks("validity", "union", "agreement")
class ResultUnchecked(_KeepsWhatItHas):
    """It votes for a result without recomputing it."""

    def _follows(self, proposal: PrePrepare) -> bool:
        super()._follows(proposal)
        return self._entries(proposal) is not None


@breaks("union", "censorship")
class UnionUnchecked(Replica):
    """It takes the leader's word for which uploads count."""

    def _entries(self, proposal: PrePrepare) -> Entries | None:
        bare = PrePrepare(
            proposal.round, proposal.view, proposal.server, proposal.record, (), proposal.changes
        )
        return super()._entries(bare)


@breaks("union")
class FirstUploadCounts(Rules):
    """Of a client that sent two uploads one counts."""

    def union(self, lists: Iterable[Message]) -> tuple[Entries, Entries]:
        single, double = super().union(lists)
        return tuple(
            sorted(single + tuple({client: (client, digest) for client, digest in double}.values()))
        ), double


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
        self.over = application.over

    def refuses(self, upload: Upload) -> str | None:
        return None


@breaks("validity", "exception")
class InadmissibleStored(Replica):
    """It stores what the application refuses."""

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
    """It leaves out of its list an upload it gave a receipt for."""

    def _close(self) -> bool:
        if len(self.holdings.promised) > self.roster.minimum and Kind.LIST not in self.own:
            held = set(self.holdings.promised)
            self.holdings.promised.discard(max(held))
            closed = super()._close()
            self.holdings.promised = held
            return closed
        return super()._close()


class _NoMinimum(Rules):
    def proper_list(self, body: UploadList) -> bool:
        return len(
            {client for client, _ in body.entries}
        ) < self.roster.minimum or super().proper_list(body)


@breaks("promise", rules=_NoMinimum)
class ClosesWithoutMinimum(Replica):
    """At its deadline it closes a round with fewer clients than there must be."""

    def _overdue(self, held: int) -> bool:
        return self.late


@breaks("agreement")
class UnchainedRounds(Replica):
    """The value of a round does not name the round before."""

    def _previous(self) -> bytes:
        return self.rules.run
