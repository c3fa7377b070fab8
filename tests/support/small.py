"""Small experiments on the embedded data, and what their clients know."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from fedrfq.data import Dataset
from fedrfq.experiment import Experiment, from_table
from fedrfq.files import toml
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.methods.method import Guide, Method
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import Globals

CPU = torch.device("cpu")
TINY: dict[str, Any] = {
    "clients": 6,
    "rounds": 3,
    "partition": {"ways": 3, "spread": 1, "shots": 7, "test_shots": 5},
    "train": {"lr": 0.05},
}


def tiny(**changes: Any) -> Experiment:
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
    record = {
        key: value for key, value in asdict(outcome.record).items() if not key.startswith("seconds")
    }
    return record | {"clients": outcome.clients}


def equal(a: tuple[Params, ...], b: tuple[Params, ...]) -> bool:
    return all(torch.equal(p[name], q[name]) for p, q in zip(a, b, strict=True) for name in p)


def rows_of(params: Params, rows: slice) -> Params:
    return {name: p[rows] for name, p in params.items()}


def told(method: Method, known: Globals, own: Params) -> Guide:
    """Return what clients with these parameters know before the second round."""
    targets = method.targets(1, known, np.random.default_rng(0))
    return method.guide(2, targets, own)
