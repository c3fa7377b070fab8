"""The learning core's accuracy on MNIST, setting by setting: what each option of the method does.

    python bench/accuracy.py --device cuda --out results/mnist-options.json
    python bench/accuracy.py --seeds 1 --rounds 20 --only "fedrfq"

The first takes about four minutes on an H200; the second is a quick look at one setting on a
laptop. 20 clients, 3 ± 2 classes, 100 shots and 100 rounds, unless the setting says otherwise.
Settings that share a program are trained together. Run `fedrfq data get mnist` first.
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
    """Return the runs of all settings and seeds, those of one program together."""
    grouped: dict[Hashable, list[tuple[str, Experiment]]] = defaultdict(list)
    for name, sets in settings.items():
        for seed in range(seeds):
            all_sets = ["data.name=mnist", f"rounds={rounds}", *sets]
            loaded = experiment.load(sets=all_sets, seed=seed)
            grouped[program_key(loaded)].append((name, loaded))
    return list(grouped.values())


def run(groups: list[list[tuple[str, Experiment]]], device: str) -> dict[str, list[dict[str, Any]]]:
    """Train all groups and return the results of every run by setting."""
    results: dict[str, list[dict[str, Any]]] = defaultdict(list)
    dataset = data.load("mnist")
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=Console(stderr=True)) as progress,
    ):
        for group in groups:
            name, first = group[0]
            title = f"{name} and similar, {len(group)} runs"
            task = progress.add_task(title, total=first.rounds)
            experiments = [loaded for _, loaded in group]
            session = Session.begin(experiments, pick_device(device), Path(folder), dataset)
            for _ in session.advance():
                progress.advance(task)
            for (name, _), result in zip(group, session.finish(), strict=True):
                del result["run_dir"]
                results[name].append(result)
    return results


def table(settings: dict[str, list[str]], results: dict[str, list[dict[str, Any]]]) -> Table:
    """Return a table with a row for each setting."""
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
        failures = known(runs, "prototype_failure")
        failure = f"{100 * statistics.mean(failures):.2f}" if failures else "–"
        shown.add_row(
            name,
            spread(known(runs, "accuracy_mean")),
            spread(known(runs, "prototype_accuracy_mean")),
            failure,
            f"{statistics.mean(known(runs, 'silhouette')):.3f}",
            f"{statistics.mean(known(runs, 'parameters_per_round')):,.0f}",
            f"{statistics.mean(known(runs, 'collapsed_clients')):.1f}",
        )
    return shown


def known(runs: list[dict[str, Any]], key: str) -> list[float]:
    """Return the runs' figures under `key`, without those that a method does not have."""
    return [run[key] for run in runs if run[key] is not None]


def spread(values: list[float]) -> str:
    """Return mean ± standard deviation over the seeds, as text."""
    if not values:
        return "–"
    text = f"{statistics.mean(values):.2f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.2f}"
    return text


def main() -> None:
    """Train the chosen settings, print the table and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per setting (default: 5)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds per run (default: 100)")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(SETTINGS),
        help="a setting to run; repeatable (default: all)",
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the figures of every run")
    args = parser.parse_args()
    chosen = {name: SETTINGS[name] for name in args.only or SETTINGS}
    results = run(stacks(chosen, args.seeds, args.rounds), args.device)
    Console(width=130).print(table(chosen, results))
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.out, (to_json(results, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
