"""The evidence that a server holds against others, of this round and of the previous one."""

from __future__ import annotations

from fedrfq.consensus.messages import Evidence, Kind, Message
from fedrfq.consensus.rules import Rules


class Accusations:
    """Proofs of misbehaviour, one for each party, kind and round."""

    __slots__ = ("_rules", "known")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.known: dict[tuple[int, Kind, int], Message] = {}  # by party, kind and round

    def enter_round(self, round_: int) -> None:
        """Forget what is old.

        Evidence of the previous round may still come in, and must not be reported twice.
        """
        self.known = {key: message for key, message in self.known.items() if key[2] >= round_ - 1}

    def accuse(self, first: Message, second: Message) -> Message | None:
        """Keep two conflicting messages as evidence; return it if it is new."""
        evidence = self._rules.unsigned(Evidence(first.body.round, first, second))
        if self.take(evidence):
            return evidence
        return None

    def take(self, message: Message) -> bool:
        """Keep evidence that proves something; return whether it is new."""
        evidence = message.body
        assert isinstance(evidence, Evidence)
        party = evidence.first.author
        assert party is not None
        key = (party, evidence.second.body.kind, evidence.round)
        if key in self.known:
            return False
        self.known[key] = message
        return True
