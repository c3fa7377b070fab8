"""Clusters beside classes, for people: tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrfq.paper.clusters import Clustered
from fedrfq.studies.axes import Labels
from fedrfq.studies.intervals import difference, spread
from fedrfq.studies.plots import pyplot, saved, slug
from fedrfq.studies.sheets import NOTHING, Sheet, interval, plus_minus

if TYPE_CHECKING:
    from fedrfq.paper.failures import Failure

_FIGURES = {
    "purity": ("purity, %", 1),
    "adjusted_rand": ("adjusted Rand index", 3),
    "prototype_failure": ("prototype failure, %", 2),
    "prototype_accuracy": ("nearest prototype, %", 2),
}
_POINT = {"s": 4, "cmap": "tab20", "linewidths": 0}


def sheets(title: str, failures: Sequence[Failure], left_out: str) -> list[Sheet]:
    by: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        by.setdefault((failure.dataset, failure.method), []).append(failure)
    rows = tuple((*labels, *_row(runs)) for labels, runs in by.items())
    header = (
        "dataset",
        "method",
        "runs",
        "samples",
        "classes",
        *(title for title, _ in _FIGURES.values()),
        "most confused",
    )
    note = (
        "k-means with as many clusters as classes, on the test prototypes of all clients, mean ± standard deviation over "
        "seeds. Most confused are, with the first seed, the pairs of classes of which most samples lie in a cluster of the "
        f"other. {left_out}".strip()
    )
    return [Sheet(title, header, rows, note, 2), *_differences(by)]


def _row(runs: Sequence[Failure]) -> tuple[str, ...]:
    spreads = [
        plus_minus(spread([getattr(run, name) for run in runs]), digits)
        for name, (_, digits) in _FIGURES.items()
    ]
    first = runs[0]
    return (
        str(len(runs)),
        str(first.samples),
        str(first.classes),
        *spreads,
        first.confused or NOTHING,
    )


def _differences(by: Mapping[tuple[str, str], Sequence[Failure]]) -> list[Sheet]:
    """Each method against the first one, over the seeds that both have."""
    first: dict[str, str] = {}
    rows = []
    for (dataset, method), runs in by.items():
        other = first.setdefault(dataset, method)
        if other != method:
            rows.append((dataset, f"{method} − {other}", *_found(runs, by[dataset, other])))
    header = ("dataset", "methods", *(title for title, _ in _FIGURES.values()))
    if rows:
        return [Sheet("Differences, with 95 % intervals", header, tuple(rows), labels=2)]
    return []


def _found(runs: Sequence[Failure], others: Sequence[Failure]) -> list[str]:
    beside = {other.seed: other for other in others}
    pairs = [(run, beside[run.seed]) for run in runs if run.seed in beside]
    return [
        interval(
            difference([getattr(a, name) for a, _ in pairs], [getattr(b, name) for _, b in pairs]),
            digits,
        )
        for name, (_, digits) in _FIGURES.items()
    ]


def drawn(folder: Path, first: Mapping[Labels, Clustered]) -> list[Path]:
    """A picture for each dataset."""
    datasets = dict.fromkeys(labels[0] for labels in first)
    return [
        _picture(
            folder / f"failures-{slug(name)}.png",
            name,
            {m: found for (d, m), found in first.items() if d == name},
        )
        for name in datasets
    ]


def _picture(path: Path, dataset: str, methods: Mapping[str, Clustered]) -> Path:
    """A row for each method: clusters × classes, and the prototypes by class and by cluster."""
    plt = pyplot()
    figure, grid = plt.subplots(
        len(methods), 3, figsize=(13.5, 4.2 * len(methods)), layout="constrained", squeeze=False
    )
    for (method, found), (left, middle, right) in zip(methods.items(), grid, strict=True):
        _shares(figure, left, method, found)
        flat = found.flat()
        classes = found.y_N
        clusters = found.majority()[found.cluster_N]
        for axes, colours, title in (
            (middle, classes, "by class"),
            (right, clusters, "by cluster (its class's colour)"),
        ):
            axes.scatter(
                flat[:, 0],
                flat[:, 1],
                c=colours,
                vmin=0,
                vmax=max(19, int(found.classes.max())),
                **_POINT,
            )
            axes.set(
                title=f"{method}: {title}", xlabel="first principal component", ylabel="second"
            )
    figure.suptitle(f"{dataset}: clusters of test prototypes beside their classes")
    return saved(plt, figure, path)


def _shares(figure: Any, axes: Any, method: str, found: Clustered) -> None:
    """Each class's samples over the clusters."""
    counts = found.counts()
    image = axes.imshow(
        100 * counts / counts.sum(0), cmap="viridis", vmin=0, vmax=100, aspect="auto"
    )
    axes.set(
        title=f"{method}: share of a class in a cluster, %",
        xlabel="class",
        ylabel="cluster, by majority",
    )
    figure.colorbar(image, ax=axes)
