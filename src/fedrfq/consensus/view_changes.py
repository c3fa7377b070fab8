"""The view changes of one round, at most one of each server: that to its highest view."""

from __future__ import annotations

from fedrfq.consensus.messages import Message
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.votes import Slots


class ViewChanges:
    """Which views the servers have asked for in one round (section 4.4 of the paper)."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes: Slots = {}

    def view_to_join(self, view: int, me: int, f: int) -> int | None:
        """Return the highest view beyond ours that f + 1 others have asked for (section 4.5.2).

        One of them is honest. Fewer could be faulty servers that change views without need.
        """
        if len(self.changes) <= f:  # as almost always
            return None
        views = [
            message.view
            for server, message in self.changes.items()
            if message.view > view and server != me
        ]
        if len(views) <= f:
            return None
        # The (f + 1)-th highest: so many servers have asked for it or for a higher view.
        return sorted(views, reverse=True)[f]

    def opening(self, view: int) -> tuple[Message, ...]:
        """Return the view changes to exactly this view; view 0 has none."""
        if view == 0:
            return ()
        by_server = sorted(self.changes.items())
        return tuple(message for _, message in by_server if message.view == view)

    def open(self, view: int, rules: Rules) -> bool:
        """Return whether a quorum has asked for this view.

        A sender's later view change has replaced the one to this view, so it counts too.
        """
        return rules.enough(s for s, message in self.changes.items() if message.view >= view)
