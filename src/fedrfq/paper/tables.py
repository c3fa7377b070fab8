"""Kind `table`: methods in settings, with the paper's figures beside the measured ones.

    kind = "table"
    paper = "table1"       a section of `paper.toml`, whose rows and columns are labels of the axes
    against = ["fedproto"] optional: the methods that printed differences are taken from; by default
                           local and fedproto

It needs an axis `method` and an axis `setting`. The other keys are those of a grid (axes.py) and of
claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.paper.printed import Printed, printed
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes
from fedrfq.studies.claims import claims
from fedrfq.studies.differences import difference_sheets, pairs, read_against
from fedrfq.studies.intervals import Spread
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.pictures import Facet, PlotLine, draw_facets
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.sheets import NOTHING, Sheet, flat, mean_and_half, number, plain
from fedrfq.studies.study import Study

KEYS = ("paper", "against", "claims", *grids.KEYS)
_ALL = "all settings"
_ACCURACIES = {"own": "own head", "prototype": "nearest prototype"}
_HEADER = (
    "method",
    "paper, %",
    "own head, %",
    "95 %",
    "difference",
    "nearest prototype, %",
    "rounds (paper)",
    "values per round (paper)",
)
_FACETS = {
    "paper": "the paper",
    "own": "measured, own head",
    "prototype": "measured, nearest global prototype",
}


@dataclass(frozen=True)
class TablePlan(GridPlan):
    """A table to measure: its grid, the paper's figures, and the claims to judge."""

    paper: Mapping[str, Printed]
    against: tuple[str, ...]

    @staticmethod
    def of(study: Study) -> TablePlan:
        """Read and check a study of this kind."""
        table = study.table
        study.check_keys(KEYS)
        axes = Axes.of(study)
        if set(axes.labels) != {"method", "setting"}:
            raise UserError(
                f"{study.name}: a table must have the two axes method and setting, "
                f"not {', '.join(axes.labels)}"
            )
        methods = axes.labels["method"]
        usual = [label for label in ("local", "fedproto") if label in methods]
        against = read_against(table.get("against", usual), methods)
        paper = printed(str(table.get("paper")))
        return TablePlan(study, axes, claims(table, axes), paper, against)

    def whole(self, measured: MeasuredRuns) -> dict[str, Any]:
        """Return everything as plain values, as table.json has it."""
        found = pairs(measured, "method", list(_ACCURACIES), _ALL)
        whole = super().whole(measured)
        return {
            **whole,
            "cells": [plain(cell) for cell in whole["cells"]],
            "pairs": [pair.plain("method", "setting") for pair in found],
        }

    def cells(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        """Return the paper's and the measured figures of each method in each setting."""
        cells = []
        for labels in self.axes.combinations():
            here = self.axes.named(labels)
            paper: tuple[float | None, float | None] = (None, None)
            if here["method"] in self.paper:
                paper = self.paper[here["method"]].accuracy.get(here["setting"], paper)
            own = measured.spread("own", labels)
            difference = None
            if own is not None and paper[0] is not None:
                difference = own.mean - paper[0]
            cells.append(
                {
                    "method": here["method"],
                    "setting": here["setting"],
                    "paper": paper[0],
                    "paper_std": paper[1],
                    "own": own,
                    "own_std": measured.mean("own_std", labels),  # over clients
                    "prototype": measured.spread("prototype", labels),
                    "rounds": self.axes.experiments[labels, self.study.seeds[0]].rounds,
                    "parameters": measured.mean("parameters", labels),
                    "difference": difference,
                }
            )
        return cells

    def rows(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        """Return a row for each cell."""
        return [flat(cell, _ACCURACIES) for cell in self.cells(measured)]

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return an overview, a table for each setting, and the methods' differences."""
        cells = self.cells(measured)
        found = pairs(measured, "method", list(_ACCURACIES), _ALL)
        return [
            self._overview(cells, measured.seeds_in_words(self.axes.combinations())),
            *(self._setting(cells, setting) for setting in self.axes.labels["setting"]),
            *difference_sheets(found, self.against, _ACCURACIES, "method", "setting"),
        ]

    def _overview(self, cells: Sequence[Mapping[str, Any]], seeds: str) -> Sheet:
        """Return methods × settings, each with the paper's figure, and ours with its interval."""
        texts = {
            (cell["method"], cell["setting"]): (
                f"{number(cell['paper'], '.2f')} → {mean_and_half(cell['own'])}"
            )
            for cell in cells
        }
        settings = self.axes.labels["setting"]
        rows = [
            (method, *(texts.get((method, setting), NOTHING) for setting in settings))
            for method in self.axes.labels["method"]
        ]
        note = (
            "Test accuracy by clients' own heads, %. Left the paper's figure; right the measured "
            f"mean over {seeds} ± half of its 95 % interval."
        )
        title = f"{self.study.title}: paper → measured"
        return Sheet(title, ("method", *settings), tuple(rows), note)

    def _setting(self, cells: Sequence[Mapping[str, Any]], setting: str) -> Sheet:
        rows = [
            _row(cell, self.paper.get(cell["method"]))
            for cell in cells
            if cell["setting"] == setting
        ]
        note = (
            "Own head: mean over seeds ± the true standard deviation over clients. 95 %: half of "
            "the interval over seeds. Difference: measured minus paper, in points. The paper's ± "
            "is probably the standard deviation of running averages, which is far smaller "
            "(docs/findings.md)."
        )
        return Sheet(setting, _HEADER, tuple(rows), note)

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw figure.png: the paper's and the measured accuracies over the settings."""
        cells = self.cells(measured)
        facets = [
            Facet(title, "classes per client", "test accuracy, %", self._lines(cells, key))
            for key, title in _FACETS.items()
        ]
        return [draw_facets(folder / "figure.png", self.study.title, [facets])]

    def _lines(self, cells: Sequence[Mapping[str, Any]], key: str) -> dict[str, PlotLine]:
        """Return each method's line over settings, if it has one."""
        lines = {}
        for method in self.axes.labels["method"]:
            present = {
                cell["setting"]: _as_spread(cell[key])
                for cell in cells
                if cell["method"] == method and cell[key] is not None
            }
            if present:
                lines[method] = PlotLine(list(present), list(present.values()))
        return lines


def _as_spread(value: float | Spread) -> Spread:
    # The paper prints no interval over seeds.
    if isinstance(value, float):
        return Spread(1, value, None, None)
    return value


def _row(cell: Mapping[str, Any], paper: Printed | None) -> tuple[str, ...]:
    printed_accuracy = NOTHING
    if cell["paper"] is not None:
        printed_accuracy = f"{cell['paper']:.2f} ± {cell['paper_std']:.2f}"
    # There is no accuracy only if every seed diverged.
    own = "diverged"
    half = NOTHING
    if cell["own"] is not None:
        own = f"{cell['own'].mean:.2f} ± {cell['own_std']:.2f}"
        if cell["own"].half is not None:
            half = f"± {cell['own'].half:.2f}"
    rounds = str(cell["rounds"])
    values = number(cell["parameters"])
    if paper is not None:
        rounds += f" ({paper.rounds})"
        values += f" ({paper.parameters:,})"
    return (
        cell["method"],
        printed_accuracy,
        own,
        half,
        number(cell["difference"], "+.2f"),
        mean_and_half(cell["prototype"]),
        rounds,
        values,
    )
