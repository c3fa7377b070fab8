"""Lines with their intervals, side by side and below each other, as one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.studies.intervals import Spread
from fedrfq.studies.plots import legend, pyplot, saved, styles

_MANY = 30  # points from which on an interval is a band and not a bar
_BESIDE = (
    0.06  # lines over labels stand so far from each other, that their intervals can be told apart
)


@dataclass(frozen=True)
class PlotLine:
    """Places on the x axis, numbers or labels, and what was found there."""

    x: Sequence[Any]
    y: Sequence[Spread | None]


@dataclass(frozen=True)
class Facet:
    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, PlotLine]
    logarithmic: bool = False


def draw(path: Path, title: str, rows: Sequence[Sequence[Facet]]) -> Path:
    """Facets in rows; one legend for all."""
    plt = pyplot()
    across = max(map(len, rows))
    down = len(rows)
    size = (5.2 * across + 1.8, 3.6 * down + 0.6)
    figure, grid = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    look = styles([label for row in rows for facet in row for label in facet.lines])
    for axes_row, row in zip(grid, rows, strict=True):
        for axes, facet in zip(axes_row, row, strict=True):
            _facet(axes, facet, look)
    legend(figure, list(grid.flat), f"{title}\nmean over seeds, 95 % intervals")
    return saved(plt, figure, path)


def _facet(axes: Any, facet: Facet, look: Mapping[str, Mapping[str, str]]) -> None:
    places = list(dict.fromkeys(x for line in facet.lines.values() for x in line.x))
    labels = any(isinstance(x, str) for x in places)
    for i, (label, line) in enumerate(facet.lines.items()):
        if labels:
            beside = _BESIDE * (i - (len(facet.lines) - 1) / 2)
        else:
            beside = 0.0
        there = [
            (places.index(x) + beside if labels else x, y)
            for x, y in zip(line.x, line.y, strict=True)
        ]
        found = [(x, y) for x, y in there if y is not None]
        _line(axes, label, [x for x, _ in found], [y for _, y in found], look[label])
    if labels:
        if len(places) > 4:
            slanted = {"rotation": 20, "ha": "right"}
        else:
            slanted = {}
        axes.set_xticks(range(len(places)), places, **slanted)
        axes.margins(x=0.15)
    if facet.logarithmic:
        axes.set_xscale("log")
    axes.set(title=facet.title, xlabel=facet.xlabel, ylabel=facet.ylabel)
    axes.grid(alpha=0.3)


def _line(
    axes: Any, label: str, x: Sequence[float], y: Sequence[Spread], look: Mapping[str, str]
) -> None:
    mean = [value.mean for value in y]
    half = [value.half or 0.0 for value in y]
    if len(x) > _MANY:
        axes.plot(x, mean, label=label, linewidth=1.4, **look)
        low = [m - h for m, h in zip(mean, half, strict=True)]
        high = [m + h for m, h in zip(mean, half, strict=True)]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
    else:
        axes.errorbar(
            x, mean, half, label=label, marker="o", markersize=4, capsize=2, linewidth=1.3, **look
        )
