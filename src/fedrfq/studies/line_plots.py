"""Line plots with intervals: one picture of facets in rows and columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrfq.studies.intervals import Spread
from fedrfq.studies.plots import legend, pyplot, saved, styles

_MAX_BARS = 30  # with more points than this, intervals are drawn as a band and not as bars
_DODGE = 0.06  # the distance between lines over labels, so that their bars do not overlap
_MAX_LEVEL_LABELS = 4  # more labels than this on the x axis are slanted


@dataclass(frozen=True)
class PlotLine:
    """Places on the x axis, numbers or labels, and the figure at each of them."""

    x: Sequence[Any]
    y: Sequence[Spread | None]


@dataclass(frozen=True)
class Facet:
    """One plot of the picture: its titles, and a line for each label."""

    title: str
    xlabel: str
    ylabel: str
    lines: Mapping[str, PlotLine]
    logarithmic: bool = False


def draw(path: Path, title: str, rows: Sequence[Sequence[Facet]]) -> Path:
    """Draw the facets, row by row, with one legend for all."""
    plt = pyplot()
    across = max(map(len, rows))
    down = len(rows)
    size = (5.2 * across + 1.8, 3.6 * down + 0.6)
    figure, grid = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    look = styles([label for row in rows for facet in row for label in facet.lines])
    for axes_row, row in zip(grid, rows, strict=True):
        for axes, facet in zip(axes_row, row, strict=True):
            _draw_facet(axes, facet, look)
    legend(figure, list(grid.flat), f"{title}\nmean over seeds, 95 % intervals")
    return saved(plt, figure, path)


def _draw_facet(axes: Any, facet: Facet, look: Mapping[str, Mapping[str, str]]) -> None:
    ticks = list(dict.fromkeys(x for line in facet.lines.values() for x in line.x))
    has_labels = any(isinstance(x, str) for x in ticks)
    for i, (label, line) in enumerate(facet.lines.items()):
        points = [(x, y) for x, y in zip(line.x, line.y, strict=True) if y is not None]
        places = [x for x, _ in points]
        if has_labels:
            dodge = _DODGE * (i - (len(facet.lines) - 1) / 2)
            places = [ticks.index(x) + dodge for x in places]
        _draw_line(axes, label, places, [y for _, y in points], look[label])
    if has_labels:
        slanted = {}
        if len(ticks) > _MAX_LEVEL_LABELS:
            slanted = {"rotation": 20, "ha": "right"}
        axes.set_xticks(range(len(ticks)), ticks, **slanted)
        axes.margins(x=0.15)
    if facet.logarithmic:
        _scale_logarithmically(axes, ticks)
    axes.set(title=facet.title, xlabel=facet.xlabel, ylabel=facet.ylabel)
    axes.grid(alpha=0.3)


def _scale_logarithmically(axes: Any, places: Sequence[float]) -> None:
    """Make the x axis logarithmic; where something costs nothing, it begins with a 0."""
    above = [x for x in places if x > 0]
    if len(above) == len(places):
        axes.set_xscale("log")
    elif above:
        # Below the smallest cost the axis is linear, and so short that it holds only the 0.
        axes.set_xscale("symlog", linthresh=min(above), linscale=0.5)


def _draw_line(
    axes: Any, label: str, x: Sequence[float], y: Sequence[Spread], look: Mapping[str, str]
) -> None:
    means = [value.mean for value in y]
    halves = [value.half or 0.0 for value in y]
    if len(x) > _MAX_BARS:
        axes.plot(x, means, label=label, linewidth=1.4, **look)
        low = [mean - half for mean, half in zip(means, halves, strict=True)]
        high = [mean + half for mean, half in zip(means, halves, strict=True)]
        axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        return
    axes.errorbar(
        x, means, halves, label=label, marker="o", markersize=4, capsize=2, linewidth=1.3, **look
    )
