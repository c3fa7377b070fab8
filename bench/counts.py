"""What caps of claimed sample counts cost in peace, and what they save from liars about counts.

Clients of Dirichlet partitions train with FedRFQ, whose rule weighs uploads by their samples.
Nobody is dropped: only counts are cut, by one of several caps:

- `none`: counts are believed.
- `median`: to the lower median of the class's holders, as version 0.1 did.
- `quantile`: to the holders' 85 % quantile.
- `geometric`: to √(P · M), where P is the largest class of any client after the m largest, and M
  the median of the class's holders.
- `cap`: as detectors do now (`fedrfq/robust/detectors/counts.py`).

In `peace` nobody lies. In `inflate` four of twenty clients swap their classes and claim a thousand
times as many samples as they have; `swap` is the same without the claim. Accuracies are in percent,
means over the clients that are honest in all three, after the last round; differences are from
`none` in peace, paired by seed, ± half of the 95 % interval.

It can be run in parts: rows are added to those of the file, and written after each α.

Example: python bench/counts.py --seeds 3 --rounds 10 --out results/counts.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrfq import data
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.draws import attackers
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.counts import capped, lower_medians
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.distances import isqrt
from fedrfq.studies.intervals import spread

ALPHAS = (0.1, 0.5, 1.0)
ATTACKS = ("peace", "swap", "inflate")
LIARS = 4
FIRST_SEED = 200  # of no recorded table


def quantiles(counts_KJ: Ints) -> Ints:
    """Return the counts cut to the 85 % quantile of each class's holders."""
    ordered_KJ = np.sort(counts_KJ, axis=0)
    holders_J = (counts_KJ > 0).sum(0)
    # Those without the class come first. The quantile is the ⌈0.85 h⌉-th of the h holders.
    place_J = len(counts_KJ) - holders_J + (85 * holders_J + 99) // 100 - 1
    found_J: Ints = np.take_along_axis(ordered_KJ, np.minimum(place_J, len(counts_KJ) - 1)[None], 0)
    cut_KJ: Ints = np.minimum(counts_KJ, found_J)
    return cut_KJ


def geometric(counts_KJ: Ints) -> Ints:
    """Return the counts cut to √(P · M)."""
    large = np.sort(counts_KJ.max(1))[-1 - LIARS]
    cut_KJ: Ints = np.minimum(counts_KJ, isqrt(large * np.minimum(lower_medians(counts_KJ), large)))
    return cut_KJ


CAPS: Mapping[str, Callable[[Ints], Ints]] = {
    "none": lambda counts_KJ: counts_KJ,
    "median": lambda counts_KJ: np.minimum(counts_KJ, lower_medians(counts_KJ)),
    "quantile": quantiles,
    "geometric": geometric,
    "cap": lambda counts_KJ: capped(counts_KJ, LIARS),
}


@dataclass(frozen=True)
class OnlyCap(NoDetection):
    """Drops nobody, and cuts counts by one of CAPS."""

    cap: str = "none"

    def admitted(self, uploads: Uploads) -> Uploads:
        return replace(uploads, counts_KJ=CAPS[self.cap](uploads.counts_KJ))


def experiment(alpha: float, attack: str, cap: str, seed: int, rounds: int) -> Experiment:
    """Return one run; liars are drawn in peace too, and behave."""
    name = {"peace": "none"}.get(attack, attack)
    table = {
        "seed": seed,
        "rounds": rounds,
        "checkpoint": rounds,
        "data": {"name": "mnist5k"},
        "partition": {"name": "dirichlet", "alpha": alpha, "samples": 100, "test_samples": 50},
        "attack": {"name": name, "clients": LIARS},
    }
    return replace(from_table(table), detector=OnlyCap(cap=cap))


def accuracies(experiments: Sequence[Experiment]) -> list[dict[str, float]]:
    """Train all runs together, and return honest clients' accuracies after the last round."""
    loop = RoundLoop(experiments, data.load("mnist5k"), torch.device("cpu"))
    state = loop.start()
    for number in range(1, experiments[0].rounds + 1):
        state, outcomes = loop.advance(state)
        print(f"round {number}", flush=True)
    found = []
    for run, outcome in zip(experiments, outcomes, strict=True):
        honest = set(range(run.clients)) - set(attackers(run))
        rows = [row for row in outcome.clients if row["client"] in honest]
        found.append(
            {
                "own": float(np.mean([row["accuracy"] for row in rows])),
                "prototype": float(np.mean([row["prototype_accuracy"] for row in rows])),
            }
        )
    return found


def measured(
    alpha: float, caps: Sequence[str], seeds: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Return a row for each attack, cap and seed."""
    cases = [(attack, cap, seed) for attack in ATTACKS for cap in caps for seed in seeds]
    runs = [experiment(alpha, attack, cap, seed, rounds) for attack, cap, seed in cases]
    return [
        {"alpha": alpha, "attack": attack, "cap": cap, "seed": seed, **figures}
        for (attack, cap, seed), figures in zip(cases, accuracies(runs), strict=True)
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the differences from counts that are believed in peace, as a Markdown table."""
    figures = {(r["alpha"], r["attack"], r["cap"], r["seed"]): r for r in rows}
    seeds = sorted({row["seed"] for row in rows})
    caps = list(dict.fromkeys(row["cap"] for row in rows))
    lines = [f"| α | attack | {' | '.join(caps)} |", "|---" * (2 + len(caps)) + "|"]
    for alpha in sorted({row["alpha"] for row in rows}):
        for attack in ATTACKS:
            cells = []
            for cap in caps:
                cell = []
                for name in ("own", "prototype"):
                    gains = [
                        figures[alpha, attack, cap, seed][name]
                        - figures[alpha, "peace", "none", seed][name]
                        for seed in seeds
                    ]
                    found = spread(gains)
                    assert found is not None
                    cell.append(f"{found.mean:+.2f} ± {found.half or 0:.2f}")
                cells.append("; ".join(cell))
            lines.append(f"| {alpha} | {attack} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, store every run's figures, and print the table of all that is stored."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--caps", nargs="+", choices=CAPS, default=list(CAPS))
    parser.add_argument("--alphas", nargs="+", type=float, default=ALPHAS)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    DETECTORS["only-cap"] = OnlyCap
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    rows: list[dict[str, Any]] = []
    if arguments.out and arguments.out.exists():
        rows = json.loads(arguments.out.read_text())
    for alpha in arguments.alphas:
        rows += measured(alpha, arguments.caps, seeds, arguments.rounds)
        if arguments.out:
            arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
