"""What is told of a run while it goes: write a subclass of `Callback`, and override what you need.

class Print(fedrfq.Callback):
    def on_round(self, run, record):
        print(record.round, record.accuracy_mean)

fedrfq.run("experiment.toml", callbacks=[Print()]).finish()
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedrfq.learning.evaluation import RoundRecord

if TYPE_CHECKING:
    from fedrfq.runs.recorded_run import RecordedRun


class Callback:
    """Is told when a run starts, after each of its rounds, and when it ends.

    A callback that raises is not told anything more, a warning says why, and the run goes on.
    """

    def on_start(self, run: RecordedRun) -> None:
        """The run starts, or goes on from its newest checkpoint; `run.path` is its directory."""

    def on_round(self, run: RecordedRun, record: RoundRecord) -> None:
        """A round has ended, and its record is on the disk. `run.stop()` makes it the last."""

    def on_end(self, run: RecordedRun, status: str) -> None:
        """The run is "finished", was "stopped" and can be continued, or "failed"."""


class Callbacks:
    """The callbacks of a session, less those that have failed."""

    def __init__(self, callbacks: Iterable[Callback] = ()) -> None:
        self.listening = list(callbacks)

    def tell(self, event: str, *arguments: object) -> None:
        """Call the method named `event` of each callback."""
        for callback in list(self.listening):
            try:
                getattr(callback, event)(*arguments)
            # Hours of training must not be lost to a plot that fails.
            except Exception as error:
                self.listening.remove(callback)
                name = type(callback).__name__
                warnings.warn(
                    f"the callback {name} failed in {event} and is told nothing more: {error!r}",
                    RuntimeWarning,
                    stacklevel=2,
                )
