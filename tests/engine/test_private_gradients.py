"""DP-SGD: what one sample can change is bounded, who is drawn is Poisson, and there is noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrfq import experiment
from fedrfq.engine import private_gradients as gradients
from fedrfq.engine.engine import Engine
from fedrfq.engine.poisson_schedule import poisson_schedule
from fedrfq.engine.private_gradients import LENGTH, clipped_sums
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.privacy.rounded_gaussian import rounded_gaussian
from support.command import CPU

DP = TrainingOptions(batch_size=8, lr=0.1, momentum=0.0, dp_noise=1.0, dp_clip=0.5, dp_rate=0.25)
SETS = ["clients=3", "rounds=1", "partition.shots=8", "partition.test_shots=2"]


@pytest.fixture(scope="module")
def loop(_data_folder: None) -> RoundLoop:
    private = ["train.dp_noise=1.0", "train.dp_rate=0.25", "method.name=fedavg"]
    made = experiment.load(sets=[*SETS, *private])
    return RoundLoop([made], made.data.load(), CPU)


def trained(loop: RoundLoop, options: TrainingOptions) -> dict[str, torch.Tensor]:
    """Return the clients' parameters after a round with these options."""
    engine = loop.engines[0]
    state = loop.start()
    program = replace(engine.program, train=options)
    fresh = Engine(program, engine.shares, engine.tests)
    guide = loop.guide(state, loop.cohorts[0], state.params[0])
    return fresh.train(state.params[0], guide, loop.keys(1, loop.cohorts[0]), range(3))[0]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.floats(-8, 8), st.integers(1, 6), st.integers(1, 40))
def test_one_sample_changes_the_sum_by_the_clip_at_most(
    seed: int, magnitude: float, samples: int, values: int
) -> None:
    """Whatever its gradient is, and over all layers together."""
    rng = np.random.default_rng(seed)
    scale = 10.0**magnitude
    layers = [
        torch.from_numpy(rng.standard_normal((samples, values)) * scale).float(),
        torch.from_numpy(rng.standard_normal((samples, 2, 3)) * scale).float(),
    ]
    with_all = clipped_sums(layers, torch.ones(1, samples), DP)
    without = torch.ones(1, samples)
    without[0, -1] = 0
    pairs = zip(with_all, clipped_sums(layers, without, DP), strict=True)
    change = torch.cat([(a - b).flatten() for a, b in pairs])
    assert (change == change.round()).all()
    assert sum(int(value) ** 2 for value in change) <= LENGTH**2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e38])
def test_a_gradient_that_is_no_number_does_not_spoil_the_sum(bad: float) -> None:
    (total,) = clipped_sums([torch.tensor([[0.25, 0.0], [bad, bad]])], torch.ones(1, 2), DP)
    assert total.isfinite().all()
    assert total.norm() <= 2 * LENGTH


def test_short_gradients_are_as_they_are() -> None:
    (total,) = clipped_sums([torch.tensor([[0.25, -0.125]])], torch.ones(1, 1), DP)
    assert (total * DP.dp_clip / LENGTH).tolist() == [[0.25, -0.125]]


def test_it_is_plain_training_where_nothing_is_clipped_and_there_is_no_noise(
    loop: RoundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every sample in every step is one step of SGD over all of them: the same gradients."""
    monkeypatch.setattr(gradients, "rounded_gaussian", lambda sigma, size: np.zeros(size))
    monkeypatch.setattr(type(loop.engines[0].program.model), "drops", lambda self: ())
    counts = loop.engines[0].shares.counts
    plain = TrainingOptions(batch_size=max(counts), lr=0.1, momentum=0.0)
    private = replace(plain, batch_size=1, dp_noise=1.0, dp_rate=1.0, dp_clip=32.0)
    before = loop.start().params[0]
    ours = trained(loop, private)
    for name, expected in trained(loop, plain).items():
        # It is divided by what is public, and not by the number of samples.
        moved = (ours[name] - before[name]) / torch.tensor(counts).view(
            -1, *[1] * (expected.dim() - 1)
        )
        assert torch.allclose(moved, expected - before[name], atol=2e-5)


def test_noise_is_in_every_value_and_no_seed_repeats_it(loop: RoundLoop) -> None:
    first = trained(loop, DP)
    second = trained(loop, DP)
    start = loop.start().params[0]
    for name, p in first.items():
        assert (p != start[name]).float().mean() > 0.99
        assert (p != second[name]).float().mean() > 0.99


def test_noise_is_as_large_as_it_says(loop: RoundLoop) -> None:
    """Gradients are clipped to next to nothing, so that noise is all that is left."""
    options = replace(DP, dp_rate=1.0, dp_noise=50.0)
    start = loop.start().params[0]
    moved = torch.cat([(p - start[n]).flatten() for n, p in trained(loop, options).items()])
    expected = options.lr * options.dp_noise * options.dp_clip / options.batch_size
    assert float(moved.std()) == pytest.approx(expected, rel=0.03)


def test_rounded_noise_is_gaussian() -> None:
    drawn = rounded_gaussian(1000.0, 100_001)
    assert len(drawn) == 100_001
    assert (drawn == np.rint(drawn)).all()
    assert abs(drawn.mean()) < 20
    assert drawn.std() == pytest.approx(1000, rel=0.02)
    assert np.mean(np.abs(drawn) > 1960) == pytest.approx(0.05, abs=0.005)


def test_who_is_drawn_is_poisson(loop: RoundLoop) -> None:
    """Each sample by itself with the chance that was set: batches differ in size, none is cut."""
    engine = loop.engines[0]
    options = replace(DP, dp_rate=0.01, epochs=20)
    program = replace(engine.program, train=options)
    made = poisson_schedule(program, engine.shares, [0, 1, 2])
    steps = made.weight_SKB.shape[0]
    assert steps == options.steps(20) == 2000
    for k, count in enumerate(engine.shares.counts):
        sizes = made.weight_SKB[:, k].sum(1)
        assert float(sizes.mean()) == pytest.approx(0.01 * count, rel=0.6)
        assert float(sizes.var()) == pytest.approx(0.01 * 0.99 * count, rel=0.6)
        own = engine.shares.index_KN[k, :count]
        real = made.index_SKB[:, k][made.weight_SKB[:, k] > 0]
        times = (real[:, None] == own).sum(0)
        assert int(times.sum()) == len(real)
        # No sample is favoured: 20 on average each, and none is farther off than 6 deviations.
        assert ((times - 20).abs() < 27).all()


def test_nobody_else_can_tell_who_was_drawn(loop: RoundLoop) -> None:
    """The coins are not the seed's: two schedules of one round differ."""
    engine = loop.engines[0]
    program = Program(
        engine.program.model, engine.program.method, engine.program.pool, replace(DP, dp_rate=0.5)
    )
    first, second = (poisson_schedule(program, engine.shares, [0]) for _ in range(2))
    assert first.weight_SKB.shape != second.weight_SKB.shape or not torch.equal(
        first.index_SKB, second.index_SKB
    )


def test_memory_is_bounded_without_a_change(
    loop: RoundLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few samples at a time have the same sum as all at once: whole numbers add up exactly."""
    monkeypatch.setattr(gradients, "rounded_gaussian", lambda sigma, size: np.zeros(size))
    monkeypatch.setattr(type(loop.engines[0].program.model), "drops", lambda self: ())
    options = replace(DP, dp_rate=1.0)
    at_once = trained(loop, options)
    monkeypatch.setattr(gradients, "_VALUES", 1)
    for name, p in trained(loop, options).items():
        assert torch.allclose(p, at_once[name], atol=1e-6)
