"""Write a run as text that people can follow: when, who, what happened to it, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.consensus.events import Event, Received, SetTimer
from fedrfq.simulator.message_text import readable
from fedrfq.simulator.party import Action, SimulatedParty, party_name


class Transcript:
    """Collects the steps of a run; set it as the `trace` of a world."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(
        self, now: int, node: SimulatedParty, event: Event, actions: Sequence[Action]
    ) -> None:
        who = party_name(node.party)
        if not node.honest:
            who += "*"
        self.lines.append(f"{now:6d} {who:10} <- {_event_text(event)}")
        # Timers are set in nearly every step, and would drown everything else.
        for action in actions:
            if not isinstance(action, SetTimer):
                self.lines.append(f"{'':17} -> {_field_text(action)}")

    def text(self) -> str:
        """Return all lines as one text."""
        return "".join(line + "\n" for line in self.lines)


def _event_text(event: Event) -> str:
    if isinstance(event, Received):
        return f"{readable(event.message)} from {party_name(event.peer)}"
    return _field_text(event)


def _field_text(value: Any) -> str:
    """Return a named tuple or an object with slots as its type and its fields."""
    names = getattr(value, "_fields", value.__slots__)
    parts = [f"{name} {readable(getattr(value, name))}" for name in names]
    return " ".join([type(value).__name__, *parts])
