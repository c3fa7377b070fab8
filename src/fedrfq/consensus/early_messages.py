"""Messages of the next round, which a server keeps until it gets there."""

from __future__ import annotations

from fedrfq.consensus.messages import PROPOSAL, UPLOAD, Kind, Message

_LISTED = (UPLOAD, PROPOSAL)


class EarlyMessages:
    """One message of each party and kind, but two uploads or proposals, which are evidence."""

    __slots__ = ("due", "kept")

    def __init__(self) -> None:
        # Each with the peer that sent it.
        self.kept: dict[tuple[Kind, int, int], tuple[int, Message]] = {}
        self.due: list[tuple[int, Message]] = []  # those of the round that has begun

    def set_aside(self, peer: int, message: Message) -> None:
        """Keep a message of the next round."""
        kind = message.body.kind
        party = message.author
        assert party is not None
        slot = 0
        if kind in _LISTED and (kind, party, 0) in self.kept:
            slot = int(self.kept[kind, party, 0][1].digest != message.digest)
        self.kept[kind, party, slot] = peer, message

    def enter_round(self) -> None:
        """Hand out what was kept: its round has begun."""
        self.due = list(self.kept.values())
        self.kept = {}
