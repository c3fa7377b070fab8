"""Accuracy on all classes against bytes: own models, prototypes, averaged models, public maps.

Clients train by each method once. Beside the finished models, public maps are then tried at several
sizes, bits and kinds of statistics, each with one exchange: that changes no model. Every client is
tested on all classes, in every way to predict. Means over clients and seeds, bytes of one client in
the whole run.

    python bench/open_world.py --data mnist5k --out results/open/mnist5k.json
    python bench/open_world.py --data cifar10 --device cuda --map resnet18 --sizes 128 224 \
        --rounds 40 --set model.weights=imagenet-stem --set model.stem=1 --out …
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from fedrfq import data, experiment
from fedrfq.committee import PreviousRound
from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning.all_classes import CommonFigures
from fedrfq.learning.draws import targets
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.models.public_maps import PublicMap, RandomMap, ResNet18Map
from fedrfq.runs.environment import here
from fedrfq.runs.session import pick_device
from public_map import image_options

METHODS = ("local", "codes", "fedproto", "fedrfq-coded", "fedper", "fedavg")
_OUT = Console(stderr=True)


def trained(loop: RoundLoop) -> tuple[LoopState, dict[str, Any]]:
    """Train to the end; return the state, and what the last records say, with all rounds' bytes."""
    state = loop.start()
    total = np.zeros(len(loop.experiments))
    while state.round < loop.experiments[0].rounds:
        state, outcomes = loop.advance(state)
        total += [outcome.record.bytes_up + outcome.record.bytes_down for outcome in outcomes]
    records = [outcome.record for outcome in outcomes]
    clients = loop.experiments[0].clients
    row: dict[str, Any] = {"bytes": (total / clients).tolist()}
    for key in vars(records[0]):
        values = [getattr(record, key) for record in records]
        if "accuracy" in key or key.endswith("ece"):
            row[key] = values
    return state, row


def maps(
    kind: type[PublicMap], sizes: list[int], mirrored: bool
) -> Iterator[tuple[str, PublicMap]]:
    """Yield the public maps that are tried, with a name each."""
    variants: dict[str, dict[str, Any]] = {
        "means, 4 bits": {"bits": 4},
        "means, 6 bits": {"bits": 6},
        "means, 8 bits": {"bits": 8},
        "means, 8 bits, nearest": {"bits": 8, "classifier": "nearest"},
        "means, 128 values": {"projection": 128},
        "moments of 128 values, 16 bits": {"projection": 128, "bits": 16, "moments": "full"},
        "moments, 16 bits": {"bits": 16, "moments": "full"},
    }
    for prefix, images in image_options(sizes, mirrored).items():
        for name, options in variants.items():
            yield prefix + name, kind(**options, **images)


def beside(
    experiments: list[Experiment], dataset: Dataset, state: LoopState, device: str
) -> dict[str, Any]:
    """Return what one exchange on a public map gives beside these models, with its bytes."""
    loop = RoundLoop(experiments, dataset, pick_device(device))
    clients = range(experiments[0].clients)
    decisions = []
    sizes = []
    for r, loaded in enumerate(experiments):
        task = loop.settings[r].task
        assert task.public is not None
        uploads = loop.public.exchanges[r].uploads(clients)
        start = PreviousRound.start(task)
        decision = loaded.committee.decide(loop.settings[r], 1, start, uploads).decision
        assert decision.public is not None
        down = decision.public.length(task.public.precision)
        sizes.append((uploads.length() / len(clients), down))
        decisions.append(decision)
    known = [
        targets(loaded, loaded.rounds, globals_)
        for loaded, globals_ in zip(experiments, state.globals_, strict=True)
    ]
    longest = loop.common.tests.index_KN.shape[1]
    chances = loop.public.log_probabilities([one.public for one in decisions], longest)
    found = loop.common.measure(loop.engines, state.params, known, chances)
    return {
        "bytes_up": [up for up, _ in sizes],
        "bytes": [up + down for up, down in sizes],
        **figures(found),
    }


def figures(found: list[CommonFigures]) -> dict[str, list[float]]:
    """Return the figures of each run, by the records' names."""
    rows: dict[str, list[float]] = {}
    for common in found:
        everybody = np.ones(len(next(iter(common.ways.values())).ece_K), np.bool_)
        for key, value in common.record(everybody).items():
            if isinstance(value, float):
                rows.setdefault(key, []).append(value)
    return rows


def show(name: str, row: dict[str, Any]) -> None:
    """Print a row's means."""
    keys = ("accuracy_mean", "accuracy_all", "accuracy_held", "accuracy_unheld", "ece", "bytes")
    means = {}
    for key in keys:
        values = [value for value in row.get(key, ()) if value is not None]
        if values:
            means[key] = round(float(np.mean(values)), 2)
    _OUT.print(name, means)


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--map", default="random", choices=("random", "resnet18"))
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--mirrored", action="store_true", help="resnet18's vectors mirrored")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--beside", nargs="+", default=["local", "fedrfq-coded"])
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """Train, try the maps, and write one JSON object."""
    args = options()
    dataset = data.load(args.data)
    kind: type[PublicMap] = {"random": RandomMap, "resnet18": ResNet18Map}[args.map]
    began = time.perf_counter()
    rows: dict[str, Any] = {}
    for method in args.methods:
        sets = [f"data.name={args.data}", f"rounds={args.rounds}", f"checkpoint={args.rounds}"]
        sets += [*args.set, f"method.name={method}"]
        loaded = [experiment.load(sets=sets, seed=seed) for seed in args.seeds]
        state, rows[method] = trained(RoundLoop(loaded, dataset, pick_device(args.device)))
        show(method, rows[method])
        if method not in args.beside:
            continue
        for name, map_ in maps(kind, args.sizes, args.mirrored):
            with_map = [replace(one, public=map_) for one in loaded]
            row = beside(with_map, dataset, state, args.device)
            row["bytes"] = (np.array(row["bytes"]) + rows[method]["bytes"]).tolist()
            rows[f"{method} + {name}"] = row
            show(f"{method} + {name}", row)
    result = {
        "command": vars(args) | {"out": str(args.out)},
        **here(),
        "seconds": round(time.perf_counter() - began, 1),
        "rows": rows,
    }
    if args.out:
        write_atomically(args.out, (to_json(result, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
