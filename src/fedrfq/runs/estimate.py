"""Estimate what a run will cost by measuring a small part of it: a few steps of every client."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass

import torch

from fedrfq.engine.engine import Engine
from fedrfq.engine.threads import one_thread
from fedrfq.learning.round_loop import LoopState, RoundLoop

# Enough for a stable figure, few enough to answer in seconds.
_STEPS = 8


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run."""

    seconds: float
    memory_bytes: int  # at the peak, on the device that trains
    samples: int  # trained in the whole run


def estimate(loop: RoundLoop) -> Estimate:
    """Train and test `_STEPS` batches of every client, and scale the time to the whole run."""
    state = loop.start()
    samples = 0
    trial_samples = 0
    seconds = 0.0
    for cohort, engine in enumerate(loop.engines):
        trial_data = engine.shares.trimmed(_STEPS * engine.program.train.batch_size)
        trial = Engine(engine.program, trial_data, engine.tests, engine.device)
        _seconds(loop, state, cohort, trial)  # warms up caches and kernels
        seconds += _seconds(loop, state, cohort, trial)
        samples += sum(engine.shares.counts)
        trial_samples += sum(trial_data.counts)
    first = loop.experiments[0]
    total = samples * first.rounds * first.participation
    trained = int(total * first.method.epochs(first.train.epochs))
    return Estimate(seconds * total / trial_samples, _peak_memory(loop.device), trained)


@one_thread()
def _seconds(loop: RoundLoop, state: LoopState, cohort: int, trial: Engine) -> float:
    """Return how long one round of the cohort takes on the trial's samples."""
    clients = loop.cohorts[cohort]
    guide = loop.guide(state, clients, state.params[cohort])
    keys = loop.keys(1, clients)
    began = time.perf_counter()
    params, _ = trial.train(state.params[cohort], guide, keys, range(len(trial.shares.counts)))
    trial.features(params, trial.shares)
    if loop.device.type == "cuda":
        # CUDA runs asynchronously: without this, only the launching would be timed.
        torch.cuda.synchronize()
    return time.perf_counter() - began


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS reports bytes, Linux KiB.
    if sys.platform == "darwin":
        return peak
    return peak * 1024
