"""What commands do with `--module`, where the experiment that needs it is known already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedrfq.data import Dataset
    from fedrfq.experiment import Experiment
    from fedrfq.runs.run_directory import RunDirectory


def module_giver(sources: Sequence[str]) -> Callable[[Experiment, Dataset], None]:
    """Return what makes the modules that the user names known for an experiment and its data."""
    from fedrfq.runs.given_modules import give_again, imported

    given = imported(sources)

    def give(experiment: Experiment, dataset: Dataset) -> None:
        give_again(experiment, given, dataset.shape, len(dataset.classes))

    return give


def give_modules(run: RunDirectory, sources: Sequence[str]) -> None:
    """Import the modules that the user names, for a run whose clients hold them."""
    from fedrfq.runs.given_modules import give_again, imported
    from fedrfq.runs.inference import DataFacts

    if sources:
        facts = DataFacts.of(run)
        give_again(run.experiment(), imported(sources), facts.shape, len(facts.classes))
