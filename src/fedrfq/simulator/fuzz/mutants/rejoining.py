"""Mutants that speak when they must be silent: after losing their log, or once the run is over."""

from __future__ import annotations

from fedrfq.consensus.messages import Part
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import answers_echo, decided_alone, log_lost_in_round


@breaks("double-sign", "promise", "left-view")
class AbstainsTooBriefly(Replica):
    """A server that has lost its log is silent for one round too few."""

    def _last_silent_round(self) -> int:
        return super()._last_silent_round() - 1


@breaks("double-sign", "promise", "left-view", hunt=(log_lost_in_round(3), decided_alone))
class FewAnswers(Replica):
    """A server that has lost its log is content with the answers of f others."""

    def _enough_answers(self) -> bool:
        return len(self.answers) >= self.roster.f


@breaks("double-sign", "promise", "left-view", hunt=(answers_echo,))
class OldAnswers(Replica):
    """A server that has lost its log accepts answers to earlier requests."""

    def _answers_our_question(self, body: Part) -> bool:
        return True


@breaks("double-sign", "promise", "left-view")
class SpeaksAtOnce(Replica):
    """A server that has lost its log votes as if it had never said anything."""

    def _update_silence(self) -> None:
        self.silent = self.over


@breaks("over")
class NeverOver(Replica):
    """A server goes on after the outcome that ends the run."""

    def _update_silence(self) -> None:
        self.over = False
        super()._update_silence()
