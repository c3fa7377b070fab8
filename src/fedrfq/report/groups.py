"""Groups runs that differ only in their seeds, and names the groups by the settings that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.runs.run_directory import RunDirectory

# Characters of a label, so that it fits into a legend.
_MAX_LABEL = 60

Settings = dict[str, str]


@dataclass(frozen=True)
class Brief:
    """The parts of a run that a comparison needs."""

    path: Path
    experiment: Experiment
    records: list[RoundRecord]

    @staticmethod
    def read(path: Path) -> Brief:
        """Read the run in the directory."""
        run = RunDirectory.open(path)
        return Brief(path, run.experiment(), run.rounds())

    def settings(self) -> Settings:
        """Return all settings but name and seed, by their dotted keys."""
        return {
            key: value
            for key, value in _flat(self.experiment.table())
            if key not in ("name", "seed")
        }


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seeds."""

    label: str
    runs: list[Brief]

    @property
    def settings(self) -> Settings:
        """The settings that all runs of the group share."""
        return self.runs[0].settings()


def readable(
    paths: Sequence[Path], read: Callable[[Path], Brief] = Brief.read
) -> tuple[list[Brief], list[UserError]]:
    """Return the runs that can be read, and why each of the others cannot."""
    runs = []
    errors = []
    for path in paths:
        try:
            runs.append(read(path))
        except UserError as error:
            errors.append(error)
    return runs, errors


def left_out(errors: Sequence[UserError]) -> list[str]:
    """Return a note on each run that could not be read."""
    return [f"Left out: {error}." for error in errors]


def grouped(runs: Sequence[Brief]) -> list[Group]:
    """Group runs by their settings, in order; if all have the same, each run is its own group."""
    by_settings: dict[tuple[tuple[str, str], ...], list[Brief]] = {}
    for run in runs:
        by_settings.setdefault(tuple(run.settings().items()), []).append(run)
    if len(by_settings) == 1:
        return [Group(label, [run]) for label, run in zip(_run_labels(runs), runs, strict=True)]
    members = list(by_settings.values())
    labels = _labels([own[0].settings() for own in members])
    return [Group(label, own) for label, own in zip(labels, members, strict=True)]


def _run_labels(runs: Sequence[Brief]) -> list[str]:
    """Name runs of the same settings by their seeds, or by their paths if a seed occurs twice."""
    seeds = [f"seed {run.experiment.seed}" for run in runs]
    if len(set(seeds)) == len(seeds):
        return seeds
    return [str(run.path)[-_MAX_LABEL:] for run in runs]


def differing(all_settings: Sequence[Settings]) -> list[str]:
    """Return the keys whose values differ: the method first, then other names, then the rest."""
    keys = dict.fromkeys(key for settings in all_settings for key in settings)
    found = [key for key in keys if len({settings.get(key) for settings in all_settings}) > 1]
    # Most other differences follow from the choice of method, model, pool and so on.
    return sorted(found, key=lambda key: (key != "method.name", not key.endswith(".name")))


def _labels(all_settings: Sequence[Settings]) -> list[str]:
    """Name settings by as few of the differing keys as tell them apart."""
    # Greedy: a key is taken if it tells more settings apart than those before it do.
    chosen: list[str] = []
    for key in differing(all_settings):
        if _distinct(all_settings, [*chosen, key]) > _distinct(all_settings, chosen):
            chosen.append(key)
    labels = [
        ", ".join(_described(settings, key) for key in chosen if key in settings)
        for settings in all_settings
    ]
    return _unique([label[:_MAX_LABEL] for label in labels])


def _distinct(all_settings: Sequence[Settings], keys: Sequence[str]) -> int:
    """Count the settings that these keys tell apart."""
    return len({tuple(settings.get(key) for key in keys) for settings in all_settings})


def _described(settings: Settings, key: str) -> str:
    section, _, setting = key.rpartition(".")
    if setting != "name":
        return f"{key}={settings[key]}"
    if section in ("data", "method"):
        return Path(settings[key]).stem
    return f"{section} {settings[key]}"


def _unique(labels: Sequence[str]) -> list[str]:
    """Number the labels that are empty, or that shortening or a missing key has made equal."""
    return [
        label if label and labels.count(label) == 1 else f"{label} ({i})".strip()
        for i, label in enumerate(labels, 1)
    ]


def _flat(table: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of every setting of a nested table."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", str(value)
