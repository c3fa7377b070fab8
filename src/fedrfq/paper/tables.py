"""Kind `table`: methods in settings, with the paper's figures beside the measured ones.

    kind = "table"
    paper = "table1"       a section of `paper.toml`, whose rows and columns are labels of the axes

It needs an axis `method` and an axis `setting`. The other keys are those of a grid (axes.py) and of
claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, check_keys
from fedrfq.paper.printed import Printed, printed
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes
from fedrfq.studies.claims import Claim, claims, claims_sheet, judge
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread
from fedrfq.studies.line_plots import Facet, PlotLine, draw
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.recipe import Progress, Recipe, StudyResult
from fedrfq.studies.sheets import NOTHING, Sheet

if TYPE_CHECKING:
    import torch

KEYS = ("paper", "claims", *grids.KEYS)
_AXES = ("method", "setting")


@dataclass(frozen=True)
class TableCell:
    """A method in a setting: the paper's figure, and the measured ones over seeds."""

    method: str
    setting: str
    paper: float | None
    paper_std: float | None
    own: Spread | None
    own_std: float | None  # over clients, mean over seeds
    prototype: Spread | None
    rounds: int
    parameters: float | None  # uploaded by all clients in a round

    @property
    def difference(self) -> float | None:
        """Measured minus printed, in points."""
        if self.own is None or self.paper is None:
            return None
        return self.own.mean - self.paper

    def plain(self) -> dict[str, Any]:
        """Return the cell as plain values."""
        return {**asdict(self), "difference": self.difference}

    def flat(self) -> dict[str, Any]:
        """Return the cell as one row of a CSV file; a spread takes four columns."""
        row = self.plain()
        for key in ("own", "prototype"):
            sample = row.pop(key) or {}
            row |= {f"{key}_{part}": sample.get(part) for part in ("mean", "std", "half", "count")}
        return row


