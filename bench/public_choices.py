"""How the constants of the public classifier were chosen, on samples that clients hold back.

- `head weight`: the power of the own head's probabilities in the combined prediction; clients train
  for 20 rounds, as in examples/open.toml.
- `shrinkage`: how far LDA's covariance is shrunk, the client's own or the federation's; no model
  is trained.
- `doubt`: the supposed samples that keep the temperature from being too sure, by training samples
  a class, with the temperature fitted leaving one sample out, and without; no model is trained.
  Mirrored digits make no sense, but show what a mirrored map does to calibration.

Accuracies and calibration errors (ECE) are in percent, means over clients and seeds, which are
seeds that no study uses. Test samples take no part.

Example: python bench/public_choices.py --out results/public/choices.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import fedrfq
from fedrfq import data
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.all_classes import CommonFigures
from fedrfq.learning.public import classifier, combination, temperature
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.models.public_maps import RandomMap
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.aggregation import combine

SEEDS = range(100, 105)
HEAD_WEIGHTS = (0.0, 0.125, 0.25, 0.5, 1.0, 2.0)
OWN_SHRINKAGES = (0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0)
FEDERATION_SHRINKAGES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
DOUBTS = (0.0, 0.05, 0.1, 0.25, 0.5, 1.0)
# By training samples a class, the samples of which they are a part; the others are held back.
TRAINING_SAMPLES = {1: 20, 2: 20, 3: 20, 5: 20, 10: 20, 16: 20, 40: 50, 80: 100}
STATISTICS: dict[str, dict[str, Any]] = {
    "means": {"name": "random"},
    "second moments": {"name": "random", "moments": "full", "bits": 16},
}


@fedrfq.register("public-map", "mirrored")
@dataclass(frozen=True)
class Mirrored(RandomMap):
    """The mean of an image's vector and its mirror image's."""

    def fingerprint(self) -> str:
        return f"{super().fingerprint()}.mirrored"

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        return (super().raw(pixels_NCHW) + super().raw(pixels_NCHW.flip(-1))) / 2


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
    for samples, shots in TRAINING_SAMPLES.items():
        partition = {"shots": shots, "share": shots > 20}
        changed = experiments(public, partition=partition, validation=1 - samples / shots)
        loop = RoundLoop(changed, data.load("mnist5k"), torch.device("cpu"))
        row = {}
        for way, gained in (("all samples", nothing_gained), ("one left out", temperature.unseen)):
            classifier.unseen = gained  # type: ignore[attr-defined]
            for doubt in DOUBTS:
                temperature._DOUBT = doubt
                # The classifiers are kept, with the temperature that they were made with.
                loop.public.__dict__.pop("exchanges", None)
                error = means(figures(loop, loop.start()), "public_")["ece"]
                row[f"{way}, {doubt:g}"] = error
        rows[str(samples)] = row
        print(public, samples, row, flush=True)
    return rows


def nothing_gained(
    covariance_VV: Tensor, share: float, means_JV: Tensor, z_NV: Tensor, y_N: Tensor
) -> Tensor:
    """Stand in for `unseen`: the temperature is fitted to samples that the covariance has seen."""
    return z_NV.new_zeros(len(z_NV), len(means_JV), dtype=torch.float64)


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
        name: doubts(map_)
        for name, map_ in {**STATISTICS, "mirrored": {"name": "mirrored"}}.items()
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
