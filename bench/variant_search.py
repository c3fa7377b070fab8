"""The search behind `fedrfq-coded`: which settings are no worse than every control and peer.

    python bench/variant_search.py --device cuda --out results/variant-search.json

It varies length, learned share, repulsion, λ, separation, calibration and bits, on the tasks below.
A quarter of every client's training samples is held back; all candidates, controls and peers train
on the rest and are judged on what was held back, so test samples are never looked at. Every
method's λ is searched, not only ours. First, all settings run for a few rounds and seeds. Then the
best of each method run for all rounds and more seeds. The seeds differ from those of the tables (0
to 4).

Settings of one program are trained in one stack. A candidate is judged by its worst column: the
smallest difference, over tasks and ways to predict, to the best setting of any other method.
Progress and a table go to stderr, and one JSON object with every figure to stdout and to --out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedrfq import experiment
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import program_key
from stacked_runs import train_together

Settings = tuple[str, ...]
# A row has the figures of all seeds, by the records' names.
Row = dict[str, list[float]]
COMMON: Settings = ("validation=0.25",)
TASKS: dict[str, Settings] = {
    "mnist": ("data.name=mnist",),
    "mnist, 5 ± 2": ("data.name=mnist", "partition.ways=5"),
    "mnist, 8 shots": ("data.name=mnist", "partition.shots=8"),
    "femnist, 20 ± 5, 24 shots": (
        "data.name=femnist",
        "partition.ways=20",
        "partition.spread=5",
        "partition.shots=24",
    ),
    # The data that come with the program, for a try without any download.
    "mnist5k": ("data.name=mnist5k",),
}
OURS = "fedrfq-coded"
GRIDS: dict[str, dict[str, Sequence[object]]] = {
    OURS: {
        "bits": (8,),
        "norm": (4.0, 8.0),
        "lam": (1.0, 4.0),
        "learned": (0.3, 0.7),
        "separation": (0.0, 0.1),
        "calibration": (0.0, 1.0),
        "temperature": (0.2,),
    },
    "local": {},
    "self": {"lam": (1.0, 4.0)},
    "codes": {"norm": (4.0, 8.0), "lam": (1.0, 4.0)},
    "fedproto": {"lam": (1.0, 4.0)},
    "protonorm": {"norm": (4.0, 8.0), "lam": (1.0, 4.0), "steps": (100,)},
    "fedtgp": {"lam": (1.0,), "server_epochs": (30,)},
    "fedrfq-lean": {"lam": (1.0,)},
}
# What the finalists of our own are tried with besides.
CHANGES: tuple[Settings, ...] = (
    (),
    ("method.bits=4",),
    ("method.steps=100",),
    ("method.calibration=0.3",),
)
# What settings are ranked by. Records have more, and the JSON has all of it: above all, how well
# clients do on the classes that they do not hold, which is next to nothing for all of these.
COLUMNS = ("accuracy_mean", "prototype_accuracy_mean")


def candidates(method: str) -> list[Settings]:
    """Return all settings of a method's grid."""
    grid = GRIDS[method]
    return [
        (
            f"method.name={method}",
            *(f"method.{key}={value}" for key, value in zip(grid, values, strict=True)),
        )
        for values in itertools.product(*grid.values())
    ]


def name_of(sets: Settings) -> str:
    """Return the method of some settings."""
    return sets[0].partition("=")[2]


def evaluate(
    task: str, settings: Iterable[Settings], seeds: range, rounds: int, device: str
) -> dict[Settings, Row]:
    """Return each setting's figures after the last round, on the samples held back."""
    groups: dict[Hashable, list[tuple[Settings, Experiment]]] = defaultdict(list)
    for sets, seed in itertools.product(settings, seeds):
        # All classes are tested at checkpoints: once, at the end.
        lines = [*COMMON, *TASKS[task], f"rounds={rounds}", f"checkpoint={rounds}", *sets]
        loaded = experiment.load(sets=lines, seed=seed)
        groups[program_key(loaded)].append((sets, loaded))
    rows: dict[Settings, Row] = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task(f"{task}: {len(groups)} programs", total=rounds * len(groups))
        for group in groups.values():
            ended = train_together([e for _, e in group], device, lambda: progress.advance(bar))
            for place, outcome in ended.items():
                row = rows.setdefault(group[place][0], defaultdict(list))
                for key, value in figures(outcome).items():
                    row[key].append(value)
    # Only settings of which no seed diverged.
    return {sets: row for sets, row in rows.items() if len(row["round"]) == len(seeds)}


def figures(outcome: RoundOutcome) -> dict[str, float]:
    """Return all numbers of a record."""
    record = asdict(outcome.record)
    return {key: value for key, value in record.items() if isinstance(value, int | float)}


