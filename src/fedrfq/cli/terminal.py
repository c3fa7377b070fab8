"""What the commands share at the terminal: lines, tables, progress bars, signals, command hints."""

from __future__ import annotations

import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

# The exit code after Ctrl-C.
INTERRUPTED = 130
# The speed is averaged over this long, because one round of many runs may take a minute.
_SPEED_WINDOW_S = 600
# Columns of a table that goes to a file or a pipe, where the terminal's width is unknown.
_FILE_WIDTH = 160


def progress(console: Console, unit: str = "rounds") -> Progress:
    """Return a progress bar that counts in `unit`; its tasks have an extra field `figures`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
        console=console,
        speed_estimate_period=_SPEED_WINDOW_S,
    )


def say(console: Console, text: str) -> None:
    """Print plain text: brackets are not markup, and long lines are not broken."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def count(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun in the right form, such as "1 client" or "2 clients"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {plural or noun + 's'}"


def wide_console(markup: bool = True) -> Console:
    """Return a console for wide tables, which have room even when the output goes to a file."""
    console = Console(markup=markup)
    if console.is_terminal:
        return console
    return Console(width=_FILE_WIDTH, markup=markup)


def command_line(*arguments: object) -> str:
    """Return a command of this program, quoted so that it can be pasted into a shell."""
    return f"{_program()} {shlex.join(map(str, arguments))}"


def _program() -> str:
    """Return how this program was started, so that hints work without activating an environment."""
    started = sys.argv[0]
    if Path(started).name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m fedrfq.cli"
    # The shell finds the program by itself if its bare name leads to the same file.
    name = Path(started).name
    found = shutil.which(name)
    if found is not None and Path(found).absolute() == Path(started).absolute():
        return name
    return shlex.quote(started)


@contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """Make SIGTERM do what Ctrl-C does, for as long as the context lasts."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def interruptible(
    last_words: Callable[[], str] = str, console: Console | None = None
) -> Iterator[None]:
    """End the program on Ctrl-C or SIGTERM, with a last line on standard error unless told."""
    try:
        with terminated_as_interrupt():
            yield
    except KeyboardInterrupt:
        words = last_words()
        if words:
            say(console or Console(stderr=True), words)
        raise typer.Exit(INTERRUPTED) from None
