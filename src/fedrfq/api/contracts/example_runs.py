"""Small experiments on made-up pictures, on which methods, models and trackers are tried."""

from __future__ import annotations

from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np
import torch

from fedrfq.data import Dataset
from fedrfq.experiment import Experiment, from_table
from fedrfq.files import toml
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.models.stacked import Params

CPU = torch.device("cpu")
MLP = {"name": "mlp", "width": 20}
TINY: dict[str, Any] = {
    "clients": 6,
    "rounds": 3,
    "partition": {"ways": 3, "spread": 1, "shots": 7, "test_shots": 5},
    "train": {"lr": 0.05},
}


@cache
def pictures(side: int = 8, channels: int = 1) -> Dataset:
    """Return 600 noisy pictures of five classes, each about a picture of its own."""
    rng = np.random.default_rng(0)
    centres = rng.integers(40, 216, (5, channels, side, side))
    labels = np.repeat(np.arange(5), 120)
    noise = rng.integers(-30, 31, (len(labels), channels, side, side))
    images = (centres[labels] + noise).astype(np.uint8)
    train = np.arange(len(labels)) % 3 > 0
    return Dataset.from_arrays(
        images[train], labels[train], (images[~train], labels[~train]), name="pictures"
    )


@cache
def many_samples() -> Dataset:
    """Return 7,000 pictures of one pixel, of ten classes and 40 writers, to be dealt."""
    labels = np.arange(7000) % 10
    writers = np.arange(7000) // 10 % 40
    images = (labels * 20).astype(np.uint8).reshape(-1, 1, 1, 1)
    train = np.arange(7000) < 6000
    return Dataset.from_arrays(
        images[train],
        labels[train],
        (images[~train], labels[~train]),
        groups=writers[train],
        test_groups=writers[~train],
        name="many",
    )


def tiny(**changes: Any) -> Experiment:
    """Return a small experiment with these changes."""
    return from_table(toml.merge(TINY, changes))


def run(
    experiments: list[Experiment], dataset: Dataset, rounds: int
) -> tuple[LoopState, list[list[RoundOutcome]]]:
    """Return the last state and the outcomes of each round."""
    loop = RoundLoop(experiments, dataset, CPU)
    state = loop.start()
    rows = []
    for _ in range(rounds):
        state, outcomes = loop.advance(state)
        rows.append(outcomes)
    return state, rows


def timeless(outcome: RoundOutcome) -> dict[str, Any]:
    """Return a round's figures without its times."""
    record = {
        key: value for key, value in asdict(outcome.record).items() if not key.startswith("seconds")
    }
    return record | {"clients": outcome.clients}


def equal(a: tuple[Params, ...], b: tuple[Params, ...]) -> bool:
    """Return whether two states' models are the same, to the bit."""
    return all(torch.equal(p[name], q[name]) for p, q in zip(a, b, strict=True) for name in p)


def rows_of(params: Params, rows: slice) -> Params:
    """Return the parameters of some clients."""
    return {name: p[rows] for name, p in params.items()}
