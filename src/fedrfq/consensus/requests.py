"""What a server lacks in a round and has asked for: uploads and parts of records."""

from __future__ import annotations

from fedrfq.consensus.messages import Fetch, Message
from fedrfq.consensus.rules import Rules


class Requests:
    """The requests of one round that have not been met."""

    __slots__ = ("_asked", "_rules", "wanted")

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.wanted: dict[bytes, Fetch] = {}  # by digest
        self._asked: set[tuple[bytes, int]] = set()  # a digest, and the server asked for it

    def add(self, fetch: Fetch, peer: int) -> bool:
        """Note that something is missing; return whether this peer was not asked for it yet."""
        self.wanted[fetch.digest] = fetch
        if (fetch.digest, peer) in self._asked:
            return False
        self._asked.add((fetch.digest, peer))
        return True

    def messages(self) -> list[Message]:
        """Return all requests again."""
        return [self._rules.unsigned(fetch) for fetch in self.wanted.values()]
