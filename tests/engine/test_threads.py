"""On a CPU the engine has a thread for each core, and whoever calls it has kernels of one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.engine import engine as engine_module
from fedrfq.engine.engine import Engine
from fedrfq.engine.threads import one_thread, threads
from fedrfq.learning import round_loop
from fedrfq.learning.public_stack import PublicStack
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.mlp import MLP
from fedrfq.models.stacked import Layout, Params, TrainingStep
from support.small import CPU, tiny

LIMIT_S = 60


@dataclass(frozen=True)
class Watched(MLP):
    """A model that notes who computes it, on how many threads, and does something more there."""

    seen: list[tuple[threading.Thread, int]] = field(default_factory=list, compare=False)
    then: Callable[[int], None] = field(default=lambda clients: None, compare=False)

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        self.seen.append((threading.current_thread(), torch.get_num_threads()))
        self.then(len(x_KBCHW))
        return super().forward(layout, params, x_KBCHW, step)


def watched(mnist: Dataset, cores: int, clients: int = 2) -> tuple[Engine, Watched, RoundLoop]:
    """Return an engine made where there are so many cores, its model, and a loop with its data."""
    model = Watched()
    with threads(cores):
        loop = RoundLoop([tiny(clients=clients, model={"name": "mlp"})], mnist, CPU)
        (own,) = loop.engines
        program = replace(own.program, model=model)
        return Engine(program, own.shares, own.tests), model, loop


def train(engine: Engine, loop: RoundLoop) -> None:
    state = loop.start()
    (clients,) = loop.cohorts
    guide = loop.guide(state, clients, state.params[0])
    engine.train(state.params[0], guide, loop.keys(1, clients), range(len(clients)))


def test_an_engine_keeps_its_threads_whatever_its_caller_has(mnist: Dataset) -> None:
    engine, model, loop = watched(mnist, cores=2)
    for caller in (3, 1):
        with threads(caller):
            train(engine, loop)
            engine.features(loop.start().params[0], engine.tests)
    workers = {worker for worker, _ in model.seen}
    assert threading.current_thread() not in workers
    assert len(workers) <= 2
    assert {kernels for _, kernels in model.seen} == {1}


def test_its_threads_end_with_it(mnist: Dataset) -> None:
    engine, model, loop = watched(mnist, cores=2)
    train(engine, loop)
    (worker, *_), *_ = model.seen
    assert worker.is_alive()
    del engine
    worker.join(LIMIT_S)
    assert not worker.is_alive()


def test_the_kernels_of_a_single_job_have_all_cores(mnist: Dataset) -> None:
    engine, model, loop = watched(mnist, cores=2, clients=1)
    with one_thread():
        train(engine, loop)
        assert torch.get_num_threads() == 1
    assert set(model.seen) == {(threading.current_thread(), 2)}


def test_a_single_core_needs_no_thread_of_its_own(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_CPU_CLIENTS", 1)
    engine, model, loop = watched(mnist, cores=1)
    train(engine, loop)
    assert set(model.seen) == {(threading.current_thread(), 1)}


@pytest.mark.parametrize("failing", [1, 2])
def test_of_a_round_that_fails_no_thread_trains_on(mnist: Dataset, failing: int) -> None:
    engine, model, loop = watched(mnist, cores=2, clients=3)  # two of them in one thread
    both = threading.Barrier(2, timeout=LIMIT_S)
    ended: list[threading.Thread] = []

    def fail(clients: int) -> None:
        both.wait()
        if clients == failing:
            raise ValueError("one of two")
        # The other is told to end, and takes its time.
        assert engine._stop.wait(LIMIT_S)
        time.sleep(0.2)
        ended.append(threading.current_thread())

    object.__setattr__(model, "then", fail)
    with pytest.raises(ValueError, match="one of two"):
        train(engine, loop)
    assert len(ended) == 1
    object.__setattr__(model, "then", lambda clients: None)
    train(engine, loop)


def test_a_round_has_one_thread_but_for_its_public_map(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: dict[str, int] = {}

    def noting(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def noted(*args: object) -> object:
            kernels[name] = torch.get_num_threads()
            return function(*args)

        return noted

    for name in ("measure", "tested"):
        monkeypatch.setattr(round_loop, name, noting(name, getattr(round_loop, name)))
    for name in ("uploads", "log_probabilities"):
        monkeypatch.setattr(PublicStack, name, noting(name, getattr(PublicStack, name)))
    with threads(3):
        map_ = {"name": "random", "first": 8, "second": 4}
        loop = RoundLoop([tiny(clients=2, public=map_, checkpoint=1)], mnist, CPU)
        with threads(2):
            state, _ = loop.advance(loop.start())
            assert kernels == {"measure": 1, "tested": 1, "uploads": 3, "log_probabilities": 3}
            kernels.clear()
            loop.silhouettes(state)
            assert kernels == {"tested": 1}
            assert torch.get_num_threads() == 2
