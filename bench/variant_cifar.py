"""fedrfq-coded and its peers on CIFAR-10, with λ chosen on samples held back. Use a GPU.

    python bench/variant_cifar.py --device cuda --out results/variant/cifar10.json

ResNet18 with ImageNet's first layer at stride 1, 3 ± 1 classes. First every method is trained with
each λ, on seeds of its own, while a quarter of the training samples is held back and tested on.
Then the best λ of each method is trained on all samples with the seeds 0, 1, … and tested on the
test samples. The best λ has the highest sum of both ways to predict, own head and prototype. What
the file of --out has already is not run again.

The file also has the bounds of our variant's differences to its peers, paired over seeds, in every
accuracy that both have.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from fedrfq import experiment
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.runs.environment import here
from fedrfq.studies.intervals import difference
from stacked_runs import train_together

TASK = (
    "data.name=cifar10",
    "model.name=resnet18",
    "model.weights=imagenet-stem",
    "model.stem=1",
    "partition.ways=3",
    "partition.spread=1",
)
METHODS: dict[str, tuple[str, ...]] = {
    "fedrfq-coded": (),
    "codes": (),
    "fedproto": (),
    "protonorm": ("method.norm=0",),
    "fedtgp": ("method.server_epochs=30",),
    "fedper": (),
    "local": (),
    "fedrfq-lean": (),
}
WITHOUT_LAM = ("local", "fedper")
COLUMNS = ("accuracy_mean", "prototype_accuracy_mean")
VARIANT = "fedrfq-coded"
PEERS = ("codes", "fedproto", "protonorm", "fedtgp")
JUDGED = (*COLUMNS, "accuracy_held", "accuracy_unheld")
_OUT = Console(stderr=True)


def settings(method: str, lam: float | None) -> tuple[str, ...]:
    """Return the lines that set a method up."""
    lines = (f"method.name={method}", *METHODS[method])
    if lam is not None:
        lines += (f"method.lam={lam}",)
    return lines


def trained(experiments: list[Experiment], device: str, label: str) -> list[dict[str, Any]]:
    """Train runs of one program; return the last record of each, an empty one if it diverged."""
    with Progress(console=_OUT) as progress:
        bar = progress.add_task(label, total=experiments[0].rounds)
        ended = train_together(experiments, device, lambda: progress.advance(bar))
    return [asdict(ended[r].record) if r in ended else {} for r in range(len(experiments))]


def chosen_lam(method: str, args: argparse.Namespace) -> tuple[float | None, dict[str, Any]]:
    """Return the λ that does best on samples held back, and what each one did."""
    if method in WITHOUT_LAM:
        return None, {}
    lines = [f"rounds={args.tuning}", f"checkpoint={args.tuning}", "validation=0.25", *TASK]
    candidates = [
        experiment.load(sets=[*lines, *settings(method, lam)], seed=100) for lam in args.lam
    ]
    records = trained(candidates, args.device, f"{method}: λ")
    tried = {
        str(lam): {key: record[key] for key in COLUMNS}
        for lam, record in zip(args.lam, records, strict=True)
        if record
    }
    best = max(tried, key=lambda lam: sum(value or 0.0 for value in tried[lam].values()))
    return float(best), tried


def measured(method: str, lam: float | None, args: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the figures of all seeds."""
    lines = [f"rounds={args.rounds}", f"checkpoint={args.rounds}", *TASK, *settings(method, lam)]
    runs = [experiment.load(sets=lines, seed=seed) for seed in range(args.seeds)]
    records = trained(runs, args.device, method)
    wanted = [key for key in records[0] if "accuracy" in key or key.startswith("bytes")]
    figures = {key: [record.get(key) for record in records] for key in wanted}
    sent = [record["bytes_up"] + record["bytes_down"] for record in records]
    # Of one client in the whole run: all rounds are like the last.
    figures["bytes"] = [args.rounds * size / runs[0].clients for size in sent]
    return figures


def compared(rows: dict[str, Any]) -> dict[str, Any]:
    """Return our variant's differences to each peer there is, by the accuracy they are of."""
    found = {}
    for peer in PEERS:
        if VARIANT not in rows or peer not in rows:
            continue
        pairs = {key: difference(rows[VARIANT][key], rows[peer][key]) for key in JUDGED}
        found[peer] = {key: asdict(pair) for key, pair in pairs.items() if pair is not None}
    return found


def write(rows: dict[str, Any], args: argparse.Namespace) -> None:
    """Write what was found so far."""
    command = {key: value for key, value in vars(args).items() if key != "out"}
    record = {"command": command, **here(), "rows": rows, "differences": compared(rows)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.out, (to_json(record) + "\n").encode())


def options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--lam", nargs="+", type=float, default=[0.3, 1.0, 4.0], help="λ to try")
    parser.add_argument("--rounds", type=int, default=40, help="of the runs (default: 40)")
    parser.add_argument("--tuning", type=int, default=20, help="rounds to try λ (default: 20)")
    parser.add_argument("--seeds", type=int, default=3, help="default: 3")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    return parser.parse_args()


def main() -> None:
    """Tune and train every method; write all figures after each."""
    args = options()
    rows: dict[str, Any] = {}
    if args.out.is_file():
        rows = json.loads(args.out.read_text(encoding="utf-8"))["rows"]
    for method in args.methods:
        if method in rows:
            continue
        began = time.perf_counter()
        lam, tried = chosen_lam(method, args)
        figures = measured(method, lam, args)
        seconds = round(time.perf_counter() - began, 1)
        rows[method] = {"lam": lam, "tried": tried, "seconds": seconds, **figures}
        shown = [
            f"{statistics.mean(figures[key]):.2f}" for key in COLUMNS if None not in figures[key]
        ]
        _OUT.print(method, f"λ {lam}", " / ".join(shown))
        write(rows, args)


if __name__ == "__main__":
    main()
