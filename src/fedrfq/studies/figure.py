"""Figures: measures of a grid of runs against one of its axes.

    kind = "figure"
    measures = ["own", "prototype"]       a picture's columns
    x = "λ"                               an axis, by numbers if all its labels are; or "round"; or a measure
    series = "data"                       an axis: a line each
    panel = ["attack"]                    optional, axes: a row of pictures for each of their combinations
and the keys of a grid (axes.py) and of claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, known
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.claims import Claim, claims, claims_sheet, judge
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, spread
from fedrfq.studies.line_plots import Facet, PlotLine, draw
from fedrfq.studies.measures import MEASURES, MeasuredRuns, known_measures
from fedrfq.studies.recipe import Recipe, Shown, Tell
from fedrfq.studies.sheets import NOTHING, Sheet

if TYPE_CHECKING:
    import torch

KEYS = ("measures", "x", "series", "panel", "claims", *grids.KEYS)
ROUND = "round"


@dataclass(frozen=True)
class FigurePlan:
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
        table = recipe.table
        known(table, KEYS, "")
        axes = Axes.of(recipe)
        measures = known_measures(table.get("measures"), "measures")
        x = str(table.get("x"))
        series = str(table.get("series"))
        panel = _names(table.get("panel", []))
        used = [axes.at(axis) for axis in (series, *panel)]
        if x not in (ROUND, *MEASURES):
            used.append(axes.at(x))
        idle = [axis for axis in axes.labels if axes.at(axis) not in used]
        if idle and x not in MEASURES:
            raise UserError(
                f"{recipe.name}: axis '{idle[0]}' is neither x, series nor panel: name it, or leave it out"
            )
        return FigurePlan(recipe, axes, measures, x, series, panel, claims(table, axes))

    @property
    def experiments(self) -> Sequence[Experiment]:
        return list(self.axes.experiments.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        measured = MeasuredRuns.of(self.axes, ended)
        judged = judge(self.claims, measured)
        pictures = [draw(folder / "figure.png", self.recipe.title, self._facets(measured))]
        sheets = [self._sheet(measured, panel) for panel in self._panels()]
        whole = {
            "title": self.recipe.title,
            "claim": self.recipe.claim,
            "seeds": list(self.recipe.seeds),
            "cells": [self._cell(measured, labels) for labels in self.axes.combinations()],
            "claims": [one.plain() for one in judged],
        }
        return Shown(
            [*sheets, *([claims_sheet(judged)] if judged else [])],
            whole,
            self._rows(measured),
            pictures,
        )

    def _rows(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        """Of curves a row a round, the mean over seeds; else a row a run."""
        if self.x != ROUND:
            return measured.runs()
        rows = []
        for labels in self.axes.combinations():
            found = {measure: self._curves(measured, measure, labels) for measure in self.measures}
            length = max(
                (curves.shape[1] for curves in found.values() if curves is not None), default=0
            )
            for i in range(length):
                row: dict[str, Any] = {
                    **dict(zip(self.axes.labels, labels, strict=True)),
                    ROUND: i + 1,
                }
                for measure, curves in found.items():
                    if curves is None:
                        row[measure] = None
                    else:
                        row[measure] = float(curves[:, i].mean())
                rows.append(row)
        return rows

    def _cell(self, measured: MeasuredRuns, labels: Labels) -> dict[str, Any]:
        found = {
            measure: measured.spread(measure, labels)
            for measure in (*self.measures, *self._x_measure())
        }
        values = {
            measure: None if value is None else asdict(value) for measure, value in found.items()
        }
        return {**dict(zip(self.axes.labels, labels, strict=True)), **values}

    def _x_measure(self) -> list[str]:
        if self.x in MEASURES and self.x not in self.measures:
            return [self.x]
        return []

    def _panels(self) -> list[Labels]:
        at = [self.axes.at(axis) for axis in self.panel]
        return list(
            dict.fromkeys(tuple(labels[i] for i in at) for labels in self.axes.combinations())
        )

    def _inside(self, panel: Labels, series: str | None = None) -> list[Labels]:
        """The combinations of a panel, and of a series in it."""
        fixed = [
            *zip(self.panel, panel, strict=True),
            *([(self.series, series)] if series is not None else []),
        ]
        at = [(self.axes.at(axis), label) for axis, label in fixed]
        return [
            labels
            for labels in self.axes.combinations()
            if all(labels[i] == label for i, label in at)
        ]

    def _sheet(self, measured: MeasuredRuns, panel: Labels) -> Sheet:
        at = [i for i, axis in enumerate(self.axes.labels) if axis not in self.panel]
        shown = (*self._x_measure(), *self.measures)
        inside = self._inside(panel)
        header = (
            *(list(self.axes.labels)[i] for i in at),
            "seeds",
            *(MEASURES[measure].title for measure in shown),
        )
        rows = [
            (
                *(labels[i] for i in at),
                str(measured.count(labels)),
                *(_text(measured.spread(m, labels), MEASURES[m].digits) for m in shown),
            )
            for labels in inside
        ]
        if measured.diverged:
            lost = f"; {len(measured.diverged)} runs diverged"
        else:
            lost = ""
        note = f"mean over {measured.over(inside)} ± half of its 95 % interval{lost}"
        return Sheet(
            self.recipe.title + (f": {', '.join(panel)}" if panel else ""),
            header,
            tuple(rows),
            note,
            len(at),
        )

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
        if self.x in MEASURES:
            title = MEASURES[self.x].title
        else:
            title = self.x
        return Facet(
            ", ".join(panel),
            title,
            MEASURES[measure].title,
            lines,
            self.x in ("bytes", "parameters"),
        )

    def _line(
        self, measured: MeasuredRuns, measure: str, inside: Sequence[Labels]
    ) -> PlotLine | None:
        if self.x == ROUND:
            if inside:
                curves = self._curves(measured, measure, inside[0])
            else:
                curves = None
            if curves is None:
                return None
            return PlotLine(
                list(range(1, curves.shape[1] + 1)),
                [spread(list(map(float, at))) for at in curves.T],
            )
        points = [
            (self._at(measured, labels), measured.spread(measure, labels)) for labels in inside
        ]
        found = [(x, y) for x, y in points if x is not None and y is not None]
        if self.x in MEASURES:
            found.sort(key=lambda point: point[0])
        if found:
            return PlotLine([x for x, _ in found], [y for _, y in found])
        return None

    def _curves(
        self, measured: MeasuredRuns, measure: str, labels: Labels
    ) -> np.ndarray[Any, Any] | None:
        """Seeds × rounds."""
        curves = [measured.curve(measure, labels, seed) for seed in self.recipe.seeds]
        there = [curve for curve in curves if curve is not None]
        if there:
            return np.array(there)
        return None

    def _at(self, measured: MeasuredRuns, labels: Labels) -> Any:
        """Where a combination stands on the x axis: a number, or a label."""
        if self.x in MEASURES:
            found = measured.spread(self.x, labels)
            if found is None:
                return None
            return found.mean
        label = labels[self.axes.at(self.x)]
        if all(_number(other) for other in self.axes.labels[self.x]):
            return float(label)
        return label


def _names(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise UserError(f"panel is a list of axes, not {given!r}")
    return tuple(map(str, given))


def _number(label: str) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _text(found: Spread | None, digits: int) -> str:
    if found is None:
        return NOTHING
    if found.half is None or digits == 0:
        half = ""
    else:
        half = f" ± {found.half:.{digits}f}"
    return f"{found.mean:,.{digits}f}{half}"
