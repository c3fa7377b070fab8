"""What a run will cost, measured on a small part of it: a few steps of every client."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass

import torch

from fedrfq.engine.engine import Engine
from fedrfq.learning.round_loop import RoundLoop

_STEPS = 8


@dataclass(frozen=True)
class Estimate:
    seconds: float
    memory_bytes: int  # at the peak, of the device that trains
    samples: int  # trained in the whole run


def estimate(loop: RoundLoop) -> Estimate:
    """The time is that of training and testing `_STEPS` batches a client, scaled to all samples and rounds."""
    state = loop.start()
    samples = 0
    trial = 0
    seconds = 0.0
    for cohort, (engine, clients) in enumerate(zip(loop.engines, loop.cohorts, strict=True)):
        small = engine.shares.trimmed(_STEPS * engine.program.train.batch_size)
        shortened = Engine(engine.program, small, engine.tests)
        guide = loop.guide(state, clients, state.params[cohort])
        keys = loop.keys(1, clients)
        for _ in range(2):  # the first time warms up
            began = time.perf_counter()
            params, _ = shortened.train(state.params[cohort], guide, keys, range(len(small.counts)))
            shortened.features(params, small)
            if loop.device.type == "cuda":
                torch.cuda.synchronize()
            took = time.perf_counter() - began
        seconds += took
        samples = samples + sum(engine.shares.counts)
        trial = trial + sum(small.counts)
    first = loop.experiments[0]
    total = samples * first.rounds * first.participation
    return Estimate(
        seconds * total / trial,
        _peak(loop.device),
        int(total * first.method.epochs(first.train.epochs)),
    )


def _peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "darwin":
        unit = 1
    else:
        unit = 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
