"""On a GPU: the results of the CPU, through captured graphs too, and the same bytes every time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrfq import experiment
from fedrfq.data import Dataset, load
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.methods import METHODS
from fedrfq.runs.session import Session, pick_device

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

SMALL = ["clients=6", "rounds=4", "checkpoint=2", "partition.shots=8", "partition.test_shots=5"]


def coloured() -> Dataset:
    """Small random pictures in colour, with labels that can be learnt from their brightness."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 60)
    x = rng.integers(0, 120, (240, 3, 32, 32)) + 40 * y[:, None, None, None] % 256
    half = (0.5, 0.5, 0.5)
    return Dataset(
        "coloured",
        x.astype(np.uint8),
        y,
        x[::4].astype(np.uint8),
        y[::4],
        tuple("abcd"),
        half,
        half,
        "0",
    )


def after(dataset: Dataset, settings: list[str], device: str, rounds: int, double: bool = False):
    """Run some rounds; in float64, rounding stays far below what a wrong step changes."""
    loop = RoundLoop([experiment.load(sets=settings)], dataset, torch.device(device))
    state = loop.start()
    if double:
        for engine in loop.engines:
            engine.shares, engine.tests = (
                replace(own, x=own.x.double()) for own in (engine.shares, engine.tests)
            )
        common = loop.common.tests
        loop.common = replace(loop.common, tests=replace(common, x=common.x.double()))
        params = tuple({name: p.double() for name, p in own.items()} for own in state.params)
        state = replace(
            state, params=params, centres={name: p.double() for name, p in state.centres.items()}
        )
    for _ in range(rounds):
        state, outcomes = loop.advance(state)
    return loop, state, outcomes[0].record


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["cnn", "mlp"])
def test_cuda_trains_as_the_cpu_does(method, model):
    """Two rounds of unequal clients: the second runs on graphs."""
    settings = [*SMALL, f"method.name={method}", f"model.name={model}", "train.epochs=2"]
    (_, cpu, left), (loop, cuda, right) = (
        after(load("mnist5k"), settings, device, 2, double=True) for device in ("cpu", "cuda")
    )
    assert loop.engines[0]._shards[0].graphs, "no step was captured"
    for name, p in cpu.params[0].items():
        torch.testing.assert_close(cuda.params[0][name].cpu(), p, rtol=1e-5, atol=1e-6)
    assert right.loss == pytest.approx(left.loss, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_cuda_trains_resnets_as_the_cpu_does(method):
    """In float64 and batches of 16: in batches of 4, BatchNorm multiplies rounding by 400."""
    settings = [
        *SMALL,
        f"method.name={method}",
        "model.name=resnet18",
        "data.augment=true",
        "train.lr=0.001",
    ]
    settings += [
        "partition.ways=2",
        "partition.spread=1",
        "partition.share=true",
        "partition.shots=12",
    ]
    settings += ["train.epochs=2", "train.batch_size=16"]
    trained = []
    for device in ("cpu", "cuda"):
        loop = RoundLoop([experiment.load(sets=settings)], coloured(), torch.device(device))
        (engine,) = loop.engines
        state = loop.start()
        engine.shares = replace(engine.shares, x=engine.shares.x.double())
        params = {name: p.double() for name, p in state.params[0].items()}
        guide = loop.guide(state, loop.cohorts[0], params)
        for number in (1, 2):
            params, losses = engine.train(
                params, guide, loop.keys(number, loop.cohorts[0]), range(6)
            )
        trained.append((params, losses))
    assert engine._shards[0].graphs, "no step was captured"
    for name, p in trained[0][0].items():
        torch.testing.assert_close(trained[1][0][name].cpu(), p, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(trained[1][1], trained[0][1], rtol=1e-4, atol=1e-5)


def test_stacked_seeds_train_as_alone():
    experiments = [experiment.load(sets=SMALL, seed=seed) for seed in (0, 1, 2)]
    together = RoundLoop(experiments, load("mnist5k"), torch.device("cuda"))
    state = together.advance(together.advance(together.start())[0])[0]
    _, alone, _ = after(load("mnist5k"), [*SMALL, "seed=1"], "cuda", 2)
    for name, p in alone.params[0].items():
        torch.testing.assert_close(state.params[0][name][6:12], p, rtol=1e-3, atol=1e-4)


def test_participation_keeps_its_graphs():
    loop, _, record = after(load("mnist5k"), [*SMALL, "participation=0.5"], "cuda", 4)
    assert record.participants == 3
    assert loop.engines[0]._shards[0].graphs


def test_deterministic_run_resumes_to_the_same_bytes(tmp_path):
    device = pick_device("cuda", deterministic=True)
    try:
        whole = Session.begin([experiment.load(sets=SMALL)], device, tmp_path / "whole")
        list(whole.advance())
        stopped = Session.begin([experiment.load(sets=SMALL)], device, tmp_path / "stopped")
        next(stopped.advance())
        next(stopped.advance())
        stopped.close()
        resumed = Session.resume(stopped.runs[0].path, device)
        list(resumed.advance())
    finally:
        torch.use_deterministic_algorithms(False)
    for name, p in whole.state.params[0].items():
        assert torch.equal(resumed.state.params[0][name], p), name
    np.testing.assert_array_equal(
        resumed.state.globals_[0].values_JV, whole.state.globals_[0].values_JV
    )
