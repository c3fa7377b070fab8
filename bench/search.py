"""A search over settings in two stages, on samples held back: test samples are never looked at.

First, all settings run for a few rounds and seeds. Then the best of them run for all rounds and
more seeds. Settings of one program are trained in one stack. The seeds differ from those of the
tables (0 to 4). Progress and tables go to stderr, and one JSON object with every figure to stdout
and to --out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass
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
# The figures of all seeds, by the records' names.
Row = dict[str, list[float]]
Rows = dict[Settings, Row]
Stage = dict[str, Rows]  # by task
# What settings are ranked by. Records have more, and the JSON has all of it: above all, how well
# clients do on the classes that they do not hold.
COLUMNS = ("accuracy_mean", "prototype_accuracy_mean")
FIRST_SEED = 100


@dataclass(frozen=True)
class Search:
    """What is searched, and how the finalists are chosen: so many, from the first stage."""

    tasks: Mapping[str, Settings]  # the lines of each, with how many samples are held back
    candidates: list[Settings]
    others: list[Settings]  # that are compared with the candidates
    finalists: Callable[[Stage, int], list[Settings]]
    table: Callable[[Stage, int], Table]  # the best of each kind, so many
    # Of both stages.
    rounds: tuple[int, int]
    seeds: tuple[int, int] = (2, 5)


def evaluate(
    label: str, task: Settings, settings: Iterable[Settings], seeds: range, rounds: int, device: str
) -> Rows:
    """Return each setting's figures after the last round, on the samples held back."""
    groups: dict[Hashable, list[tuple[Settings, Experiment]]] = defaultdict(list)
    for sets, seed in itertools.product(settings, seeds):
        # All classes are tested at checkpoints: once, at the end.
        lines = [*task, f"rounds={rounds}", f"checkpoint={rounds}", *sets]
        loaded = experiment.load(sets=lines, seed=seed)
        groups[program_key(loaded)].append((sets, loaded))
    rows: Rows = {}
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task(f"{label}: {len(groups)} programs", total=rounds * len(groups))
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


def mean(row: Row, key: str) -> float:
    """Return the mean over the seeds."""
    return statistics.mean(row[key])


def short(sets: Settings) -> str:
    """Return settings as a table shows them."""
    return " ".join(word.partition(".")[2] for word in sets)


def shown(rows: Rows, sets: Settings) -> str:
    """Return the mean accuracies of settings, of those that they have."""
    row = rows[sets]
    return " / ".join(f"{mean(row, key):.2f}" for key in COLUMNS if key in row)


def listed(stage: Stage) -> dict[str, Any]:
    """Return a stage as JSON has it."""
    return {
        task: [{"settings": list(sets), **row} for sets, row in rows.items()]
        for task, rows in stage.items()
    }


def read(stage: dict[str, Any]) -> Stage:
    """Return a stage from JSON."""
    return {task: {tuple(row.pop("settings")): row for row in rows} for task, rows in stage.items()}


def options(search: Search, about: str) -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--tasks",
        nargs="+",
        choices=list(search.tasks),
        default=[task for task in search.tasks if task != "mnist5k"],
        help="what is trained on",
    )
    parser.add_argument("--rounds", type=int, nargs=2, default=search.rounds, help="of both stages")
    parser.add_argument("--seeds", type=int, nargs=2, default=search.seeds, help="of both stages")
    parser.add_argument("--finalists", type=int, default=6, help="how many")
    parser.add_argument("--only", type=int, help="look at every ONLY-th candidate")
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON file for all figures; tasks of the first stage that it has are not repeated",
    )
    return parser.parse_args()


def carry_out(search: Search, about: str) -> None:
    """Search in two stages and print all figures as JSON."""
    args = options(search, about)
    console = Console(width=220, stderr=True)
    stages: dict[str, Any] = {"first": {}, "last": {}, "seconds": 0.0}
    if args.out and args.out.is_file():
        stages |= json.loads(args.out.read_text(encoding="utf-8"))
    first = read(stages["first"])
    last: Stage = {}
    began = time.perf_counter() - stages["seconds"]

    def save() -> str:
        seconds = time.perf_counter() - began
        text = to_json({"first": listed(first), "last": listed(last), "seconds": seconds}) + "\n"
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(args.out, text.encode())
        return text

    def run(stage: Stage, number: int, settings: list[Settings]) -> None:
        seeds = range(FIRST_SEED, FIRST_SEED + args.seeds[number])
        for task in args.tasks:
            if task not in stage:
                lines = search.tasks[task]
                rounds = args.rounds[number]
                stage[task] = evaluate(task, lines, settings, seeds, rounds, args.device)
                save()

    run(first, 0, [*search.candidates[:: args.only], *search.others])
    first = {task: first[task] for task in args.tasks}
    console.print(search.table(first, 5))
    run(last, 1, search.finalists(first, args.finalists))
    console.print(search.table(last, 10))
    sys.stdout.write(save())
