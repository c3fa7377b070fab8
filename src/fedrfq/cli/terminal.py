"""What commands that take long share: a progress bar, plain lines, and signals as interrupts."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

INTERRUPTED = 130  # the exit code after Ctrl-C
_WINDOW = 600  # seconds over which the speed is taken: a round of many runs may take a minute


def progress(console: Console, unit: str = "rounds") -> Progress:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    shown = (TextColumn("{task.description}"), *columns, TextColumn("{task.fields[figures]}"))
    return Progress(*shown, console=console, speed_estimate_period=_WINDOW)


def say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM does what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
