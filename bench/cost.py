"""What a round costs against the number of clients and of stacked runs, on a CPU.

    python bench/cost.py --out results/speed/cost.json --picture docs/images/cost.png

Clients share the samples of `mnist5k`, five of each of their classes, and train FedRFQ's CNN. The
seconds are those of the processor, of training alone and of whole rounds with uploads, tests and
one trusted server; the least of several rounds counts. A straight line through the origin would
say that a client costs the same in any number; the record has each point's cost per client.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from engine import Best, Round
from fedrfq import data, experiment
from fedrfq.files.pictures import subplots
from fedrfq.learning.round_loop import RoundLoop
from testbed import arguments, record

CLIENTS = (20, 100, 500, 1000, 2000)
RUNS = (1, 5, 25, 100)


def cost(clients: int, runs: int, repeats: int) -> dict[str, Any]:
    """Return the CPU seconds of a round of so many clients in each of so many runs."""
    sets = ["data.name=mnist5k", f"clients={clients}"]
    sets += ["partition.share=true", "partition.shots=5", "partition.test_shots=5"]
    experiments = [experiment.load(sets=sets, seed=seed) for seed in range(runs)]
    loop = RoundLoop(experiments, data.load("mnist5k"), torch.device("cpu"))
    training = Round(loop)
    train = Best()
    whole = float("inf")
    for _ in range(repeats):
        train.repeat(training)
        began = time.process_time()
        loop.advance(training.state)
        whole = min(whole, time.process_time() - began)
    found = {"clients": clients, "runs": runs, "samples": training.samples}
    return {**found, "train_cpu_s": train.cpu_seconds, "round_cpu_s": whole}


def drawn(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw cost against clients, and against runs."""
    figure, [[left, right]] = subplots((9, 3.6), 1, 2)
    for axes, along, other, label in (
        (left, "clients", "runs", "clients in one run"),
        (right, "runs", "clients", "stacked runs of 20 clients"),
    ):
        least = min(row[other] for row in rows)
        own = [row for row in rows if row[other] == least]
        for key, name in (("round_cpu_s", "whole round"), ("train_cpu_s", "training")):
            axes.plot([row[along] for row in own], [row[key] for row in own], "o-", label=name)
        axes.set(xlabel=label, ylabel="CPU seconds of a round", xlim=0, ylim=0)
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Measure all numbers, record them and draw them."""
    parser = arguments(__doc__, "speed/cost.json")
    parser.add_argument("--picture", type=Path, help="where to draw the two curves")
    parser.add_argument("--repeats", type=int, default=2, help="rounds of each (default: 2)")
    args = parser.parse_args()
    # One thread: what threads wait for each other is no cost of the engine.
    torch.set_num_threads(1)
    pairs = [(clients, 1) for clients in CLIENTS] + [(20, runs) for runs in RUNS[1:]]
    rows = []
    for clients, runs in pairs:
        rows.append(cost(clients, runs, args.repeats))
        print(rows[-1], flush=True)
    record(args.out, {"rows": rows})
    if args.picture:
        drawn(rows, args.picture)


if __name__ == "__main__":
    main()
