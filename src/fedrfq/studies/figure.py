"""Kind `figure`: measures of a grid of runs, drawn against one of its axes.

    kind = "figure"
    measures = ["own", "prototype"]  the columns of the picture
    x = "λ"                          an axis, drawn by numbers if all its labels are numbers;
                                     or "round"; or a measure
    series = "data"                  an axis, with a line for each of its labels
    panel = ["attack"]               optional, axes: a row of plots for each combination of labels
    against = ["SoftPool"]           optional, labels of one axis: differences from each are printed

The other keys are those of a grid (axes.py) and of claims (claims.py).

Kind `frontier` is a figure whose x axis is fixed: the bytes that a client sends and receives in the
whole run. Its measure is the accuracy on all classes, unless the study names others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes, Labels
from fedrfq.studies.claims import ALL, claims
from fedrfq.studies.differences import difference_sheets, pairs, read_against
from fedrfq.studies.intervals import mean
from fedrfq.studies.measures import MEASURES, MeasuredRuns, known_measures
from fedrfq.studies.pictures import Facet, PlotLine, draw_facets, round_lines
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.sheets import Cell, Sheet, mean_and_half, number
from fedrfq.studies.study import Study

KEYS = ("measures", "x", "series", "panel", "against", "claims", *grids.KEYS)
ROUND = "round"
_LOGARITHMIC = ("bytes", "parameters", "traffic")


@dataclass(frozen=True)
class FigurePlan(GridPlan):
    """A figure to draw: its grid, what is on which axis of the picture, and the claims to judge."""

    drawn: tuple[str, ...]  # the measures
    x: str
    series: str
    panel: tuple[str, ...]
    against: tuple[str, ...]

    @staticmethod
    def of(study: Study) -> FigurePlan:
        """Read and check a study of this kind."""
        table = study.table
        study.check_keys(KEYS)
        axes = Axes.of(study)
        for key in ("x", "series"):
            if key not in table:
                known = ", ".join(axes.labels)
                raise UserError(f"{study.name}: {key} is missing; name one of the axes ({known})")
        x = str(table["x"])
        plan = FigurePlan(
            study,
            axes,
            claims(table, axes),
            drawn=known_measures(table.get("measures"), "measures"),
            x=x,
            series=str(table["series"]),
            panel=_names(table.get("panel", [])),
            against=read_against(
                table.get("against", []), [name for own in axes.labels.values() for name in own]
            ),
        )
        used = [axes.at(axis) for axis in (plan.series, *plan.panel)]
        if x not in (ROUND, *MEASURES):
            used.append(axes.at(x))
        unused = [axis for axis in axes.labels if axes.at(axis) not in used]
        # Where x is a measure, the labels of an unused axis are further points of the same line.
        if unused and x not in MEASURES:
            raise UserError(
                f"{study.name}: axis '{unused[0]}' is not used as x, series or panel; use it, or "
                "remove it"
            )
        return plan

    def rows(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        """Return a row for each run; for curves, a row for each round, with means over seeds."""
        if self.x != ROUND:
            return measured.rows()
        rows = []
        for labels in self.axes.combinations():
            curves = {name: measured.curves(name, labels) for name in self.drawn}
            rounds = max((len(one) for found in curves.values() for one in found), default=0)
            for i in range(rounds):
                means = {name: mean([one[i] for one in found]) for name, found in curves.items()}
                rows.append({**self.axes.named(labels), ROUND: i + 1, **means})
        return rows

    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return a combination's figures."""
        measures = (*self.drawn, *self._x_measure())
        return self.axes.named(labels) | {m: measured.spread(m, labels) for m in measures}

    def _x_measure(self) -> list[str]:
        """Return the measure on the x axis, if it is one that is not drawn as well."""
        if self.x in MEASURES and self.x not in self.drawn:
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

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return a table for each panel, and one of differences for each `against`."""
        sheets = [self._sheet(measured, panel) for panel in self._panels()]
        titles = {name: MEASURES[name].title for name in self.drawn}
        for label in self.against:
            axis = next(axis for axis, labels in self.axes.labels.items() if label in labels)
            found = pairs(measured, axis, self.drawn, ALL)
            sheets += difference_sheets(found, [label], titles, axis, "where")
        return sheets

    def _sheet(self, measured: MeasuredRuns, panel: Labels) -> Sheet:
        axes = [axis for axis in self.axes.labels if axis not in self.panel]
        inside = self._inside(panel)
        columns: dict[str, Callable[[Cell], str]] = {axis: itemgetter(axis) for axis in axes}
        columns["seeds"] = lambda cell: str(cell["seeds"])
        for measure in (*self._x_measure(), *self.drawn):
            columns[MEASURES[measure].title] = partial(_text, measure=measure)
        cells = [
            {**self.cell(measured, labels), "seeds": measured.count(labels)} for labels in inside
        ]
        note = f"Mean over {measured.seeds_in_words(inside)} ± half of its 95 % interval."
        if measured.diverged:
            note += f" Runs of the whole figure that diverged: {len(measured.diverged)}."
        title = ": ".join(filter(None, [self.study.title, ", ".join(panel)]))
        return Sheet.of(title, columns, cells, note, labels=len(axes))

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw figure.png."""
        return [draw_facets(folder / "figure.png", self.study.title, self.facets(measured))]

    def facets(self, measured: MeasuredRuns) -> list[list[Facet]]:
        """Return the plots of the picture: a row for each panel, a column for each measure."""
        return [
            [self._facet(measured, panel, measure) for measure in self.drawn]
            for panel in self._panels()
        ]

    def _facet(self, measured: MeasuredRuns, panel: Labels, measure: str) -> Facet:
        inside = {label: self._inside(panel, label) for label in self.axes.labels[self.series]}
        lines: dict[str, PlotLine] = {}
        if self.x == ROUND:
            # Every axis is series or panel here, so a line is one combination.
            lines = round_lines(measured, measure, inside)
        else:
            found = {label: self._line(measured, measure, own) for label, own in inside.items()}
            lines = {label: line for label, line in found.items() if line.x}
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

    def _line(self, measured: MeasuredRuns, measure: str, inside: Sequence[Labels]) -> PlotLine:
        points = []
        for labels in inside:
            x = self._x_of(measured, labels)
            y = measured.spread(measure, labels)
            if x is not None and y is not None:
                points.append((x, y))
        # Labels keep the study's order; measured places come in any order.
        if self.x in MEASURES:
            points.sort(key=lambda point: point[0])
        return PlotLine([x for x, _ in points], [y for _, y in points])

    def _x_of(self, measured: MeasuredRuns, labels: Labels) -> Any:
        """Return a combination's place on the x axis: a number or a label."""
        if self.x in MEASURES:
            return measured.mean(self.x, labels)
        label = labels[self.axes.at(self.x)]
        if all(_is_number(other) for other in self.axes.labels[self.x]):
            return float(label)
        return label


def frontier(study: Study) -> FigurePlan:
    """Read and check a study of the kind `frontier`: what accuracy costs."""
    study.check_keys([key for key in KEYS if key != "x"])
    table = {"measures": ["accuracy_all"], **study.table, "x": "traffic"}
    return FigurePlan.of(replace(study, table=table))


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


def _text(cell: Cell, measure: str) -> str:
    figure = cell[measure]
    digits = MEASURES[measure].digits
    # Counts of bytes and values have no digits, and hardly vary: no interval there.
    if figure is not None and digits == 0:
        return number(figure.mean)
    return mean_and_half(figure, digits)
