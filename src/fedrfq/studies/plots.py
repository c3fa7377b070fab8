"""Pictures of grids: accuracy by rounds, final accuracies with intervals, and heat maps."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.files.atomic import write_atomically
from fedrfq.studies.intervals import Spread

_DASHES = ("-", "--", ":")
_COLOURS = 10  # in matplotlib's cycle, C0 to C9
_EARLY = 0.1  # the y axis of curves begins at the accuracies after this share of the rounds


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


def curves(path: Path, title: str, panels: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Path:
    """Draw accuracy by rounds: a panel for each measure, with a line for each label.

    Each array is seeds × rounds; a line is the mean over seeds, its band the standard deviation.
    """
    plt = pyplot()
    # A panel that no method has a line in is left out.
    drawn = {name: lines for name, lines in panels.items() if lines}
    figure, row = plt.subplots(
        1, len(drawn), figsize=(6.2 * len(drawn) + 1.8, 4.6), layout="constrained", squeeze=False
    )
    look = styles([label for lines in panels.values() for label in lines])
    for axes, (name, lines) in zip(row[0], drawn.items(), strict=True):
        for label, values_SR in lines.items():
            _draw_curve(axes, label, values_SR, look[label])
        axes.set(
            title=name,
            xlabel="round",
            ylabel="test accuracy, mean over clients (%)",
            ylim=_limits(list(lines.values())),
        )
        axes.grid(alpha=0.3)
    legend(figure, row[0], f"{title}\nmean over seeds ± standard deviation")
    return saved(plt, figure, path)


def _draw_curve(
    axes: Any, label: str, values_SR: NDArray[np.float64], look: Mapping[str, str]
) -> None:
    rounds = np.arange(1, values_SR.shape[1] + 1)
    mean = values_SR.mean(0)
    std = values_SR.std(0)
    axes.plot(rounds, mean, label=label, linewidth=1.5, **look)
    high = np.minimum(mean + std, 100)
    axes.fill_between(rounds, mean - std, high, color=look["color"], alpha=0.12, linewidth=0)


def dots(
    path: Path,
    title: str,
    groups: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[Spread | None]]],
) -> Path:
    """Draw final accuracies: a panel for each measure, a dot with its interval for each label.

    Each label has one value for each group; the groups stand side by side on the x axis.
    """
    plt = pyplot()
    drawn = {
        name: lines
        for name, lines in panels.items()
        if any(any(values) for values in lines.values())
    }
    width = max(5.0, 1.4 + 1.1 * len(groups))
    figure, row = plt.subplots(
        1, len(drawn), figsize=(width * len(drawn) + 1.8, 4.6), layout="constrained", squeeze=False
    )
    look = styles([label for lines in panels.values() for label in lines])
    for axes, (name, lines) in zip(row[0], drawn.items(), strict=True):
        _draw_dots(axes, lines, look)
        axes.set(
            title=name,
            ylabel="test accuracy after the last round (%)",
            xlim=(-0.6, len(groups) - 0.4),
        )
        axes.set_xticks(range(len(groups)), [group or " " for group in groups])
        axes.grid(axis="y", alpha=0.3)
    legend(figure, row[0], f"{title}\nmean over seeds, 95 % intervals")
    return saved(plt, figure, path)


def _draw_dots(
    axes: Any,
    lines: Mapping[str, Sequence[Spread | None]],
    look: Mapping[str, Mapping[str, str]],
) -> None:
    present = {label: values for label, values in lines.items() if any(values)}
    # Labels of one group stand beside each other, so that their intervals do not overlap.
    offsets = np.zeros(1)
    if len(present) > 1:
        offsets = np.linspace(-0.35, 0.35, len(present))
    for (label, values), offset in zip(present.items(), offsets, strict=True):
        points = [(i + offset, value) for i, value in enumerate(values) if value is not None]
        axes.errorbar(
            [x for x, _ in points],
            [value.mean for _, value in points],
            [value.half or 0.0 for _, value in points],
            label=label,
            fmt="o",
            markersize=4,
            capsize=2,
            color=look[label]["color"],
        )


def heat_maps(
    path: Path, title: str, rows: Sequence[str], columns: Sequence[str], panels: Sequence[Panel]
) -> Path:
    """Draw panels of numbers on colours, two side by side."""
    plt = pyplot()
    down = (len(panels) + 1) // 2
    size = (2 * (1.9 + 0.72 * len(columns)), down * (1.6 + 0.32 * len(rows)))
    figure, grid = plt.subplots(down, 2, figsize=size, layout="constrained", squeeze=False)
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
    return saved(plt, figure, path)


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


def _limits(lines: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the ends of the y axis of curves.

    It begins where the weakest method stands early on, and not at its first rounds: so the
    differences between methods in the end can be seen.
    """
    early = [float(values_SR.mean(0)[int(_EARLY * values_SR.shape[1])]) for values_SR in lines]
    top = max(float(values_SR.mean(0).max()) for values_SR in lines)
    low = min(early)
    return max(0.0, low - 0.05 * (top - low) - 0.5), min(100.5, top + 0.1 * (top - low) + 0.5)


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


def pyplot() -> Any:
    """Import pyplot without a display, and only when a picture is drawn: it takes a while."""
    import matplotlib

    # Before pyplot is imported, which would otherwise look for a display.
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def saved(plt: Any, figure: Any, path: Path) -> Path:
    """Write a figure as PNG, close it, and return the path."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=150, format="png")
    plt.close(figure)
    write_atomically(path, buffer.getvalue())
    return path
