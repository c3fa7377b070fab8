"""The pictures of grids: accuracy by rounds, final accuracies with intervals, and heat maps."""

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
_EARLY = 0.1  # the curves' axis begins where the methods stand after this share of the rounds


@dataclass(frozen=True)
class Panel:
    """A heat map: rows × columns, nan where there is nothing; the colours go from `low` to `high`."""

    title: str
    values: NDArray[np.float64]
    low: float
    high: float
    digits: int


def slug(label: str) -> str:
    return re.sub(r"[^\w.-]+", "-", label.replace("±", "pm")).strip("-.") or "all"


def curves(path: Path, title: str, panels: Mapping[str, Mapping[str, NDArray[np.float64]]]) -> Path:
    """Accuracy by rounds: a panel a measure, a line a label; each array is seeds × rounds, the band their std."""
    plt = pyplot()
    shown = {name: lines for name, lines in panels.items() if lines}
    figure, row = plt.subplots(
        1, len(shown), figsize=(6.2 * len(shown) + 1.8, 4.6), layout="constrained", squeeze=False
    )
    look = styles([label for lines in panels.values() for label in lines])
    for axes, (name, lines) in zip(row[0], shown.items(), strict=True):
        for label, values_SR in lines.items():
            rounds = np.arange(1, values_SR.shape[1] + 1)
            mean = values_SR.mean(0)
            std = values_SR.std(0)
            axes.plot(rounds, mean, label=label, linewidth=1.5, **look[label])
            low = mean - std
            high = np.minimum(mean + std, 100)
            axes.fill_between(
                rounds, low, high, color=look[label]["color"], alpha=0.12, linewidth=0
            )
        axes.set(
            title=name,
            xlabel="round",
            ylabel="test accuracy, mean over clients (%)",
            ylim=_limits(list(lines.values())),
        )
        axes.grid(alpha=0.3)
    legend(figure, row[0], f"{title}\nmean over seeds ± standard deviation")
    return saved(plt, figure, path)


def dots(
    path: Path,
    title: str,
    groups: Sequence[str],
    panels: Mapping[str, Mapping[str, Sequence[Spread | None]]],
) -> Path:
    """Final accuracies: a panel a measure, a dot for each label in each group, with its 95 % interval."""
    plt = pyplot()
    shown = {
        name: lines
        for name, lines in panels.items()
        if any(any(values) for values in lines.values())
    }
    width = max(5.0, 1.4 + 1.1 * len(groups))
    figure, row = plt.subplots(
        1, len(shown), figsize=(width * len(shown) + 1.8, 4.6), layout="constrained", squeeze=False
    )
    look = styles([label for lines in panels.values() for label in lines])
    for axes, (name, lines) in zip(row[0], shown.items(), strict=True):
        there = {label: values for label, values in lines.items() if any(values)}
        if len(there) > 1:
            offsets = np.linspace(-0.35, 0.35, len(there))
        else:
            offsets = np.zeros(1)
        for (label, values), offset in zip(there.items(), offsets, strict=True):
            found = [(i + offset, value) for i, value in enumerate(values) if value is not None]
            halves = [value.half or 0.0 for _, value in found]
            dot = {"fmt": "o", "markersize": 4, "capsize": 2, "color": look[label]["color"]}
            axes.errorbar(
                [x for x, _ in found],
                [value.mean for _, value in found],
                halves,
                label=label,
                **dot,
            )
        axes.set(
            title=name,
            ylabel="test accuracy after the last round (%)",
            xlim=(-0.6, len(groups) - 0.4),
        )
        axes.set_xticks(range(len(groups)), [group or " " for group in groups])
        axes.grid(axis="y", alpha=0.3)
    legend(figure, row[0], f"{title}\nmean over seeds, 95 % intervals")
    return saved(plt, figure, path)


def heat_maps(
    path: Path, title: str, rows: Sequence[str], columns: Sequence[str], panels: Sequence[Panel]
) -> Path:
    """Panels of numbers on colours, two side by side."""
    plt = pyplot()
    size = (2 * (1.9 + 0.72 * len(columns)), ((len(panels) + 1) // 2) * (1.6 + 0.32 * len(rows)))
    figure, grid = plt.subplots(
        (len(panels) + 1) // 2, 2, figsize=size, layout="constrained", squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        axes.imshow(panel.values, cmap="viridis", vmin=panel.low, vmax=panel.high, aspect="auto")
        axes.set_title(panel.title, fontsize=10)
        axes.set_xticks(
            range(len(columns)),
            columns,
            rotation=30,
            ha="right",
            rotation_mode="anchor",
            fontsize=8,
        )
        axes.set_yticks(range(len(rows)), rows, fontsize=8)
        _numbers(axes, panel)
    figure.suptitle(title)
    return saved(plt, figure, path)


def _numbers(axes: Any, panel: Panel) -> None:
    """Each cell's number, dark on light colours and light on dark ones."""
    middle = panel.low + 0.6 * (panel.high - panel.low)
    for (i, j), value in np.ndenumerate(panel.values):
        missing = np.isnan(value)
        if missing or value > middle:
            colour = "black"
        else:
            colour = "white"
        if missing:
            text = "–"
        else:
            text = f"{value:.{panel.digits}f}"
        axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color=colour)


def _limits(lines: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """From where the weaker methods stand early on to the top, so that what they differ by in the end is seen."""
    early = [float(values_SR.mean(0)[int(_EARLY * values_SR.shape[1])]) for values_SR in lines]
    top = max(float(values_SR.mean(0).max()) for values_SR in lines)
    low = min(early)
    return max(0.0, low - 0.05 * (top - low) - 0.5), min(100.5, top + 0.1 * (top - low) + 0.5)


def styles(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """The same colour for a label wherever it is drawn."""
    distinct = list(dict.fromkeys(labels))
    return {
        label: {"color": f"C{i % 10}", "linestyle": _DASHES[i // 10 % len(_DASHES)]}
        for i, label in enumerate(distinct)
    }


def legend(figure: Any, axes: Sequence[Any], title: str) -> None:
    """One for all panels, at the right."""
    found = {
        label: handle
        for one in axes
        for handle, label in zip(*one.get_legend_handles_labels(), strict=True)
    }
    figure.legend(found.values(), found.keys(), loc="outside right center", fontsize=9)
    figure.suptitle(title, fontsize=11)


def pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def saved(plt: Any, figure: Any, path: Path) -> Path:
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format="png")
    plt.close(figure)
    write_atomically(path, drawn.getvalue())
    return path
