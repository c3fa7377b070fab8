"""What a restart forgets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Application, Effect, Event, Persist
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    Commit,
    Kind,
    Message,
    Part,
    Prepare,
    PrePrepare,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


@breaks("double-sign", "certificate", "promise", "left-view")
class Amnesia(Replica):
    """It starts anew after a restart."""

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        super().__init__(rules, me, signer, application)


class _Forgets(Replica, ABC):
    @abstractmethod
    def _forgets(self, body: AnyMessage) -> bool: ...

    def _recall(self, message: Message) -> None:
        if not self._forgets(message.body):
            super()._recall(message)


@breaks("double-sign")
class VotesForgotten(_Forgets):
    """After a restart it does not know its votes."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Prepare | Commit)


@breaks("agreement")
class PreparedForgotten(_Forgets):
    """After a restart it does not know what it has prepared."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Cert) and body.certificate.phase == Kind.PREPARE


@breaks("double-sign")
class ProposalForgotten(_Forgets):
    """After a restart a leader does not know what it proposed."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, PrePrepare)


@breaks("double-sign", "promise")
class ListForgotten(_Forgets):
    """After a restart it closes the round once more."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, UploadList)


@breaks("left-view")
class ViewForgotten(_Forgets):
    """After a restart it is back in a view it had left."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, ViewChange)


@breaks("promise", "progress")
class UploadsForgotten(_Forgets):
    """After a restart it does not know what it gave receipts for."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Upload)


@breaks("progress")
class SetsForgotten(Replica):
    """Of a round's sets it keeps the one it computed last, and the one it has prepared."""

    def _keep_parts(self, parts: dict[bytes, Part]) -> None:
        if self.prepared is not None:
            prepared = self.prepared.record.set_
        else:
            prepared = None
        self.parts = {name: part for name, part in self.parts.items() if name == prepared} | parts


@breaks("durability")
class SendsFirst(Replica):
    """It says things before they are durable."""

    def _sign(self, body: AnyMessage) -> None:
        at = len(self.effects)
        super()._sign(body)
        self.effects[at], self.effects[at + 1] = self.effects[at + 1], self.effects[at]


class _Loses(Replica, ABC):
    @abstractmethod
    def _loses(self, body: AnyMessage) -> bool: ...

    def step(self, event: Event) -> list[Effect]:
        return [
            e
            for e in super().step(event)
            if not (isinstance(e, Persist) and self._loses(e.message.body))
        ]


@breaks("durability")
class VotesNotPersisted(_Loses):
    """Votes are sent, but not stored."""

    def _loses(self, body: AnyMessage) -> bool:
        return isinstance(body, Prepare | Commit)


@breaks("durability")
class UploadsNotPersisted(_Loses):
    """Receipts are given for uploads that are not stored."""

    def _loses(self, body: AnyMessage) -> bool:
        return isinstance(body, Upload)


@breaks("double-sign")
class ClientSignsAnew(Client):
    """A client signs its upload of a round again after a restart."""

    def _recall(self, message: Message) -> None:
        if not isinstance(message.body, Upload):
            super()._recall(message)
