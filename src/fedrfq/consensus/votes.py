"""The proposals and votes of one round, at most one of each server: that of its highest view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fedrfq.consensus.messages import Message, PrePrepare, Record
from fedrfq.consensus.rules import Rules

Slots = dict[int, Message]  # one message by server


class Votes:
    """What servers have proposed and voted for in one round."""

    __slots__ = ("commits", "prepares", "proposals")

    def __init__(self) -> None:
        self.proposals: Slots = {}
        self.prepares: Slots = {}
        self.commits: Slots = {}

    def proposal(self, leader: int, view: int) -> PrePrepare | None:
        """Return the leader's proposal of this view, if it is here."""
        message = self.proposals.get(leader)
        if message is None:
            return None
        body = message.body
        if type(body) is PrePrepare and body.view == view:
            return body
        return None

    def proposed(self) -> list[Record]:
        """Return the records that have been proposed, in any view."""
        bodies = [message.body for message in self.proposals.values()]
        return [body.record for body in bodies if isinstance(body, PrePrepare)]

    def alike(self, slots: Slots, view: int, value: bytes) -> list[Message]:
        """Return the votes of one view for one value."""
        return [vote for vote in slots.values() if vote.view == view and vote.value == value]

    def committed(self, rules: Rules, records: Iterable[Record]) -> Quorum | None:
        """Return a quorum of commits of one view for one of these records, if there is one."""
        by_value = {record.value(rules.run): record for record in records}
        # Sorted, so that the result does not depend on the order in which votes came.
        for view, value in sorted({(vote.view, vote.value) for vote in self.commits.values()}):
            votes = self.alike(self.commits, view, value)
            if value in by_value and rules.enough([vote.server for vote in votes]):
                return Quorum(votes, by_value[value])
        return None


class Quorum(NamedTuple):
    """The votes of a quorum, all of one kind and view, and the record that they are for."""

    votes: list[Message]
    record: Record
