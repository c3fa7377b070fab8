"""Mutants that forget something in a restart, or do not store it in the first place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from fedrfq.consensus.client import Client
from fedrfq.consensus.events import Application, Effect, Event, Persist
from fedrfq.consensus.messages import (
    AnyMessage,
    Cert,
    Commit,
    Inputs,
    Kind,
    Message,
    Prepare,
    PrePrepare,
    Record,
    Upload,
    UploadList,
    ViewChange,
)
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import decided_alone, with_crashes, with_servers


@breaks("double-sign", "certificate", "promise", "left-view")
class Amnesia(Replica):
    """After a restart a server does not read its log."""

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
    """A server that skips some messages of its log."""

    @abstractmethod
    def _forgets(self, body: AnyMessage) -> bool: ...

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        kept = [message for message in log if not self._forgets(message.body)]
        super().__init__(rules, me, signer, application, kept)


@breaks("double-sign", hunt=(with_servers("equivocate"), with_crashes(Kind.PREPARE)))
class VotesForgotten(_Forgets):
    """After a restart a server does not know its votes."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Prepare | Commit)


@breaks("agreement", hunt=(with_servers("mutate"), with_crashes(Kind.COMMIT), decided_alone))
class PreparedForgotten(_Forgets):
    """After a restart a server does not know what it has prepared."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Cert) and body.certificate.phase == Kind.PREPARE


@breaks("double-sign")
class ProposalForgotten(_Forgets):
    """After a restart a leader does not know what it proposed."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, PrePrepare)


@breaks("double-sign", "promise")
class ListForgotten(_Forgets):
    """After a restart a server closes the round once more."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, UploadList)


@breaks("left-view", hunt=(with_crashes(Kind.VIEWCHANGE),))
class ViewForgotten(_Forgets):
    """After a restart a server is back in a view that it had left."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, ViewChange)


@breaks("promise", "progress", hunt=(with_crashes(Kind.UPLOAD),))
class UploadsForgotten(_Forgets):
    """After a restart a server does not know what it gave receipts for."""

    def _forgets(self, body: AnyMessage) -> bool:
        return isinstance(body, Upload)


@breaks("progress", hunt=(with_servers("hoard"),))
class SetsForgotten(Replica):
    """A server keeps only the last set it computed and the one it has prepared."""

    def _compute_anew(self, inputs: Inputs) -> Record:
        record = super()._compute_anew(inputs)
        kept = {*record.parts()}
        if self.certificates.prepared is not None:
            kept.add(self.certificates.prepared.record.set_)
        parts = self.record_parts
        parts.current = {name: part for name, part in parts.current.items() if name in kept}
        return record


@breaks("durability")
class SendsFirst(Replica):
    """A server sends messages before they are durable."""

    def _sign(self, body: AnyMessage) -> None:
        first = len(self.effects)
        super()._sign(body)
        self.effects[first : first + 2] = reversed(self.effects[first : first + 2])


class _Loses(Replica, ABC):
    """A server that does not persist some messages."""

    @abstractmethod
    def _loses(self, body: AnyMessage) -> bool: ...

    def step(self, event: Event) -> list[Effect]:
        return [effect for effect in super().step(event) if not self._is_lost(effect)]

    def _is_lost(self, effect: Effect) -> bool:
        return isinstance(effect, Persist) and self._loses(effect.message.body)


@breaks("durability")
class VotesNotPersisted(_Loses):
    """A server sends votes, but does not store them."""

    def _loses(self, body: AnyMessage) -> bool:
        return isinstance(body, Prepare | Commit)


@breaks("durability")
class UploadsNotPersisted(_Loses):
    """A server gives receipts for uploads that it does not store."""

    def _loses(self, body: AnyMessage) -> bool:
        return isinstance(body, Upload)


@breaks("double-sign")
class ClientSignsAnew(Client):
    """After a restart a client signs another upload of the round."""

    def _recall(self, message: Message) -> None:
        if not isinstance(message.body, Upload):
            super()._recall(message)
