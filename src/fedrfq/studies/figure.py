"""Kind `figure`: measures of a grid of runs, drawn against one of its axes.

    kind = "figure"
    measures = ["own", "prototype"]  the columns of the picture
    x = "λ"                          an axis, drawn by numbers if all its labels are numbers;
                                     or "round"; or a measure
    series = "data"                  an axis, with a line for each of its labels
    panel = ["attack"]               optional, axes: a row of plots for each combination of labels

The other keys are those of a grid (axes.py) and of claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, check_keys
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.claims import Claim, claims, claims_sheet, judge
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, spread
from fedrfq.studies.line_plots import Facet, PlotLine, draw
from fedrfq.studies.measures import MEASURES, MeasuredRuns, known_measures
from fedrfq.studies.recipe import Progress, Recipe, StudyResult
from fedrfq.studies.sheets import NOTHING, Sheet

if TYPE_CHECKING:
    import torch

KEYS = ("measures", "x", "series", "panel", "claims", *grids.KEYS)
ROUND = "round"
_LOGARITHMIC = ("bytes", "parameters", "traffic")


@dataclass(frozen=True)
class FigurePlan:
    """A figure to draw: its grid, what is on which axis of the picture, and the claims to judge."""

    recipe: Recipe
    axes: Axes
    measures: tuple[str, ...]
    x: str
    series: str
    panel: tuple[str, ...]
    claims: Sequence[Claim]
    keep = False

    @staticmethod
    def of(recipe: Recipe) -> FigurePlan:
        """Read and check a recipe of this kind."""
        table = recipe.table
        check_keys(table, KEYS, "")
        axes = Axes.of(recipe)
        measures = known_measures(table.get("measures"), "measures")
        x = str(table.get("x"))
        series = str(table.get("series"))
        panel = _names(table.get("panel", []))
        used = [axes.at(axis) for axis in (series, *panel)]
        if x not in (ROUND, *MEASURES):
            used.append(axes.at(x))
        unused = [axis for axis in axes.labels if axes.at(axis) not in used]
        # Where x is a measure, the labels of an unused axis are further points of the same line.
        if unused and x not in MEASURES:
            raise UserError(
                f"{recipe.name}: axis '{unused[0]}' is not used as x, series or panel; use it, or "
                "remove it"
            )
        return FigurePlan(recipe, axes, measures, x, series, panel, claims(table, axes))

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid."""
        return list(self.axes.experiments.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Draw figure.png, and return the tables."""
        measured = MeasuredRuns.of(self.axes, ended)
        judged = judge(self.claims, measured)
        picture = draw(folder / "figure.png", self.recipe.title, self._facets(measured))
        sheets = [self._sheet(measured, panel) for panel in self._panels()]
        if judged:
            sheets.append(claims_sheet(judged))
        whole = {
            "title": self.recipe.title,
            "claim": self.recipe.claim,
            "seeds": list(self.recipe.seeds),
            "cells": [self._cell(measured, labels) for labels in self.axes.combinations()],
            "claims": [one.plain() for one in judged],
        }
        return StudyResult(sheets, whole, self._rows(measured), [picture])

    def _rows(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        """Return a row for each run; for curves, a row for each round, with means over seeds."""
        if self.x != ROUND:
            return measured.rows()
        rows = []
        for labels in self.axes.combinations():
            by_measure = {
                measure: self._curves(measured, measure, labels) for measure in self.measures
            }
            rounds = [curves_SR.shape[1] for curves_SR in by_measure.values() if len(curves_SR)]
            for i in range(max(rounds, default=0)):
                row: dict[str, Any] = {**self.axes.named(labels), ROUND: i + 1}
                for measure, curves_SR in by_measure.items():
                    row[measure] = None
                    if len(curves_SR):
                        row[measure] = float(curves_SR[:, i].mean())
                rows.append(row)
        return rows

    def _cell(self, measured: MeasuredRuns, labels: Labels) -> dict[str, Any]:
        cell: dict[str, Any] = {**self.axes.named(labels)}
        for measure in (*self.measures, *self._x_measure()):
            value = measured.spread(measure, labels)
            cell[measure] = None
            if value is not None:
                cell[measure] = asdict(value)
        return cell

    def _x_measure(self) -> list[str]:
        """Return the measure on the x axis, if it is one that is not drawn as well."""
        if self.x in MEASURES and self.x not in self.measures:
            return [self.x]
        return []

    def _panels(self) -> list[Labels]:
        """Return the distinct labels of the panel's axes, a row of plots for each."""
        at = [self.axes.at(axis) for axis in self.panel]
        return list(
            dict.fromkeys(tuple(labels[i] for i in at) for labels in self.axes.combinations())
        )

    def _inside(self, panel: Labels, series: str | None = None) -> list[Labels]:
        """Return the combinations of a panel, or those of one series in it."""
        fixed = dict(zip(self.panel, panel, strict=True))
        if series is not None:
            fixed[self.series] = series
        return [
            labels
            for labels in self.axes.combinations()
            if fixed.items() <= self.axes.named(labels).items()
        ]

    def _sheet(self, measured: MeasuredRuns, panel: Labels) -> Sheet:
        axes = [axis for axis in self.axes.labels if axis not in self.panel]
        measures = (*self._x_measure(), *self.measures)
        inside = self._inside(panel)
        header = (*axes, "seeds", *(MEASURES[measure].title for measure in measures))
        rows = []
        for labels in inside:
            named = self.axes.named(labels)
            figures = [_text(measured.spread(m, labels), MEASURES[m].digits) for m in measures]
            rows.append((*(named[axis] for axis in axes), str(measured.count(labels)), *figures))
        note = f"Mean over {measured.seeds_in_words(inside)} ± half of its 95 % interval."
        if measured.diverged:
            note += f" Runs of the whole figure that diverged: {len(measured.diverged)}."
        title = ": ".join(filter(None, [self.recipe.title, ", ".join(panel)]))
        return Sheet(title, header, tuple(rows), note, labels=len(axes))

    def _facets(self, measured: MeasuredRuns) -> list[list[Facet]]:
        return [
            [self._facet(measured, panel, measure) for measure in self.measures]
            for panel in self._panels()
        ]

    def _facet(self, measured: MeasuredRuns, panel: Labels, measure: str) -> Facet:
        lines = {}
        for series in self.axes.labels[self.series]:
            line = self._line(measured, measure, self._inside(panel, series))
            if line is not None:
                lines[series] = line
        xlabel = self.x
        if self.x in MEASURES:
            xlabel = MEASURES[self.x].title
        return Facet(
            title=", ".join(panel),
            xlabel=xlabel,
            ylabel=MEASURES[measure].title,
            lines=lines,
            logarithmic=self.x in _LOGARITHMIC,
        )

    def _line(
        self, measured: MeasuredRuns, measure: str, inside: Sequence[Labels]
    ) -> PlotLine | None:
        if self.x == ROUND:
            # Every axis is series or panel here: a line is one combination, unless it was skipped.
            if not inside:
                return None
            return _curve_line(self._curves(measured, measure, inside[0]))
        points = []
        for labels in inside:
            x = self._x_of(measured, labels)
            y = measured.spread(measure, labels)
            if x is not None and y is not None:
                points.append((x, y))
        if not points:
            return None
        # Labels keep the recipe's order; measured places come in any order.
        if self.x in MEASURES:
            points.sort(key=lambda point: point[0])
        return PlotLine([x for x, _ in points], [y for _, y in points])

    def _curves(self, measured: MeasuredRuns, measure: str, labels: Labels) -> NDArray[np.float64]:
        """Return the curves of a combination, seeds × rounds; empty if no run has one."""
        curves = [measured.curve(measure, labels, seed) for seed in self.recipe.seeds]
        return np.array([curve for curve in curves if curve is not None], np.float64)

    def _x_of(self, measured: MeasuredRuns, labels: Labels) -> Any:
        """Return a combination's place on the x axis: a number or a label."""
        if self.x in MEASURES:
            return getattr(measured.spread(self.x, labels), "mean", None)
        label = labels[self.axes.at(self.x)]
        if all(_is_number(other) for other in self.axes.labels[self.x]):
            return float(label)
        return label


def _curve_line(curves_SR: NDArray[np.float64]) -> PlotLine | None:
    if not len(curves_SR):
        return None
    rounds = range(1, curves_SR.shape[1] + 1)
    return PlotLine(list(rounds), [spread(list(map(float, values_S))) for values_S in curves_SR.T])


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise UserError(f"panel must be a list of axes, not {given!r}")
    return tuple(map(str, given))


def _is_number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _text(figure: Spread | None, digits: int) -> str:
    if figure is None:
        return NOTHING
    mean = f"{figure.mean:,.{digits}f}"
    # Counts of bytes and values have no digits, and hardly vary: no interval there.
    if figure.half is None or digits == 0:
        return mean
    return f"{mean} ± {figure.half:.{digits}f}"