def merits(tasks: dict[str, dict[Settings, Row]], method: str) -> dict[Settings, float]:
    """Return, for each setting of a method, its worst difference to the best of any other method.

    Settings that lack a task, since they diverged there, are left out.
    """
    shared = set.intersection(*(set(rows) for rows in tasks.values()))
    worst = {}
    for sets in (sets for sets in shared if name_of(sets) == method):
        differences = [
            mean(rows[sets], key) - best_other(rows, key, method)
            for rows in tasks.values()
            for key in COLUMNS
            if key in rows[sets]
        ]
        worst[sets] = min(differences)
    return worst


def best_other(rows: dict[Settings, Row], key: str, method: str) -> float:
    """Return the best mean of a column among the settings of other methods than this one."""
    others = [
        mean(row, key) for sets, row in rows.items() if name_of(sets) != method and key in row
    ]
    return max(others, default=0.0)


def mean(row: Row, key: str) -> float:
    """Return the mean over the seeds."""
    return statistics.mean(row[key])


def finalists(tasks: dict[str, dict[Settings, Row]], count: int) -> list[Settings]:
    """Return the best settings: of ours several, each also changed, and of others one for each.

    Another method's setting is best if it is best for one task and column.
    """
    chosen: dict[Settings, None] = {}
    ours = merits(tasks, OURS)
    best = sorted(ours, key=lambda sets: -ours[sets])[:count]
    for sets, change in itertools.product(best, CHANGES):
        chosen[(*sets, *change)] = None
    for rows, key, method in itertools.product(tasks.values(), COLUMNS, GRIDS):
        own = [sets for sets in rows if name_of(sets) == method and key in rows[sets]]
        if own and method != OURS:
            chosen[max(own, key=lambda sets: mean(rows[sets], key))] = None
    return list(chosen)


def table(tasks: dict[str, dict[Settings, Row]], count: int) -> Table:
    """Return a table of each method's best settings, by their worst column."""
    shown = Table("setting", "worst", *(f"{task}: own head / by prototype" for task in tasks))
    for method in GRIDS:
        worst = merits(tasks, method)
        for sets in sorted(worst, key=lambda sets: -worst[sets])[:count]:
            cells = []
            for rows in tasks.values():
                cells.append(
                    " / ".join(f"{mean(rows[sets], k):.2f}" for k in COLUMNS if k in rows[sets])
                )
            name = " ".join(word.partition(".")[2] for word in sets)
            shown.add_row(name, f"{worst[sets]:+.2f}", *cells)
    return shown


def listed(tasks: dict[str, dict[Settings, Row]]) -> dict[str, Any]:
    """Return a stage as JSON has it."""
    return {
        task: [{"settings": list(sets), **row} for sets, row in rows.items()]
        for task, rows in tasks.items()
    }


def read(stage: dict[str, Any]) -> dict[str, dict[Settings, Row]]:
    """Return a stage from JSON."""
    return {task: {tuple(row.pop("settings")): row for row in rows} for task, rows in stage.items()}


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=list(TASKS),
        default=[task for task in TASKS if task != "mnist5k"],
        help="what is trained on (default: all but mnist5k)",
    )
    parser.add_argument(
        "--rounds", type=int, nargs=2, default=(30, 60), help="of both stages (default: 30 60)"
    )
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(2, 5), help="of both stages (default: 2 5)"
    )
    parser.add_argument("--finalists", type=int, default=6, help="of our own (default: 6)")
    parser.add_argument("--only", type=int, help="look at every ONLY-th candidate of our own")
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON file for all figures; tasks of the first stage that it has are not repeated",
    )
    return parser.parse_args()


def main() -> None:
    """Search in two stages and print all figures as JSON."""
    args = options()
    console = Console(width=220, stderr=True)
    stages: dict[str, Any] = {"first": {}, "last": {}, "seconds": 0.0}
    if args.out and args.out.is_file():
        stages |= json.loads(args.out.read_text(encoding="utf-8"))
    first = read(stages["first"])
    last: dict[str, dict[Settings, Row]] = {}
    began = time.perf_counter() - stages["seconds"]

    def save() -> str:
        seconds = time.perf_counter() - began
        text = to_json({"first": listed(first), "last": listed(last), "seconds": seconds}) + "\n"
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(args.out, text.encode())
        return text

    look = candidates(OURS)[:: args.only]
    for method in GRIDS:
        if method != OURS:
            look += candidates(method)
    for task in args.tasks:
        if task not in first:
            seeds = range(100, 100 + args.seeds[0])
            first[task] = evaluate(task, look, seeds, args.rounds[0], args.device)
            save()
    first = {task: first[task] for task in args.tasks}
    console.print(table(first, 5))
    chosen = finalists(first, args.finalists)
    for task in args.tasks:
        seeds = range(100, 100 + args.seeds[1])
        last[task] = evaluate(task, chosen, seeds, args.rounds[1], args.device)
        save()
    console.print(table(last, 10))
    sys.stdout.write(save())


if __name__ == "__main__":
    main()
