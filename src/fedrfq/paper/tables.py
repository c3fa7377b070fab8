"""Tables of methods in settings, the paper's figures beside the measured ones.

    kind = "table"
    paper = "table1"                      which of `paper.toml`; its rows and columns are the labels of the axes
and an axis `method`, an axis `setting`, the other keys of a grid (axes.py), and claims (claims.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, known
from fedrfq.paper.printed import Printed, printed
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes
from fedrfq.studies.claims import Claim, claims, claims_sheet, judge
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread
from fedrfq.studies.line_plots import Facet, PlotLine, draw
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.recipe import Recipe, Shown, Tell
from fedrfq.studies.sheets import NOTHING, Sheet

if TYPE_CHECKING:
    import torch

KEYS = ("paper", "claims", *grids.KEYS)
_AXES = ("method", "setting")


@dataclass(frozen=True)
class TableCell:
    """A method in a setting: what the paper prints, and what was measured, over seeds."""

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
        """Measured less printed, in points."""
        if self.own is None or self.paper is None:
            return None
        return self.own.mean - self.paper

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "difference": self.difference}

    def flat(self) -> dict[str, Any]:
        """As one row: a spread is its mean and half of its interval."""
        row = self.plain()
        for key in ("own", "prototype"):
            found = row.pop(key) or {}
            row |= {f"{key}_{part}": found.get(part) for part in ("mean", "std", "half", "count")}
        return row


@dataclass(frozen=True)
class TablePlan:
    recipe: Recipe
    axes: Axes
    paper: Mapping[str, Printed]
    claims: Sequence[Claim]
    keep = False

    @staticmethod
    def of(recipe: Recipe) -> TablePlan:
        known(recipe.table, KEYS, "")
        axes = Axes.of(recipe)
        if set(axes.labels) != set(_AXES):
            raise UserError(
                f"{recipe.name}: a table has two axes, method and setting, not {', '.join(axes.labels)}"
            )
        return TablePlan(
            recipe, axes, printed(str(recipe.table.get("paper"))), claims(recipe.table, axes)
        )

    @property
    def experiments(self) -> Sequence[Experiment]:
        return list(self.axes.experiments.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        measured = MeasuredRuns.of(self.axes, ended)
        cells = self._cells(measured)
        judged = judge(self.claims, measured)
        whole = {
            "title": self.recipe.title,
            "claim": self.recipe.claim,
            "seeds": list(self.recipe.seeds),
            "cells": [cell.plain() for cell in cells],
            "claims": [one.plain() for one in judged],
            "runs": measured.runs(),
        }
        details = [self._setting(cells, setting) for setting in self.axes.labels["setting"]]
        overview = self._overview(cells, measured.over(self.axes.combinations()))
        sheets = [overview, *([claims_sheet(judged)] if judged else []), *details]
        picture = draw(folder / "figure.png", self.recipe.title, [self._facets(cells)])
        return Shown(sheets, whole, [cell.flat() for cell in cells], [picture])

    def _cells(self, measured: MeasuredRuns) -> list[TableCell]:
        found = []
        for labels in self.axes.combinations():
            here = dict(zip(self.axes.labels, labels, strict=True))
            row = self.paper.get(here["method"])
            paper, paper_std = (row.accuracy if row else {}).get(here["setting"], (None, None))
            std = measured.spread("own_std", labels)
            values = measured.spread("parameters", labels)
            found.append(
                TableCell(
                    method=here["method"],
                    setting=here["setting"],
                    paper=paper,
                    paper_std=paper_std,
                    own=measured.spread("own", labels),
                    own_std=None if std is None else std.mean,
                    prototype=measured.spread("prototype", labels),
                    rounds=self.axes.experiments[labels, self.recipe.seeds[0]].rounds,
                    parameters=None if values is None else values.mean,
                )
            )
        return found

    def _overview(self, cells: Sequence[TableCell], seeds: str) -> Sheet:
        """Methods × settings: the paper's figure, and ours with its interval."""
        by_place = {(cell.method, cell.setting): cell for cell in cells}
        settings = self.axes.labels["setting"]
        rows = [
            (method, *(_both(by_place.get((method, setting))) for setting in settings))
            for method in self.axes.labels["method"]
        ]
        note = f"test accuracy by the own head, %: paper → measured, mean over {seeds} ± half of its 95 % interval"
        return Sheet(
            f"{self.recipe.title}: paper → measured", ("method", *settings), tuple(rows), note
        )

    def _setting(self, cells: Sequence[TableCell], setting: str) -> Sheet:
        header = (
            "method",
            "paper, %",
            "own head, %",
            "95 %",
            "difference",
            "nearest prototype, %",
            "rounds (paper)",
            "values a round (paper)",
        )
        rows = [
            _row(cell, self.paper.get(cell.method)) for cell in cells if cell.setting == setting
        ]
        note = (
            "own head: mean over seeds ± the true standard deviation over clients; 95 %: half of "
            "the interval over seeds; difference: measured less paper, in points; the paper's ± is probably that of running "
            "averages, which is far smaller (docs/findings.md)"
        )
        return Sheet(setting, header, tuple(rows), note)

    def _facets(self, cells: Sequence[TableCell]) -> list[Facet]:
        def lines(value: str) -> dict[str, PlotLine]:
            found = {m: [c for c in cells if c.method == m] for m in self.axes.labels["method"]}
            points = {
                m: [(c.setting, _as_spread(getattr(c, value))) for c in own]
                for m, own in found.items()
            }
            there = {m: [(x, y) for x, y in own if y is not None] for m, own in points.items()}
            return {
                m: PlotLine([x for x, _ in own], [y for _, y in own])
                for m, own in there.items()
                if own
            }

        titles = {
            "paper": "the paper",
            "own": "measured, own head",
            "prototype": "measured, nearest global prototype",
        }
        return [
            Facet(title, "classes a client", "test accuracy, %", lines(value))
            for value, title in titles.items()
        ]


def _as_spread(value: float | Spread | None) -> Spread | None:
    if isinstance(value, float):
        return Spread(1, value, None, None)
    return value


def _both(cell: TableCell | None) -> str:
    if cell is None:
        return NOTHING
    if cell.paper is None:
        paper = NOTHING
    else:
        paper = f"{cell.paper:.2f}"
    return f"{paper} → {_mean(cell.own)}"


def _mean(found: Spread | None) -> str:
    if found is None:
        return NOTHING
    return f"{found.mean:.2f}" + ("" if found.half is None else f" ± {found.half:.2f}")


def _row(cell: TableCell, paper: Printed | None) -> tuple[str, ...]:
    if cell.paper is None:
        printed_ = NOTHING
    else:
        printed_ = f"{cell.paper:.2f} ± {cell.paper_std:.2f}"
    if cell.own is None:
        own = "diverged"
    else:
        own = f"{cell.own.mean:.2f} ± {cell.own_std:.2f}"
    if cell.own is None or cell.own.half is None:
        half = NOTHING
    else:
        half = f"± {cell.own.half:.2f}"
    if cell.difference is None:
        gap = NOTHING
    else:
        gap = f"{cell.difference:+.2f}"
    if cell.parameters is None:
        values = NOTHING
    else:
        values = f"{cell.parameters:,.0f}"
    rounds = f"{cell.rounds}" + (f" ({paper.rounds})" if paper else "")
    values += f" ({paper.parameters:,})" if paper else ""
    return cell.method, printed_, own, half, gap, _mean(cell.prototype), rounds, values
