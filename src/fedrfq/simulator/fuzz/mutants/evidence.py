"""Mutants for which the evidence that a liar gives against itself is a weapon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from fedrfq.consensus.events import Application
from fedrfq.consensus.evidence import Proofs
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.roster import Signer
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.fuzz.mutants.mutant import breaks


class _Judges(Replica):
    """A server that judges by other proofs than a true one."""

    judge: ClassVar[type[Proofs]] = Proofs

    def __init__(
        self,
        rules: Rules,
        me: int,
        signer: Signer,
        application: Application,
        log: Iterable[Message] = (),
    ) -> None:
        super().__init__(rules, me, signer, application, log)
        known = self.proofs.kept
        self.proofs = self.judge(rules, application)
        self.proofs.kept |= known


class _Everything(Proofs):
    """Keeps all evidence that holds."""

    def take(self, message: Message) -> str | None:
        assert isinstance(message.body, Evidence)
        if not self._rules.proves(message.body):
            return "evidence that proves nothing"
        self.recall(message)
        return None


@breaks("bounded")
class KeepsAllEvidence(_Judges):
    """A server keeps all evidence, however often a party was convicted before."""

    judge = _Everything


class _AnySize(Proofs):
    """Takes any message for one that an honest party could have signed."""

    def could_be_honest(self, message: Message) -> bool:
        return True


@breaks("bounded")
class KeepsLargeEvidence(_Judges):
    """A server keeps evidence and early messages of any size."""

    judge = _AnySize
