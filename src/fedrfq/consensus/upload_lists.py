"""The servers' lists of what they hold, of one round and of the round before it."""

from __future__ import annotations

from fedrfq.consensus.votes import Slots


class UploadLists:
    """What each server holds of a round, by its own word."""

    __slots__ = ("current", "last")

    def __init__(self, last: Slots) -> None:
        self.current: Slots = {}
        self.last = last  # with which receipts that come late are compared
