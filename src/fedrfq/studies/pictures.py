"""Pictures of grids: facets of lines with intervals, and heat maps."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.files.pictures import save_png, subplots
from fedrfq.studies.axes import Labels
from fedrfq.studies.intervals import Spread, spread
from fedrfq.studies.measures import MeasuredRuns

_DASHES = ("-", "--", ":")
_COLOURS = 10  # in matplotlib's cycle, C0 to C9
_EARLY = 0.1  # the y axis of curves begins at the accuracies after this share of the rounds
_DODGE = 0.06  # the distance between lines over labels, so that their bars do not overlap
_MAX_LEVEL_LABELS = 4  # more labels than this on the x axis are slanted


@dataclass(frozen=True)
class PlotLine:
    """Places on the x axis, numbers or labels, and the figure at each of them.

    Intervals are drawn as bars or, where places are close to each other, as a band.
    """

    x: Sequence[Any]
    y: Sequence[Spread]
    band: bool = False


@dataclass(frozen=True)
class Facet:
    """One plot of the picture: its titles, and a line for each label."""

    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, PlotLine]
    logarithmic: bool = False
    zoomed: bool = False  # the y axis leaves out the first rounds
    yscale: str = "linear"


def points_line(points: Mapping[Any, float]) -> PlotLine:
    """Return a line through points that have no intervals."""
    return PlotLine(list(points), [Spread(1, y, None, None) for y in points.values()])


def draw_facets(
    path: Path,
    title: str,
    rows: Sequence[Sequence[Facet]],
    caption: str = "mean over seeds, 95 % intervals over seeds",
) -> Path:
    """Draw the facets, row by row, with one legend for all."""
    across = max(map(len, rows))
    down = len(rows)
    size = (5.2 * across + 1.8, 3.6 * down + 0.6)
    figure, grid = subplots(size, down, across)
    look = styles([label for row in rows for facet in row for label in facet.lines])
    for axes_row, row in zip(grid, rows, strict=True):
        for axes, facet in zip(axes_row, row, strict=True):
            _draw_facet(axes, facet, look)
    legend(figure, list(grid.flat), f"{title}\n{caption}".strip())
    return save_png(figure, path)


def _draw_facet(axes: Any, facet: Facet, look: Mapping[str, Mapping[str, str]]) -> None:
    ticks = list(dict.fromkeys(x for line in facet.lines.values() for x in line.x))
    has_labels = any(isinstance(x, str) for x in ticks)
    for i, (label, line) in enumerate(facet.lines.items()):
        places = line.x
        if has_labels:
            dodge = _DODGE * (i - (len(facet.lines) - 1) / 2)
            places = [ticks.index(x) + dodge for x in line.x]
        _draw_line(axes, label, replace(line, x=places), look[label])
    if has_labels:
        slanted = {}
        if len(ticks) > _MAX_LEVEL_LABELS:
            slanted = {"rotation": 20, "ha": "right"}
        axes.set_xticks(range(len(ticks)), ticks, **slanted)
        axes.margins(x=0.15)
    if facet.logarithmic:
        _scale_logarithmically(axes, ticks)
    if facet.zoomed:
        axes.set_ylim(_limits(facet.lines.values()))
    axes.set(title=facet.title, xlabel=facet.xlabel, ylabel=facet.ylabel, yscale=facet.yscale)
    axes.grid(alpha=0.3)


def _scale_logarithmically(axes: Any, places: Sequence[float]) -> None:
    """Make the x axis logarithmic; where something costs nothing, it begins with a 0."""
    above = [x for x in places if x > 0]
    if len(above) == len(places):
        axes.set_xscale("log")
    elif above:
        # Below the smallest cost the axis is linear, and so short that it holds only the 0.
        axes.set_xscale("symlog", linthresh=min(above), linscale=0.5)


def _draw_line(axes: Any, label: str, line: PlotLine, look: Mapping[str, str]) -> None:
    means = np.array([value.mean for value in line.y])
    halves = np.array([value.half or 0.0 for value in line.y])
    if line.band:
        axes.plot(line.x, means, label=label, linewidth=1.4, **look)
        shade = {"color": look["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(line.x, means - halves, means + halves, **shade)
        return
    marks = {"marker": "o", "markersize": 4, "capsize": 2, "linewidth": 1.3}
    axes.errorbar(line.x, means, halves, label=label, **marks, **look)


def _limits(lines: Iterable[PlotLine]) -> tuple[float, float]:
    """Return the ends of the y axis of curves of percentages.

    It begins where the weakest line stands early on, and not at its first rounds: so the
    differences between lines in the end can be seen.
    """
    means = [[y.mean for y in line.y] for line in lines]
    low = min(values[int(_EARLY * len(values))] for values in means)
    top = max(max(values) for values in means)
    return max(0.0, low - 0.05 * (top - low) - 0.5), min(100.5, top + 0.1 * (top - low) + 0.5)


def round_lines(
    measured: MeasuredRuns, measure: str, by_label: Mapping[str, Sequence[Labels]]
) -> dict[str, PlotLine]:
    """Return a line over rounds for each label whose first combination has such curves."""
    lines = {}
    for label, combinations in by_label.items():
        curves = [
            curve for labels in combinations[:1] for curve in measured.curves(measure, labels)
        ]
        if curves:
            by_round = list(filter(None, map(spread, zip(*curves, strict=True))))
            lines[label] = PlotLine(range(1, len(by_round) + 1), by_round, band=True)
    return lines


@dataclass(frozen=True)
class Panel:
    """A heat map: rows × columns, nan where a value is missing; colours go from `low` to `high`."""

    title: str
    values: NDArray[np.float64]
    low: float
    high: float
    digits: int


def slug(label: str) -> str:
    """Return a label as part of a file name."""
    return re.sub(r"[^\w.-]+", "-", label.replace("±", "pm")).strip("-.") or "all"


def heat_maps(
    path: Path, title: str, rows: Sequence[str], columns: Sequence[str], panels: Sequence[Panel]
) -> Path:
    """Draw panels of numbers on colours, two side by side."""
    down = (len(panels) + 1) // 2
    size = (2 * (1.9 + 0.72 * len(columns)), down * (1.6 + 0.32 * len(rows)))
    figure, grid = subplots(size, down, 2)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.imshow(panel.values, cmap="viridis", vmin=panel.low, vmax=panel.high, aspect="auto")
        axes.set_title(panel.title, fontsize=10)
        slanted = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(columns)), columns, fontsize=8, **slanted)
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        _write_numbers(axes, panel)
    figure.suptitle(title)
    return save_png(figure, path)


def _write_numbers(axes: Any, panel: Panel) -> None:
    """Write each cell's number, dark on light colours and light on dark ones."""
    middle = panel.low + 0.6 * (panel.high - panel.low)
    for (i, j), value in np.ndenumerate(panel.values):
        text = f"{value:.{panel.digits}f}"
        # Missing values have no colour: black on white.
        colour = "black"
        if np.isnan(value):
            text = "–"
        elif value <= middle:
            colour = "white"
        axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)


def styles(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Give each label a colour and a dash pattern, the same in all panels."""
    distinct = list(dict.fromkeys(labels))
    return {
        label: {
            "color": f"C{i % _COLOURS}",
            "linestyle": _DASHES[i // _COLOURS % len(_DASHES)],
        }
        for i, label in enumerate(distinct)
    }


def legend(figure: Any, axes: Sequence[Any], title: str) -> None:
    """Add one legend for all panels at the right, and a title above."""
    handles = {
        label: handle
        for panel in axes
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=9)
    figure.suptitle(title, fontsize=11)
