"""The rounds in which statistics on a public feature map are exchanged."""

from __future__ import annotations


def exchange_due(round_: int, every: int) -> bool:
    """Return whether a round is the first or, where `every` is above 0, so many rounds later."""
    if every:
        return (round_ - 1) % every == 0
    return round_ == 1
