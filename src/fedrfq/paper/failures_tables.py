"""Tables and pictures of prototype clusters compared with classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrfq.files.pictures import save_png, subplots
from fedrfq.paper.clusters import Clustered
from fedrfq.studies.axes import Labels
from fedrfq.studies.differences import paired
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.pictures import slug
from fedrfq.studies.sheets import NOTHING, Sheet, interval, plus_minus

_FIGURES = {  # figures of a run: heading, and digits
    "purity": ("purity, %", 1),
    "adjusted_rand": ("adjusted Rand index", 3),
    "prototype_failure": ("prototype failure, %", 2),
    "prototype_accuracy": ("nearest prototype, %", 2),
}
_HEADINGS = [heading for heading, _ in _FIGURES.values()]
_POINT = {"s": 4, "cmap": "tab20", "linewidths": 0}
_COLOURS = 20  # in tab20


def sheets(title: str, measured: MeasuredRuns, left_out: str) -> list[Sheet]:
    """Return the table of all datasets and methods, and that of the methods' differences."""
    present = [labels for labels in measured.axes.combinations() if measured.count(labels)]
    rows = tuple((*labels, *_row(measured, labels)) for labels in present)
    header = ("dataset", "method", "runs", "samples", "classes", *_HEADINGS, "most confused")
    note = (
        "k-means with as many clusters as classes, on the test prototypes of all clients; mean ± "
        "standard deviation over seeds. Most confused: the pairs of classes with the largest share "
        f"of samples in a cluster of the other class, for the first seed. {left_out}"
    )
    return [Sheet(title, header, rows, note.strip(), labels=2), *_differences(measured, present)]


def _row(measured: MeasuredRuns, labels: Labels) -> tuple[str, ...]:
    first = next(own for (at, _), own in measured.figures.items() if at == labels)
    figures = [
        plus_minus(measured.spread(name, labels), digits) for name, (_, digits) in _FIGURES.items()
    ]
    counts = (str(measured.count(labels)), str(first["samples"]), str(first["classes"]))
    return (*counts, *figures, first["confused"] or NOTHING)


def _differences(measured: MeasuredRuns, present: Sequence[Labels]) -> list[Sheet]:
    """Return a table of each method minus the dataset's first one, if there are several."""
    first_methods: dict[str, Labels] = {}
    rows = []
    for labels in present:
        first = first_methods.setdefault(labels[0], labels)
        if first != labels:
            texts = [
                interval(paired(measured, name, [labels], [first]), digits)
                for name, (_, digits) in _FIGURES.items()
            ]
            rows.append((labels[0], f"{labels[1]} − {first[1]}", *texts))
    if not rows:
        return []
    header = ("dataset", "methods", *_HEADINGS)
    return [Sheet("Differences, with 95 % intervals", header, tuple(rows), labels=2)]


def drawn(folder: Path, first_seeds: Mapping[Labels, Clustered]) -> list[Path]:
    """Draw a picture for each dataset into the folder, and return the paths."""
    by_dataset: dict[str, dict[str, Clustered]] = {}
    for (dataset, method), clusters in first_seeds.items():
        by_dataset.setdefault(dataset, {})[method] = clusters
    return [
        _picture(folder / f"failures-{slug(dataset)}.png", dataset, methods)
        for dataset, methods in by_dataset.items()
    ]


def _picture(path: Path, dataset: str, methods: Mapping[str, Clustered]) -> Path:
    """Draw a row for each method: clusters × classes, and prototypes by class and by cluster."""
    figure, grid = subplots((13.5, 4.2 * len(methods)), len(methods), 3)
    for (method, clusters), (left, middle, right) in zip(methods.items(), grid, strict=True):
        _draw_shares(figure, left, method, clusters)
        flat_N2 = clusters.flat()
        # The same scale of colours for both, so that a cluster has the colour of its class.
        scale = {"vmin": 0, "vmax": max(_COLOURS - 1, int(clusters.classes.max()))}
        guess_N = clusters.majority()[clusters.cluster_N]
        for axes, colours_N, title in (
            (middle, clusters.y_N, "by class"),
            (right, guess_N, "by cluster (in the colour of its class)"),
        ):
            axes.scatter(flat_N2[:, 0], flat_N2[:, 1], c=colours_N, **scale, **_POINT)
            axes.set(
                title=f"{method}: {title}", xlabel="first principal component", ylabel="second"
            )
    figure.suptitle(f"{dataset}: clusters of test prototypes and their classes")
    return save_png(figure, path)


def _draw_shares(figure: Any, axes: Any, method: str, clusters: Clustered) -> None:
    """Draw how each class's samples are distributed over the clusters."""
    counts_CJ = clusters.counts()
    shares_CJ = 100 * counts_CJ / counts_CJ.sum(0)
    image = axes.imshow(shares_CJ, cmap="viridis", vmin=0, vmax=100, aspect="auto")
    axes.set(
        title=f"{method}: share of a class in a cluster, %",
        xlabel="class",
        ylabel="cluster, by majority",
    )
    figure.colorbar(image, ax=axes)
