"""The certificates that a server holds: of every decided round, and of what is prepared."""

from __future__ import annotations

from fedrfq.consensus.messages import Cert, Certificate, Message
from fedrfq.consensus.rules import Rules


class Certificates:
    """The chain of decisions, and what leads to the next one."""

    __slots__ = ("_rules", "chain", "highest_round_heard", "prepared", "requested")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.chain: dict[int, Certificate] = {}  # by round, what was decided
        self.highest_round_heard = 0

    def enter_round(self) -> None:
        """Begin a round, in which nothing is prepared."""
        self.prepared: Certificate | None = None
        self.requested = False  # whether this round's certificate was asked for since the resend

    def value_before(self, round_: int) -> bytes:
        """Return the value of the previous round; before the first, it is the run's id."""
        last = self.chain.get(round_ - 1)
        if last is None:
            return self._rules.run
        return last.record.value(self._rules.run)

    def message(self, round_: int) -> Message | None:
        """Return a decided round's certificate as a message, if we have it."""
        certificate = self.chain.get(round_)
        if certificate is None:
            return None
        return self._rules.unsigned(Cert(round_, certificate))
