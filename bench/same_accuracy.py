"""Compare the accuracy of every method with fused stages and with layers one after the other.

    python bench/same_accuracy.py --out results/speed/same-accuracy.json

Both compute the same function, and differ in the order of sums. Short runs on `mnist5k` with
several seeds, stacked; of each seed the difference, and of all the mean and its 95 % interval. A
method whose figures are in the file already is not trained again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from scipy import stats

from fedrfq import experiment
from fedrfq.methods import METHODS
from fedrfq.models.fused.layout import ENGINE_LAYOUTS, FusedOnCPU
from fedrfq.models.stacked import Grouped, Layout
from stacked_runs import train_together
from testbed import ROOT, revision


def accuracies(method: str, layout: Layout, args: argparse.Namespace) -> list[float]:
    """Return each seed's accuracy after the last round, in percent."""
    sets = ["data.name=mnist5k", f"method.name={method}", f"clients={args.clients}"]
    sets.append(f"rounds={args.rounds}")
    experiments = [experiment.load(sets=sets, seed=seed) for seed in range(args.seeds)]
    with mock.patch.dict(ENGINE_LAYOUTS, {"cpu": layout}):  # type: ignore[arg-type]
        outcomes = train_together(experiments, "cpu", lambda: None)
    return [outcomes[run].record.accuracy_mean for run in range(args.seeds)]


def compared(method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return a method's accuracies by both, and what lies between them."""
    before = accuracies(method, Grouped(), args)
    after = accuracies(method, FusedOnCPU(), args)
    differences = [b - a for a, b in zip(before, after, strict=True)]
    error = statistics.stdev(differences) / args.seeds**0.5
    return {
        "layers": before,
        "fused": after,
        "difference": statistics.mean(differences),
        "interval": stats.t.ppf(0.975, args.seeds - 1) * error,
    }


def main() -> None:
    """Compare all methods, and write the file after each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, help="runs of a method (default: 5)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of a run (default: 8)")
    parser.add_argument("--clients", type=int, default=10, help="clients of a run (default: 10)")
    parser.add_argument("--out", type=Path, required=True, help="where to record the figures")
    args = parser.parse_args()
    settings = {"seeds": args.seeds, "rounds": args.rounds, "clients": args.clients}
    found: dict[str, Any] = {}
    if args.out.exists():
        found = json.loads(args.out.read_text(encoding="utf-8"))["methods"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    for method in METHODS:
        if method in found:
            continue
        found[method] = compared(method, args)
        row = found[method]
        print(f"{method}: {row['difference']:+.2f} ± {row['interval']:.2f} points", flush=True)
        facts = {"revision": revision(ROOT), "torch": torch.__version__, **settings}
        text = json.dumps({**facts, "methods": found}, indent=1)
        args.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
