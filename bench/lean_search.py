"""The search behind `fedrfq-lean`: map geometry, pooling, distance, λ, separation, temperature, warm-up, bits a value.

    python bench/lean_search.py --device cuda --out results/lean-search.json

MNIST, 20 clients, 3 ± 2 classes, 100 shots. A fifth of every client's training samples is held back, candidates train on
the rest and are judged on what was held back: test samples are never looked at. First all candidates for a few rounds and
seeds; then the best of them, within a quarter of FedProto's bytes, for all rounds and more seeds, with and without
warm-up and with more bits where there is room. Seeds differ from those of the tables (0 to 4).
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

from fedrfq import data
from fedrfq.experiment import Experiment, experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.learning.round_loop import Diverged, RoundLoop, program_key
from fedrfq.runs.session import join, part, pick_device

COMMON = ("data.name=mnist", "validation=0.2")
MAPS = (
    (2, 2, 1),
    (2, 2, 2),
    (5, 3, 1),
    (5, 2, 2),
)  # rows, kernel, stride: 24, 12, 24 and 10 values of 50
POOLS = ("softpool", "avg")
WEIGHTS = {1: (0.1, 0.3, 1.0), 2: (0.3, 1.0, 3.0)}  # λ for the distance, and for the squared one
SEPARATIONS = ((0.0, 1.0), *itertools.product((0.1, 0.3, 1.0), (0.2, 1.0)))  # weight, temperature
REFERENCES = {"fedproto": ("method.name=fedproto",), "fedrfq": ("method.name=fedrfq",)}
Settings = tuple[str, ...]


def candidates() -> list[Settings]:
    found: list[Settings] = []
    for (rows, kernel, stride), pool, power in itertools.product(MAPS, POOLS, WEIGHTS):
        shape = (
            f"pool.rows={rows}",
            f"pool.kernel={kernel}",
            f"pool.stride={stride}",
            f"pool.name={pool}",
        )
        for lam, (separation, temperature) in itertools.product(WEIGHTS[power], SEPARATIONS):
            numbers = (
                f"method.lam={lam}",
                f"method.separation={separation}",
                f"method.temperature={temperature}",
            )
            found.append(
                (
                    "method.name=fedrfq-lean",
                    "method.bits=8",
                    *shape,
                    f"method.power={power}",
                    *numbers,
                )
            )
    return found


def evaluate(
    settings: Sequence[Settings], seeds: range, rounds: int, device: str
) -> dict[Settings, dict[str, Any]]:
    """Each one's figures after the last round, on what was held back; those of one program are trained together."""
    grouped: dict[Hashable, list[tuple[Settings, Experiment]]] = defaultdict(list)
    for sets, seed in itertools.product(settings, seeds):
        made = experiment.load(sets=[*COMMON, f"rounds={rounds}", *sets], seed=seed)
        grouped[program_key(made)].append((sets, made))
    found: dict[Settings, list[Any]] = defaultdict(list)
    dataset = data.load("mnist")
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(
            f"{len(settings)} settings, {len(grouped)} programs", total=rounds * len(grouped)
        )
        for group in grouped.values():
            loop = RoundLoop([made for _, made in group], dataset, pick_device(device))
            state = loop.start()
            while state.round < rounds:
                try:
                    state, outcomes = loop.advance(state)
                    progress.advance(task)
                except Diverged as error:
                    left = [r for r in range(len(group)) if r not in error.runs]
                    state = join([part(loop, state, r) for r in left])
                    group = [group[r] for r in left]
                    loop = RoundLoop([made for _, made in group], dataset, loop.device)
            for (sets, _), outcome in zip(group, outcomes, strict=True):
                found[sets].append(outcome.record)
    whole = {
        sets: records for sets, records in found.items() if len(records) == len(seeds)
    }  # none of them diverged
    return {sets: figures(records) for sets, records in whole.items()}


def figures(records: Sequence[Any]) -> dict[str, Any]:
    return {
        "head": [record.accuracy_mean for record in records],
        "prototype": [record.prototype_accuracy_mean for record in records],
        "bytes": statistics.mean(record.bytes_up for record in records),
    }


def merit(found: dict[str, Any]) -> float:
    return float(statistics.mean(found["head"]) + statistics.mean(found["prototype"]))


def finalists(found: dict[Settings, dict[str, Any]], most: float, count: int) -> list[Settings]:
    """The best within the bytes, each as it is, with a warm-up, and with 16 bits a value."""
    best = sorted(
        (sets for sets in found if found[sets]["bytes"] <= most),
        key=lambda sets: -merit(found[sets]),
    )[:count]
    changes: list[Settings] = [(), ("method.warmup=10",), ("method.bits=16",)]
    return [(*sets, *change) for sets, change in itertools.product(best, changes)]


def table(found: dict[Settings, dict[str, Any]], count: int) -> Table:
    shown = Table("setting", "own head", "nearest prototype", "bytes")
    for sets in sorted(found, key=lambda sets: -merit(found[sets]))[:count]:
        name = " ".join(word.partition(".")[2] for word in sets)
        head, prototype = (statistics.mean(found[sets][key]) for key in ("head", "prototype"))
        shown.add_row(name, f"{head:.2f}", f"{prototype:.2f}", f"{found[sets]['bytes']:,.0f}")
    return shown


def saved(path: Path | None) -> dict[str, dict[Settings, dict[str, Any]]]:
    """The stages that are on disk already."""
    if not path or not path.is_file():
        return {}
    stages = json.loads(path.read_text(encoding="utf-8"))
    return {
        stage: {tuple(row.pop("settings")): row for row in rows} for stage, rows in stages.items()
    }


def save(path: Path | None, stages: dict[str, dict[Settings, dict[str, Any]]]) -> None:
    if path:
        rows = {
            stage: [{"settings": list(sets), **row} for sets, row in found.items()]
            for stage, found in stages.items()
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, (to_json(rows, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--rounds",
        type=int,
        nargs=2,
        default=(40, 100),
        help="of the first look, and of the finalists",
    )
    parser.add_argument("--seeds", type=int, nargs=2, default=(2, 5))
    parser.add_argument("--finalists", type=int, default=8)
    parser.add_argument("--only", type=int, help="look at the first so many candidates")
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON file for all figures; a first look that is in it is not taken again",
    )
    args = parser.parse_args()
    references = list(REFERENCES.values())
    console = Console(width=150)
    stages = saved(args.out)
    if "first" not in stages:
        looked_at = [*candidates()[: args.only], *references]
        stages["first"] = evaluate(
            looked_at, range(100, 100 + args.seeds[0]), args.rounds[0], args.device
        )
        save(args.out, stages)
    console.print(table(stages["first"], 25))
    most = stages["first"][REFERENCES["fedproto"]]["bytes"] / 4
    entered = {sets: found for sets, found in stages["first"].items() if sets not in references}
    chosen = [*finalists(entered, most, args.finalists), *references]
    stages["last"] = evaluate(chosen, range(100, 100 + args.seeds[1]), args.rounds[1], args.device)
    save(args.out, stages)
    console.print(table(stages["last"], 40))


if __name__ == "__main__":
    main()
