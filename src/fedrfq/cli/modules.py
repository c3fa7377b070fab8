"""What commands on a finished or stopped run do with `--module`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrfq.runs.run_directory import RunDirectory


def give_modules(run: RunDirectory, sources: Sequence[str]) -> None:
    """Import the modules that the user names, for a run whose clients hold them."""
    from fedrfq.runs.given_modules import give_again, imported
    from fedrfq.runs.inference import DataFacts

    if sources:
        facts = DataFacts.of(run)
        give_again(run.experiment(), imported(sources), facts.shape, len(facts.classes))