@dataclass(frozen=True)
class TablePlan:
    """A table to measure: its grid, the paper's figures, and the claims to judge."""

    recipe: Recipe
    axes: Axes
    paper: Mapping[str, Printed]
    claims: Sequence[Claim]
    keep = False

    @staticmethod
    def of(recipe: Recipe) -> TablePlan:
        """Read and check a recipe of this kind."""
        check_keys(recipe.table, KEYS, "")
        axes = Axes.of(recipe)
        if set(axes.labels) != set(_AXES):
            raise UserError(
                f"{recipe.name}: a table must have the two axes method and setting, "
                f"not {', '.join(axes.labels)}"
            )
        paper = printed(str(recipe.table.get("paper")))
        return TablePlan(recipe, axes, paper, claims(recipe.table, axes))

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid."""
        return list(self.axes.experiments.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Draw figure.png, and return an overview, the claims, and a table for each setting."""
        measured = MeasuredRuns.of(self.axes, ended)
        cells = self._cells(measured)
        judged = judge(self.claims, measured)
        whole = {
            "title": self.recipe.title,
            "claim": self.recipe.claim,
            "seeds": list(self.recipe.seeds),
            "cells": [cell.plain() for cell in cells],
            "claims": [one.plain() for one in judged],
            "runs": measured.rows(),
        }
        seeds = measured.seeds_in_words(self.axes.combinations())
        sheets = [self._overview(cells, seeds)]
        if judged:
            sheets.append(claims_sheet(judged))
        sheets += [self._setting(cells, setting) for setting in self.axes.labels["setting"]]
        picture = draw(folder / "figure.png", self.recipe.title, [self._facets(cells)])
        return StudyResult(sheets, whole, [cell.flat() for cell in cells], [picture])

    def _cells(self, measured: MeasuredRuns) -> list[TableCell]:
        cells = []
        for labels in self.axes.combinations():
            here = self.axes.named(labels)
            method = here["method"]
            setting = here["setting"]
            paper: float | None = None
            paper_std: float | None = None
            if method in self.paper and setting in self.paper[method].accuracy:
                paper, paper_std = self.paper[method].accuracy[setting]
            cells.append(
                TableCell(
                    method=method,
                    setting=setting,
                    paper=paper,
                    paper_std=paper_std,
                    own=measured.spread("own", labels),
                    own_std=getattr(measured.spread("own_std", labels), "mean", None),
                    prototype=measured.spread("prototype", labels),
                    rounds=self.axes.experiments[labels, self.recipe.seeds[0]].rounds,
                    parameters=getattr(measured.spread("parameters", labels), "mean", None),
                )
            )
        return cells

    def _overview(self, cells: Sequence[TableCell], seeds: str) -> Sheet:
        """Return methods × settings, each with the paper's figure, and ours with its interval."""
        by_place = {(cell.method, cell.setting): cell for cell in cells}
        settings = self.axes.labels["setting"]
        rows = [
            (method, *(_paper_and_measured(by_place.get((method, s))) for s in settings))
            for method in self.axes.labels["method"]
        ]
        title = f"{self.recipe.title}: paper → measured"
        note = (
            "Test accuracy by clients' own heads, %. Left the paper's figure; right the measured "
            f"mean over {seeds} ± half of its 95 % interval."
        )
        return Sheet(title, ("method", *settings), tuple(rows), note)

    def _setting(self, cells: Sequence[TableCell], setting: str) -> Sheet:
        header = (
            "method",
            "paper, %",
            "own head, %",
            "95 %",
            "difference",
            "nearest prototype, %",
            "rounds (paper)",
            "values per round (paper)",
        )
        rows = [
            _row(cell, self.paper.get(cell.method)) for cell in cells if cell.setting == setting
        ]
        note = (
            "Own head: mean over seeds ± the true standard deviation over clients. 95 %: half of "
            "the interval over seeds. Difference: measured minus paper, in points. The paper's ± "
            "is probably the standard deviation of running averages, which is far smaller "
            "(docs/findings.md)."
        )
        return Sheet(setting, header, tuple(rows), note)

    def _facets(self, cells: Sequence[TableCell]) -> list[Facet]:
        titles = {
            "paper": "the paper",
            "own": "measured, own head",
            "prototype": "measured, nearest global prototype",
        }
        return [
            Facet(title, "classes per client", "test accuracy, %", self._lines(cells, field))
            for field, title in titles.items()
        ]

    def _lines(self, cells: Sequence[TableCell], field: str) -> dict[str, PlotLine]:
        """Return each method's line over settings, if it has one."""
        lines = {}
        for method in self.axes.labels["method"]:
            values = {c.setting: _as_spread(getattr(c, field)) for c in cells if c.method == method}
            present = {setting: value for setting, value in values.items() if value is not None}
            if present:
                lines[method] = PlotLine(list(present), list(present.values()))
        return lines


def _as_spread(value: float | Spread | None) -> Spread | None:
    # The paper prints no interval over seeds.
    if isinstance(value, float):
        return Spread(1, value, None, None)
    return value


def _paper_and_measured(cell: TableCell | None) -> str:
    if cell is None:
        return NOTHING
    return f"{_number(cell.paper, '.2f')} → {_mean(cell.own)}"


def _mean(sample: Spread | None) -> str:
    if sample is None:
        return NOTHING
    if sample.half is None:
        return f"{sample.mean:.2f}"
    return f"{sample.mean:.2f} ± {sample.half:.2f}"


def _number(value: float | None, form: str) -> str:
    if value is None:
        return NOTHING
    return format(value, form)


def _row(cell: TableCell, paper: Printed | None) -> tuple[str, ...]:
    printed_accuracy = NOTHING
    if cell.paper is not None:
        printed_accuracy = f"{cell.paper:.2f} ± {cell.paper_std:.2f}"
    # There is no accuracy only if every seed diverged.
    own = "diverged"
    half = NOTHING
    if cell.own is not None:
        own = f"{cell.own.mean:.2f} ± {cell.own_std:.2f}"
        if cell.own.half is not None:
            half = f"± {cell.own.half:.2f}"
    rounds = str(cell.rounds)
    values = _number(cell.parameters, ",.0f")
    if paper is not None:
        rounds += f" ({paper.rounds})"
        values += f" ({paper.parameters:,})"
    difference = _number(cell.difference, "+.2f")
    prototype = _mean(cell.prototype)
    return cell.method, printed_accuracy, own, half, difference, prototype, rounds, values
