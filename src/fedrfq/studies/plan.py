"""Plans: what a kind makes of a study, which is the runs it needs and how it shows their results.

A new kind is a class with these methods; `RunsPlan` has what kinds with a grid
of runs share, and `GridPlan` what those that show it in tables over seeds share.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedrfq.experiment import Experiment
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.claims import Claim, Judged, claims_sheet
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.measures import MEASURES, Measure, MeasuredRuns
from fedrfq.studies.reruns import Reruns
from fedrfq.studies.sheets import Cell, Sheet, flat, plain
from fedrfq.studies.study import Study

if TYPE_CHECKING:
    import torch

# Is called with the share that is done, and what is being done.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class StudyResult:
    """The result of a study: tables to read, all values, rows for a CSV file, and pictures."""

    sheets: Sequence[Sheet]
    whole: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    pictures: Sequence[Path]


@dataclass(frozen=True)
class Plan(ABC):
    """A study as its kind understands it, which may need no runs."""

    study: Study

    keep: ClassVar[bool] = False  # whether the runs' trained models are needed
    before_name: ClassVar[str] = ""  # what `before` is for, in a word
    before_switch: ClassVar[str] = ""  # what leaves it out

    @property
    def before(self) -> Sequence[Experiment]:
        """The experiments to run before the others, which depend on them, are known."""
        return ()

    def after(self, ended: Mapping[str, EndedRun]) -> Plan:
        """Return the plan that follows from the runs of `before`, by experiment hash."""
        return self

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The experiments to run; none if the study is computed without runs."""
        return ()

    @abstractmethod
    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Draw pictures into the folder and return the result; runs are by experiment hash."""


@dataclass(frozen=True)
class RunsPlan(Plan):
    """A grid of runs."""

    axes: Axes

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid."""
        return list(self.axes.experiments.values())

    def with_reruns(self, result: StudyResult, ended: Mapping[str, EndedRun]) -> StudyResult:
        """Return the result with what is known of reruns, and what its intervals contain."""
        reruns = Reruns.of(ended[experiment.hash()] for experiment in self.experiments)
        # It stands below the first of the tables with intervals.
        first, *others = result.sheets
        sheets = [first.with_note(reruns.note()), *others]
        return replace(result, sheets=sheets, whole={**result.whole, "reruns": reruns.plain()})


@dataclass(frozen=True)
class GridPlan(RunsPlan):
    """A grid of runs and claims about them, shown in tables of figures over seeds."""

    claims: Sequence[Claim]

    spreads: ClassVar[Collection[str]] = ()  # the figures of a cell that are spreads

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What is taken of every run."""
        return MEASURES

    def measure(self, ended: Mapping[str, EndedRun]) -> MeasuredRuns:
        """Return the figures of all runs."""
        return MeasuredRuns.of(self.axes, ended, self.measures)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Draw the pictures of the grid, and return its tables."""
        measured = self.measure(ended)
        result = StudyResult(
            self.tables(measured),
            self.whole(measured),
            self.rows(measured),
            self.draw(measured, folder),
        )
        return self.with_reruns(result, ended)

    def tables(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return all tables, the claims after those of figures."""
        judged = self.judge(measured)
        sheets = self.sheets(measured)
        if judged:
            sheets.append(claims_sheet(judged))
        return sheets

    def judge(self, measured: MeasuredRuns) -> list[Judged]:
        """Judge every claim wherever it can be judged."""
        return [judged for claim in self.claims for judged in claim.judged(measured)]

    def whole(self, measured: MeasuredRuns) -> dict[str, Any]:
        """Return everything as plain values, as table.json has it."""
        return {
            "name": self.study.name,
            "title": self.study.title,
            "claim": self.study.claim,
            "seeds": list(self.study.seeds),
            "cells": [plain(cell) for cell in self.cells(measured)],
            "claims": [judged.plain() for judged in self.judge(measured)],
            "runs": measured.rows(),
        }

    def cells(self, measured: MeasuredRuns) -> list[Cell]:
        """Return the figures of each combination over its seeds."""
        return [self.cell(measured, labels) for labels in self.axes.combinations()]

    @abstractmethod
    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return the figures of a combination: spreads, and plain values."""

    def rows(self, measured: MeasuredRuns) -> Sequence[Mapping[str, Any]]:
        """Return the rows of table.csv."""
        return [flat(cell, self.spreads) for cell in self.cells(measured)]

    @abstractmethod
    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return the tables of figures."""

    @abstractmethod
    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw the pictures into a folder."""
