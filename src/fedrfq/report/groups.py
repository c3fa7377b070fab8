"""Several runs, in groups that differ in more than the seed, and what they differ in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.experiment import Experiment
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.report.run_data import records_of
from fedrfq.runs.run_directory import RunDirectory

_LONGEST = 60  # letters of a label

Settings = dict[str, str]


@dataclass(frozen=True)
class Brief:
    """A run, as much of it as a comparison needs."""

    path: Path
    experiment: Experiment
    records: list[RoundRecord]

    @staticmethod
    def read(path: Path) -> Brief:
        run = RunDirectory.open(path)
        return Brief(path, run.experiment(), records_of(run))

    def settings(self) -> Settings:
        """All but name and seed, by their dotted keys."""
        return {
            key: value
            for key, value in _flat(self.experiment.table())
            if key not in ("name", "seed")
        }


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seeds alone."""

    label: str
    runs: list[Brief]

    @property
    def settings(self) -> Settings:
        return self.runs[0].settings()


def grouped(runs: Sequence[Brief]) -> list[Group]:
    """By their settings, in the order they come; where all are alike, each run by itself."""
    by_settings: dict[tuple[tuple[str, str], ...], list[Brief]] = {}
    for run in runs:
        by_settings.setdefault(tuple(run.settings().items()), []).append(run)
    found = list(by_settings.values())
    if len(found) == 1:
        seeds = [f"seed {run.experiment.seed}" for run in runs]
        if len(set(seeds)) == len(seeds):
            labels = seeds
        else:
            labels = [str(run.path)[-_LONGEST:] for run in runs]
        return [Group(label, [run]) for label, run in zip(labels, runs, strict=True)]
    return [
        Group(label, own)
        for label, own in zip(_labels([own[0].settings() for own in found]), found, strict=True)
    ]


def differing(all_: Sequence[Settings]) -> list[str]:
    """The keys that not all have the same value of; the method first, then other kinds, since the rest follows from them."""
    keys = dict.fromkeys(key for settings in all_ for key in settings)
    found = [key for key in keys if len({settings.get(key) for settings in all_}) > 1]
    return sorted(found, key=lambda key: (key != "method.name", not key.endswith(".name")))


def _labels(all_: Sequence[Settings]) -> list[str]:
    """As few of the differing settings as tell all apart."""
    chosen: list[str] = []
    for key in differing(all_):
        if _distinct(all_, [*chosen, key]) > _distinct(all_, chosen):
            chosen.append(key)
    return _unique(
        [
            ", ".join(_said(settings, key) for key in chosen if key in settings)[:_LONGEST]
            for settings in all_
        ]
    )


def _distinct(all_: Sequence[Settings], keys: Sequence[str]) -> int:
    return len({tuple(settings.get(key) for key in keys) for settings in all_})


def _said(settings: Settings, key: str) -> str:
    section, _, setting = key.rpartition(".")
    if setting != "name":
        return f"{key}={settings[key]}"
    if section in ("data", "method"):
        return Path(settings[key]).stem
    return f"{section} {settings[key]}"


def _unique(labels: Sequence[str]) -> list[str]:
    """With a number where shortening, or a setting that one has and the other has not, made two alike or left nothing."""
    return [
        label if label and labels.count(label) == 1 else f"{label} ({i})".strip()
        for i, label in enumerate(labels, 1)
    ]


def _flat(table: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{under}{key}.")
        else:
            yield f"{under}{key}", str(value)
