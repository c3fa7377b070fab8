"""Shell completion of names; nothing is imported before the user presses Tab."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def complete(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """Return a typer completer that offers the names which begin with what has been typed."""

    def completer(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return completer


def dataset_names() -> list[str]:
    """Return the names of the known datasets."""
    from fedrfq.data import DATASETS

    return list(DATASETS)


def dataset_and_weight_names() -> list[str]:
    """Return the names that `fedrfq data get` knows."""
    from fedrfq.data.weights import WEIGHTS

    return [*dataset_names(), *WEIGHTS]


def study_names() -> list[str]:
    """Return the names of the studies that `fedrfq reproduce` knows."""
    from fedrfq.studies.study import names

    return names()


def detector_names() -> list[str]:
    """Return the names of the detectors."""
    from fedrfq.robust.detectors import DETECTORS

    return list(DETECTORS)


def mutant_names() -> list[str]:
    """Return the names of the deliberately broken replicas."""
    from fedrfq.simulator.fuzz.mutants import MUTANTS

    return list(MUTANTS)
