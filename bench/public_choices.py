"""How the constants of the public classifier were chosen, on samples that clients hold back.

- `head weight`: the power of the own head's probabilities in the combined prediction; clients train
  for 20 rounds, as in examples/open.toml.
- `shrinkage`: how far LDA's covariance is shrunk, the client's own or the federation's; no model
  is trained.
- `doubt`: the supposed samples that keep the temperature from being too sure, for few training
  samples a class; no model is trained.

Accuracies and calibration errors (ECE) are in percent, means over clients and seeds, which are
seeds that no study uses. Test samples take no part.

Example: python bench/public_choices.py --out results/public/choices.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from fedrfq import data
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.all_classes import CommonFigures
from fedrfq.learning.public import classifier, combination
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.aggregation import combine

SEEDS = range(100, 105)
HEAD_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
OWN_SHRINKAGES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
FEDERATION_SHRINKAGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
DOUBTS = (0.0, 0.5, 1.0, 2.0, 4.0)
# Of 20 samples a class; the others are held back.
TRAINING_SAMPLES = (1, 2, 3, 5, 10, 16)
STATISTICS: dict[str, dict[str, Any]] = {
    "means": {"name": "random"},
    "second moments": {"name": "random", "moments": "full", "bits": 16},
}


def experiments(public: dict[str, Any], **changes: Any) -> list[Experiment]:
    """Return an experiment for each seed, whose clients hold back a fifth unless told."""
    table = {
        "rounds": 20,
        "checkpoint": 20,
        "data": {"name": "mnist5k"},
        "method": {"name": "local"},
        "public": public,
        "validation": 0.2,
    }
    return [from_table({**table, **changes, "seed": seed}) for seed in SEEDS]


def exchanged(loop: RoundLoop) -> list[Globals]:
    """Return what the federation learns of one exchange, in each run."""
    found = []
    for settings, exchange in zip(loop.settings, loop.public.exchanges, strict=True):
        task = settings.task.public_in(1)
        assert task is not None
        sent = exchange.uploads(range(len(exchange.vectors)))
        found.append(combine(Globals.none(task.rows, task.values), sent, "weighted"))
    return found


def figures(loop: RoundLoop, state: LoopState) -> list[CommonFigures]:
    """Return each run's figures on the samples held back."""
    longest = loop.common.tests.index_KN.shape[1]
    public_KNJ = loop.public.log_probabilities(exchanged(loop), longest)
    return loop.common.measure(loop.engines, state.params, state.globals_, public_KNJ)


def means(found: Sequence[CommonFigures], prefix: str = "") -> dict[str, float]:
    """Return means over clients and seeds."""
    row = {}
    for name in ("accuracy_all", "accuracy_held", "accuracy_unheld", "ece"):
        values = [run.prefixed()[prefix] for run in found]
        row[name] = round(fmean(float(getattr(v, f"{name}_K").mean()) for v in values), 2)
    return row


def head_weights(public: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the combined prediction's figures for each weight of the head."""
    loop = RoundLoop(experiments(public), data.load("mnist5k"), torch.device("cpu"))
    state = loop.start()
    for _ in range(loop.experiments[0].rounds):
        state, _ = loop.advance(state)
    rows = {}
    for weight in HEAD_WEIGHTS:
        combination._HEAD_WEIGHT = weight
        rows[f"{weight:g}"] = means(figures(loop, state))
    return rows


def shrinkages(public: dict[str, Any], tried: Sequence[float]) -> dict[str, dict[str, float]]:
    """Return the public classifier's figures for each shrinkage."""
    rows = {}
    for shrinkage in tried:
        changed = experiments({**public, "shrinkage": shrinkage})
        loop = RoundLoop(changed, data.load("mnist5k"), torch.device("cpu"))
        rows[f"{shrinkage:g}"] = means(figures(loop, loop.start()), "public_")
    return rows


def doubts(public: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the public classifier's calibration errors, by training samples a class and doubt."""
    rows = {}
    for samples in TRAINING_SAMPLES:
        changed = experiments(public, partition={"shots": 20}, validation=1 - samples / 20)
        loop = RoundLoop(changed, data.load("mnist5k"), torch.device("cpu"))
        row = {}
        for doubt in DOUBTS:
            classifier._DOUBT = doubt
            # The classifiers are kept, with the temperature that they were made with.
            loop.public.__dict__.pop("exchanges", None)
            row[f"{doubt:g}"] = means(figures(loop, loop.start()), "public_")["ece"]
        rows[str(samples)] = row
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"data": "mnist5k", "seeds": list(SEEDS)}
    result["head weight"] = {name: head_weights(map_) for name, map_ in STATISTICS.items()}
    combination._HEAD_WEIGHT = 0.25
    result["shrinkage"] = {
        "means": shrinkages(STATISTICS["means"], OWN_SHRINKAGES),
        "second moments": shrinkages(STATISTICS["second moments"], FEDERATION_SHRINKAGES),
    }
    result["doubt, ECE by training samples a class"] = {
        name: doubts(map_) for name, map_ in STATISTICS.items()
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
