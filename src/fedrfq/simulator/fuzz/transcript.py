"""A run as a text one can follow: when, who, what happened to it, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedrfq.consensus.events import Event, Received, SetTimer
from fedrfq.simulator.message_text import shown
from fedrfq.simulator.party import Action, SimulatedParty, party_name


class Transcript:
    """To be called with every step of a world."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(
        self, now: int, node: SimulatedParty, event: Event, actions: Sequence[Action]
    ) -> None:
        who = party_name(node.party) + ("" if node.honest else "*")
        self.lines.append(f"{now:6d} {who:10} <- {_event(event)}")
        self.lines += [
            f"{'':17} -> {_action(action)}"
            for action in actions
            if not isinstance(action, SetTimer)
        ]

    def text(self) -> str:
        return "".join(line + "\n" for line in self.lines)


def _event(event: Event) -> str:
    if isinstance(event, Received):
        return f"{shown(event.message)} from {party_name(event.peer)}"
    return _fields(event)


def _action(action: Action) -> str:
    return _fields(action)


def _fields(value: Any) -> str:
    """A named tuple or a class with slots, short."""
    names = getattr(value, "_fields", value.__slots__)
    parts = [f"{name} {shown(getattr(value, name))}" for name in names]
    return " ".join([type(value).__name__, *parts])
