"""The search behind `fedrfq-lean`: which settings are most accurate within a quarter of the bytes.

    python bench/lean_search.py --device cuda --out results/lean-search.json

It varies the geometry of the map, pooling, distance, λ, separation, temperature, warm-up and bits
per value, on MNIST with 20 clients, 3 ± 2 classes and 100 shots. A fifth of every client's training
samples is held back; candidates train on the rest and are judged on what was held back, so test
samples are never looked at. First, all candidates run for a few rounds and seeds. Then the best of
them within a quarter of FedProto's bytes run for all rounds and more seeds, with and without
warm-up, and with more bits where there is room. The seeds differ from those of the tables (0 to 4).
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedrfq import experiment
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import program_key
from stacked_runs import train_together

COMMON = ("data.name=mnist", "validation=0.2")
# Rows, kernel and stride: 24, 12, 24 and 10 values of 50.
MAPS = ((2, 2, 1), (2, 2, 2), (5, 3, 1), (5, 2, 2))
POOLS = ("softpool", "avg")
# λ for the distance, and for the squared distance.
WEIGHTS = {1: (0.1, 0.3, 1.0), 2: (0.3, 1.0, 3.0)}
# Weight and temperature of the separation.
SEPARATIONS = ((0.0, 1.0), *itertools.product((0.1, 0.3, 1.0), (0.2, 1.0)))
REFERENCES = {"fedproto": ("method.name=fedproto",), "fedrfq": ("method.name=fedrfq",)}
Settings = tuple[str, ...]


def candidates() -> list[Settings]:
    """Return all settings of the first look."""
    settings: list[Settings] = []
    for (rows, kernel, stride), pool, power in itertools.product(MAPS, POOLS, WEIGHTS):
        shape = (
            f"pool.rows={rows}",
            f"pool.kernel={kernel}",
            f"pool.stride={stride}",
            f"pool.name={pool}",
        )
        for lam, (separation, temperature) in itertools.product(WEIGHTS[power], SEPARATIONS):
            settings.append(
                (
                    "method.name=fedrfq-lean",
                    "method.bits=8",
                    *shape,
                    f"method.power={power}",
                    f"method.lam={lam}",
                    f"method.separation={separation}",
                    f"method.temperature={temperature}",
                )
            )
    return settings


def evaluate(
    settings: Sequence[Settings], seeds: range, rounds: int, device: str
) -> dict[Settings, dict[str, Any]]:
    """Return each setting's figures after the last round, on the samples held back.

    Settings whose runs share a program are trained together.
    """
    groups: dict[Hashable, list[tuple[Settings, Experiment]]] = defaultdict(list)
    for sets, seed in itertools.product(settings, seeds):
        loaded = experiment.load(sets=[*COMMON, f"rounds={rounds}", *sets], seed=seed)
        groups[program_key(loaded)].append((sets, loaded))
    records: dict[Settings, list[RoundRecord]] = defaultdict(list)
    with Progress(console=Console(stderr=True)) as progress:
        title = f"{len(settings)} settings, {len(groups)} programs"
        task = progress.add_task(title, total=rounds * len(groups))
        for group in groups.values():
            ended = train_together([e for _, e in group], device, lambda: progress.advance(task))
            for place, outcome in ended.items():
                records[group[place][0]].append(outcome.record)
    # Only settings of which no seed diverged.
    return {sets: figures(own) for sets, own in records.items() if len(own) == len(seeds)}


def figures(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the accuracies of all seeds, and the mean bytes of a round."""
    return {
        "head": [record.accuracy_mean for record in records],
        "prototype": [record.prototype_accuracy_mean for record in records],
        "bytes": statistics.mean(record.bytes_up for record in records),
    }


def merit(row: dict[str, Any]) -> float:
    """Return what candidates are ranked by: both mean accuracies together."""
    return float(statistics.mean(row["head"]) + statistics.mean(row["prototype"]))


def ranked(rows: dict[Settings, dict[str, Any]]) -> list[Settings]:
    """Return the settings, best first."""
    return sorted(rows, key=lambda sets: -merit(rows[sets]))


def finalists(rows: dict[Settings, dict[str, Any]], max_bytes: float, count: int) -> list[Settings]:
    """Return the best within the bytes: each as it is, with a warm-up, and with 16 bits."""
    best = [sets for sets in ranked(rows) if rows[sets]["bytes"] <= max_bytes][:count]
    changes: list[Settings] = [(), ("method.warmup=10",), ("method.bits=16",)]
    return [(*sets, *change) for sets, change in itertools.product(best, changes)]


def table(rows: dict[Settings, dict[str, Any]], count: int) -> Table:
    """Return a table of the best settings."""
    shown = Table("setting", "own head", "nearest prototype", "bytes")
    for sets in ranked(rows)[:count]:
        row = rows[sets]
        name = " ".join(word.partition(".")[2] for word in sets)
        head = statistics.mean(row["head"])
        prototype = statistics.mean(row["prototype"])
        shown.add_row(name, f"{head:.2f}", f"{prototype:.2f}", f"{row['bytes']:,.0f}")
    return shown


def load_stages(path: Path | None) -> dict[str, dict[Settings, dict[str, Any]]]:
    """Return the stages that an earlier search has written."""
    if not path or not path.is_file():
        return {}
    stages = json.loads(path.read_text(encoding="utf-8"))
    return {
        stage: {tuple(row.pop("settings")): row for row in rows} for stage, rows in stages.items()
    }


def save_stages(path: Path | None, stages: dict[str, dict[Settings, dict[str, Any]]]) -> None:
    """Write the stages as JSON, if there is a file to write to."""
    if not path:
        return
    listed = {
        stage: [{"settings": list(sets), **row} for sets, row in rows.items()]
        for stage, rows in stages.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (to_json(listed, indent=1) + "\n").encode())


def main() -> None:
    """Search, and print the tables of both stages."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--rounds",
        type=int,
        nargs=2,
        default=(40, 100),
        help="rounds of the first look and of the finalists (default: 40 100)",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        nargs=2,
        default=(2, 5),
        help="seeds of the first look and of the finalists (default: 2 5)",
    )
    parser.add_argument("--finalists", type=int, default=8, help="how many (default: 8)")
    parser.add_argument("--only", type=int, help="look at the first ONLY candidates")
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON file for all figures; a first look that it already has is not repeated",
    )
    args = parser.parse_args()
    references = list(REFERENCES.values())
    console = Console(width=150)
    stages = load_stages(args.out)
    if "first" not in stages:
        first_look = [*candidates()[: args.only], *references]
        seeds = range(100, 100 + args.seeds[0])
        stages["first"] = evaluate(first_look, seeds, args.rounds[0], args.device)
        save_stages(args.out, stages)
    console.print(table(stages["first"], 25))
    max_bytes = stages["first"][REFERENCES["fedproto"]]["bytes"] / 4
    entered = {sets: row for sets, row in stages["first"].items() if sets not in references}
    chosen = [*finalists(entered, max_bytes, args.finalists), *references]
    seeds = range(100, 100 + args.seeds[1])
    stages["last"] = evaluate(chosen, seeds, args.rounds[1], args.device)
    save_stages(args.out, stages)
    console.print(table(stages["last"], 40))


if __name__ == "__main__":
    main()
