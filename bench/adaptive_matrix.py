"""Show the recorded parts of the study robustness-matrix: tables in Markdown, and a picture.

    python bench/adaptive_matrix.py                                   print the tables
    python bench/adaptive_matrix.py --picture docs/images/adaptive-matrix.png

The tables are those of docs/concepts/adaptive-detector.md. Losses are points that honest clients
lose against the run without attack and detector, over the same clients and seeds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.studies.pictures import Panel, heat_maps, slug
from testbed import RESULTS

RECORDS = RESULTS / "adaptive"
WAYS = {"own": "own head", "prototype": "nearest prototype"}


def part(setting: str, attackers: int) -> str:
    """Return the folder of the record of a setting, with FedRFQ on mnist5k."""
    return f"{slug(setting)}-{attackers}-of-20"


# By the title of a row, the folder of its record.
SETTINGS = {
    setting: part(setting, 4)
    for setting in (
        "3 ± 2",
        "5 ± 2",
        "four models",
        "unique classes",
        "Dirichlet 0.1",
        "Dirichlet 0.5",
        "Dirichlet 1",
    )
}
NUMBERS = {
    f"{setting}, {attackers} of 20": part(setting, attackers)
    for setting in ("3 ± 2", "Dirichlet 0.1")
    for attackers in (1, 2, 4, 6, 9)
}
OTHERS = {
    "MNIST, 100 samples a class, 3 ± 2": "mnist-100-shots",
    "FEMNIST, 20 ± 5 of 62 classes": "femnist-20-pm-5",
    "CIFAR-10, 3 ± 2": "cifar10-3-pm-2",
    "FedProto, 3 ± 2": "fedproto-3-pm-2-4-of-20",
    "FedProto, Dirichlet 0.1": "fedproto-Dirichlet-0.1-4-of-20",
    "FedRFQ-lean, 3 ± 2": "fedrfq-lean-3-pm-2-4-of-20",
    "FedRFQ-lean, Dirichlet 0.1": "fedrfq-lean-Dirichlet-0.1-4-of-20",
}
# An attack that costs less than this many points undefended leaves nothing to win back.
COSTLY = 1.0
# The loss that has the brightest colour.
MOST = 20.0

Cells = Mapping[tuple[str, str], dict[str, Any]]


def cells(folder: str) -> Cells:
    """Return a recorded part's cells by attack and detector."""
    text = (RECORDS / folder / "table.json").read_text(encoding="utf-8")
    return {(cell["attack"], cell["detector"]): cell for cell in json.loads(text)["cells"]}


def attacks(recorded: Cells) -> list[str]:
    """Return the attacks of a part, without "none"."""
    return [name for name in dict.fromkeys(name for name, _ in recorded) if name != "none"]


def lost(recorded: Cells, attack: str, detector: str, way: str) -> float:
    """Return the mean loss."""
    mean: float = recorded[attack, detector][f"{way}_loss"]["mean"]
    return mean


def points(loss: float) -> str:
    """Return a loss with one digit; rounded first, so that there is no −0.0."""
    return f"{round(loss, 1) + 0.0:.1f}".replace("-", "−")


def peace(recorded: Cells, detector: str, way: str) -> str:
    """Return what the detector costs where nobody attacks, with its interval."""
    loss = recorded["none", detector][f"{way}_loss"]
    return f"{points(loss['mean'])} ± {loss['half']:.1f}"


def worst(recorded: Cells, detector: str, way: str) -> str:
    """Return the attack that costs most, and what it costs undefended and defended."""
    name = max(attacks(recorded), key=lambda name: lost(recorded, name, detector, way))
    before, after = (lost(recorded, name, one, way) for one in ("none", detector))
    return f"`{name}` {points(before)} → {points(after)}"


def won_back(recorded: Cells, detector: str) -> str:
    """Return the smallest share of a costly attack's loss that the detector saves."""
    shares = {}
    for name in attacks(recorded):
        for way in WAYS:
            undefended = lost(recorded, name, "none", way)
            if undefended >= COSTLY:
                shares[name, way] = 1 - lost(recorded, name, detector, way) / undefended
    name, way = min(shares, key=lambda place: shares[place])
    text = f"{100 * shares[name, way]:.0f} %".replace("-", "−")
    return f"{text} (`{name}`, {WAYS[way]})"


def mostly_won_back(recorded: Cells, detector: str) -> str:
    """Return by both ways how many costly attacks keep a fifth of their harm or less."""
    found = []
    for way in WAYS:
        before = {name: lost(recorded, name, "none", way) for name in attacks(recorded)}
        costly = [name for name, loss in before.items() if loss >= COSTLY]
        won = [name for name in costly if lost(recorded, name, detector, way) <= before[name] / 5]
        found.append(f"{len(won)} of {len(costly)}")
    return " / ".join(found)


def weight(recorded: Cells, detector: str) -> str:
    """Return the most honest weight that is lost under any attack, and the longest time out."""
    found = [cell for (_, name), cell in recorded.items() if name == detector]
    most = max(cell["honest_weight_lost"] for cell in found)
    rounds = max(cell["longest_shut_out"] for cell in found)
    return f"{most:.1f} %, {rounds:.0f}"


COLUMNS: dict[str, Callable[[Cells, str], str]] = {
    "lost in peace: own head": lambda recorded, detector: peace(recorded, detector, "own"),
    "by prototype": lambda recorded, detector: peace(recorded, detector, "prototype"),
    "worst attack: own head": lambda recorded, detector: worst(recorded, detector, "own"),
    "by prototype ": lambda recorded, detector: worst(recorded, detector, "prototype"),
    "least won back": won_back,
    "four fifths won back": mostly_won_back,
    "honest weight lost, rounds out": weight,
}


def table(first: str, folders: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a table, with a row for each part that has been recorded."""
    header = [first, *(name.strip() for name in COLUMNS)]
    yield f"| {' | '.join(header)} |"
    yield "|" + "---|" * len(header)
    for title, folder in recorded_parts(folders).items():
        values = [column(cells(folder), "adaptive") for column in COLUMNS.values()]
        yield f"| {title} | {' | '.join(values)} |"


def recorded_parts(folders: Mapping[str, str]) -> dict[str, str]:
    """Return the parts that have been recorded."""
    return {title: name for title, name in folders.items() if (RECORDS / name).is_dir()}


def tables() -> Iterator[list[str]]:
    """Yield the lines of each table."""
    for first, folders in (("4 of 20", SETTINGS), ("setting", NUMBERS), ("4 of 20, also", OTHERS)):
        yield list(table(first, folders))


def picture(path: Path) -> Path:
    """Draw the losses with four of twenty malicious, undefended and defended."""
    parts = {title: cells(name) for title, name in recorded_parts(SETTINGS).items()}
    names = ["none", *attacks(next(iter(parts.values())))]
    panels = [
        Panel(title, grid(list(parts.values()), names, detector), low=0.0, high=MOST, digits=1)
        for detector, title in (("none", "no detector"), ("adaptive", "adaptive"))
    ]
    title = "Points lost by the nearest prototype, four malicious clients of twenty"
    return heat_maps(path, title, names, list(parts), panels)


def grid(parts: Sequence[Cells], names: Sequence[str], detector: str) -> Any:
    """Return losses by the nearest prototype, attacks × parts."""
    return np.array(
        [[lost(recorded, name, detector, "prototype") for recorded in parts] for name in names]
    )


def main() -> None:
    """Print the tables, or write the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path)
    out = parser.parse_args().picture
    if out is not None:
        print(picture(out))
        return
    for lines in tables():
        print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
