"""Where a server stands: its round and view, what it has signed there, and the last outcome."""

from __future__ import annotations

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import LIST, PROPOSAL, Kind, Message
from fedrfq.consensus.roster import Roster

_OUTSIDE_VIEWS = (LIST, PROPOSAL)


class ReplicaState:
    """The place of a replica in the run."""

    __slots__ = (
        "_roster",
        "late",
        "leader",
        "outcome",
        "over",
        "own",
        "resends",
        "round",
        "timing",
        "view",
    )

    def __init__(self, roster: Roster, outcome: Outcome) -> None:
        self._roster = roster
        # The last decided round's outcome; None while only its certificate is known.
        self.outcome: Outcome | None = outcome
        self.over = False  # whether the last decided round ended the run

    def enter_round(self, round_: int) -> None:
        """Begin a round, in its first view and with nothing signed."""
        self.round = round_
        self.own: dict[Kind, Message] = {}  # the last message of each kind that we signed
        self.late = False  # whether the deadline has passed
        self.resends = 0
        self.enter_view(0)

    def enter_view(self, view: int) -> None:
        """Go on in another view of the round."""
        self.view = view
        self.leader = self._roster.leader(self.round, view)
        self.timing = False  # the view's timer starts once its leader can propose

    def signed(self, kind: Kind) -> bool:
        """Return whether we have signed a message of this kind in this view or a later one."""
        message = self.own.get(kind)
        return message is not None and message.view >= self.view

    def latest_signed(self) -> list[Message]:
        """Return what we signed last in this round, as others may have missed it.

        That is our list, or before it our change proposal, and what we signed in this view.
        """
        own = self.own
        # Whoever lacks the change proposal that our list names asks for it.
        first = own.get(LIST) or own.get(PROPOSAL)
        in_view = [
            message
            for kind, message in sorted(own.items())
            if kind not in _OUTSIDE_VIEWS and message.view == self.view
        ]
        if first is None:
            return in_view
        return [first, *in_view]
