"""Where in an entry's payload something does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedrfq.consensus.wire import Refused
from fedrfq.federation.round_log import PlacedMessage


class RefusedAt(Exception):
    """Something in a payload does not hold, at byte `at`; None stands for the whole payload."""

    def __init__(self, at: int | None, why: str) -> None:
        super().__init__(why)
        self.at = at


@contextmanager
def located(placed: PlacedMessage | None = None) -> Iterator[None]:
    """Give every `Refused` in the block the location of a message; None stands for the payload."""
    try:
        yield
    except Refused as error:
        at = None
        if placed is not None:
            at = placed.at
        raise RefusedAt(at, str(error)) from error
