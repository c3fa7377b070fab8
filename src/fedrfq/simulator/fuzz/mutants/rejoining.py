"""Mutants that speak when they must be silent: after losing their log."""

from __future__ import annotations

from fedrfq.consensus.messages import Part
from fedrfq.consensus.rejoin import Rejoining
from fedrfq.consensus.replica import Replica
from fedrfq.simulator.fuzz.mutants.mutant import breaks
from fedrfq.simulator.fuzz.schedule_conditions import answers_echo, decided_alone, log_lost_in_round


class _OneRoundLess(Rejoining):
    def last_silent_round(self) -> int:
        return super().last_silent_round() - 1


@breaks("double-sign", "promise", "left-view")
class AbstainsTooBriefly(Replica):
    """A server that has lost its log is silent for one round too few."""

    make_rejoining = _OneRoundLess


class _AnswersOfFaults(Rejoining):
    def enough_answers(self) -> bool:
        return len(self.answers) >= self._rules.roster.f


@breaks("double-sign", "promise", "left-view", hunt=(log_lost_in_round(3), decided_alone))
class FewAnswers(Replica):
    """A server that has lost its log is content with the answers of f others."""

    make_rejoining = _AnswersOfFaults


class _AnyAnswer(Rejoining):
    def answers_our_question(self, body: Part) -> bool:
        return True


@breaks("double-sign", "promise", "left-view", hunt=(answers_echo,))
class OldAnswers(Replica):
    """A server that has lost its log accepts answers to earlier requests."""

    make_rejoining = _AnyAnswer


@breaks("double-sign", "promise", "left-view")
class SpeaksAtOnce(Replica):
    """A server that has lost its log votes as if it had never said anything."""

    @property
    def silent(self) -> bool:
        return self.over
