"""Where something does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedrfq.consensus.wire import Refused
from fedrfq.federation.round_log import PlacedMessage


class Misplaced(Exception):
    """What does not hold, and at which byte of the payload; none: the payload as a whole."""

    def __init__(self, at: int | None, why: str) -> None:
        super().__init__(why)
        self.at = at


@contextmanager
def at(place: PlacedMessage | None = None) -> Iterator[None]:
    """What is refused in here is refused there."""
    try:
        yield
    except Refused as error:
        raise Misplaced(None if place is None else place.at, str(error)) from error
