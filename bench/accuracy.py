"""The learning core's accuracy on MNIST, setting by setting: what each named option of the method does.

    python bench/accuracy.py --device cuda --out results/mnist-options.json        (about four minutes on an H200)
    python bench/accuracy.py --seeds 1 --rounds 20 --only "fedrfq"                 (a look at one, on a laptop)

20 clients, 3 ± 2 classes, 100 shots, 100 rounds unless the setting says otherwise. Settings of one shape are trained
together. `fedrfq data get mnist` first.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedrfq import data, experiment
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning.round_loop import program_key
from fedrfq.runs.session import Session, pick_device

SETTINGS: dict[str, list[str]] = {
    "local": ["method.name=local"],
    "fedproto": ["method.name=fedproto"],
    "fedrfq": [],
    "fedrfq, stride 2": ["pool.stride=2"],
    "fedrfq, λ = 0.3": ["method.lam=0.3"],
    "fedrfq, average pooling": ["pool.name=avg"],
    "fedrfq, max pooling": ["pool.name=max"],
    "fedrfq, no pooling": ["pool.name=none"],
    "fedrfq, no dropout": ["model.drop=0.0"],
    "fedrfq, aggregate = paper": ["method.aggregate=paper"],
    "fedrfq, reduction = classes": ["method.reduction=classes"],
    "local, 20 shots": ["method.name=local", "partition.shots=20"],
    "fedproto, 20 shots": ["method.name=fedproto", "partition.shots=20"],
    "fedrfq, 20 shots": ["partition.shots=20"],
    "fedrfq, 20 shots, no pooling": ["partition.shots=20", "pool.name=none"],
    "fedrfq, 20 shots, aggregate = paper": ["partition.shots=20", "method.aggregate=paper"],
    "fedproto, 4 ± 2 classes": ["method.name=fedproto", "partition.ways=4"],
    "fedrfq, 4 ± 2 classes": ["partition.ways=4"],
    "fedproto, 5 ± 2 classes": ["method.name=fedproto", "partition.ways=5"],
    "fedrfq, 5 ± 2 classes": ["partition.ways=5"],
}


def stacks(
    settings: dict[str, list[str]], seeds: int, rounds: int
) -> list[list[tuple[str, Experiment]]]:
    """The runs of all settings and seeds, those of one program together."""
    grouped: dict[Hashable, list[tuple[str, Experiment]]] = defaultdict(list)
    for name, sets in settings.items():
        for seed in range(seeds):
            made = experiment.load(sets=["data.name=mnist", f"rounds={rounds}", *sets], seed=seed)
            grouped[program_key(made)].append((name, made))
    return list(grouped.values())


def run(groups: list[list[tuple[str, Experiment]]], device: str) -> dict[str, list[dict[str, Any]]]:
    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    dataset = data.load("mnist")
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=Console(stderr=True)) as progress,
    ):
        for group in groups:
            task = progress.add_task(
                f"{group[0][0]} and alike, {len(group)} runs", total=group[0][1].rounds
            )
            session = Session.begin(
                [made for _, made in group], pick_device(device), Path(folder), dataset
            )
            for _ in session.advance():
                progress.advance(task)
            for (name, _), result in zip(group, session.finish(), strict=True):
                del result["run_dir"]
                results[name].append(result)
    return results


def table(settings: dict[str, list[str]], results: dict[str, list[dict[str, Any]]]) -> Table:
    shown = Table(
        "setting",
        "own head",
        "nearest prototype",
        "failure %",
        "silhouette",
        "values up",
        "collapsed",
    )
    for name in settings:
        runs = results[name]
        failure = [100 * r["prototype_failure"] for r in runs if r["prototype_failure"] is not None]
        shown.add_row(
            name,
            spread([r["accuracy_mean"] for r in runs]),
            spread(
                [
                    r["prototype_accuracy_mean"]
                    for r in runs
                    if r["prototype_accuracy_mean"] is not None
                ]
            ),
            f"{statistics.mean(failure):.2f}" if failure else "–",
            f"{statistics.mean(r['silhouette'] for r in runs):.3f}",
            f"{statistics.mean(r['parameters_per_round'] for r in runs):,.0f}",
            f"{statistics.mean(r['collapsed_clients'] for r in runs):.1f}",
        )
    return shown


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over the seeds."""
    if not values:
        return "–"
    return f"{statistics.mean(values):.2f}" + (
        f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument(
        "--only", action="append", choices=list(SETTINGS), help="settings, all if not given"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for every run's figures")
    args = parser.parse_args()
    chosen = {name: SETTINGS[name] for name in args.only or SETTINGS}
    results = run(stacks(chosen, args.seeds, args.rounds), args.device)
    Console(width=130).print(table(chosen, results))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out, (to_json(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
