"""Draw accuracy on all classes against bytes, from what was recorded.

Records are those of `bench/open_world.py`, of the study `table3-stem`, and `variant/cifar10.json`.
A method is shown by its final prediction, or by the nearest prototype where that knows more.

python bench/frontier.py --out docs/images/frontier.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.files.atomic import write_atomically
from fedrfq.files.pictures import png, subplots

PANELS = {
    "MNIST, 3 ± 2 classes, random filters": ("open/mnist",),
    "FEMNIST, 20 ± 5 classes, 20 shots, random filters": ("open/femnist",),
    "CIFAR-10, 3 ± 1 classes, ResNet18, mirrored": (
        "open/cifar10-mirrored",
        "open/cifar10-methods",
        "variant/cifar10",
    ),
}
# By what the names of a map's rows begin with, how its series is called and drawn.
SERIES = {
    "local + ": ("one exchange on a public map, beside Local", "C3", "o"),
    "local + 128×128 mirrored, ": ("one exchange, images at 128×128", "C3", "o"),
    "local + 224×224 mirrored, ": ("one exchange, images at 224×224", "C1", "s"),
}
# By the name of a row, its label: the rows that are drawn.
METHODS = {
    "local": "Local",
    "codes": "codes",
    "fedrfq-coded": "fedrfq-coded",
    "fedproto": "FedProto",
    "fedrfq": "FedRFQ",
    "fedper": "FedPer",
    "fedavg": "FedAvg",
}
MAPS = {
    "means, 128 values": "128 values",
    "means, 4 bits": "4 bits",
    "means, 8 bits": "8 bits",
    "moments of 128 values, 16 bits": "moments of 128",
    "moments, 16 bits": "all moments",
}
_NOTHING = 100  # where a method without bytes stands on a logarithmic axis


def points(rows: dict[str, Any], names: dict[str, str], prefix: str = "") -> list[Any]:
    """Return label, bytes, mean accuracy and its deviation over seeds, of the rows there are."""
    found = []
    for name, label in names.items():
        row = rows.get(prefix + name)
        if row is None:
            continue
        accuracy = np.array(row["accuracy_all"], float)
        by_prototype = np.array(row.get("prototype_accuracy_all", [np.nan]), float)
        # A method is shown by the way to predict that knows most.
        if by_prototype.mean() > accuracy.mean():
            accuracy = by_prototype
        size = max(float(np.mean(row["bytes"])), _NOTHING)
        found.append((label, size, accuracy.mean(), accuracy.std()))
    return sorted(found, key=lambda point: point[1])


def plot(
    axes: Any, found: list[Any], label: str, colour: str, mark: str, *, named: bool = True
) -> None:
    """Draw points into a panel, with their names if they are not those of points beside them."""
    _, sizes, means, spreads = zip(*found, strict=True)
    axes.errorbar(sizes, means, spreads, fmt=mark, color=colour, label=label, capsize=3)
    for i, (name, size, mean, _) in enumerate(found if named else ()):
        # Above and below in turn, as neighbours are often near each other.
        place, side = ((4, 8), "right") if i % 2 == 0 else ((-4, -16), "left")
        axes.annotate(name, (size, mean), xytext=place, textcoords="offset points", ha=side)


def draw(folder: Path) -> bytes:
    """Return the picture, as PNG."""
    figure, [panels] = subplots((16, 5), 1, len(PANELS))
    for axes, (title, files) in zip(panels, PANELS.items(), strict=True):
        rows: dict[str, Any] = {}
        for name in reversed(files):
            rows |= json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        plot(axes, points(rows, METHODS), "trained models and prototypes", "C0", "o")
        series = [prefix for prefix in SERIES if prefix + "means, 8 bits" in rows]
        for i, prefix in enumerate(series):
            plot(axes, points(rows, MAPS, prefix), *SERIES[prefix], named=i == 0)
        axes.set_xscale("log")
        axes.set(
            title=title, xlabel=f"bytes of one client, both ways, whole run ({_NOTHING}: none)"
        )
        axes.set_ylim(0, 105)
        axes.margins(x=0.12)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on all classes, % (± deviation over seeds)")
    panels[0].legend(loc="lower right")
    panels[-1].legend(loc="lower right")
    return png(figure, dpi=110)


def main() -> None:
    """Draw all panels into one file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, default=Path("docs/images/frontier.png"))
    args = parser.parse_args()
    write_atomically(args.out, draw(args.results))


if __name__ == "__main__":
    main()
