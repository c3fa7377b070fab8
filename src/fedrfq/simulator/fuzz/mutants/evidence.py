"""Mutants for which evidence is a weapon of liars, and mutants that do not hand it on."""

from __future__ import annotations

from fedrfq.consensus.evidence import Proofs
from fedrfq.consensus.messages import Evidence, Fetch, Message
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.mutants.mutant import breaks


class _Everything(Proofs):
    """Keeps all evidence that holds."""

    def take(self, message: Message) -> str | None:
        assert isinstance(message.body, Evidence)
        if not self._rules.proves(message.body):
            return "evidence that proves nothing"
        self.recall(message)
        return None


@breaks("bounded")
class KeepsAllEvidence(Replica):
    """A server keeps all evidence, however often a party was convicted before."""

    make_proofs = _Everything


class _AnySize(Proofs):
    """Takes any message for one that an honest party could have signed."""

    def could_be_honest(self, message: Message) -> bool:
        return True


@breaks("bounded")
class KeepsLargeEvidence(Replica):
    """A server keeps evidence and early messages of any size."""

    make_proofs = _AnySize


@breaks("handed-on")
class NeverAsks(Replica):
    """A server that was away does not ask for the evidence that it has missed."""

    def ask_for_evidence(self) -> None:
        pass


class _Silent(Proofs):
    """Answers no questions."""

    def answer(self, question: Fetch) -> Message | None:
        return None


@breaks("handed-on")
class HandsOnNothing(Replica):
    """A server shows its evidence to nobody who asks for it."""

    make_proofs = _Silent
