"""What a server that has lost its log must not do, nor any server once the run is over."""

from __future__ import annotations

from fedrfq.consensus.messages import Part
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.mutants.mutant import breaks


@breaks("double-sign", "promise", "left-view")
class AbstainsTooBriefly(Replica):
    """Without its log it is silent for one round too few."""

    def _bound(self) -> int:
        return super()._bound() - 1


@breaks("double-sign", "promise", "left-view")
class FewAnswers(Replica):
    """Without its log it takes the word of f others for how far they are."""

    def _enough_answers(self) -> bool:
        return len(self.answers) >= self.roster.f


@breaks("double-sign", "promise", "left-view")
class OldAnswers(Replica):
    """Without its log it takes answers that were given before it was lost."""

    def _ours(self, body: Part) -> bool:
        return True


@breaks("double-sign", "promise", "left-view")
class SpeaksAtOnce(Replica):
    """Without its log it votes as if it had never said anything."""

    def _weigh(self) -> None:
        self.silent = self.over


@breaks("over")
class NeverOver(Replica):
    """It goes on after the outcome that ends the run."""

    def _weigh(self) -> None:
        self.over = False
        super()._weigh()
