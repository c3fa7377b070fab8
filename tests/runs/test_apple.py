"""Runs on an Apple GPU, as far as they can be tried without one: nothing there is of float64.

No such GPU has been tried: which kernels PyTorch has for it, and how they round, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrfq
from fedrfq.errors import UserError
from fedrfq.models.model import keep_factors
from fedrfq.runs.session import pick_device
from support.apple import Apple
from support.small import TINY

UNTESTED = pytest.warns(UserWarning, match="--device mps is untested")


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[Apple]:
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    with Apple() as there:
        yield there


@pytest.mark.parametrize(
    "settings",
    [{"public": {"name": "random"}}, {"method": {"name": "fesem"}, "model": {"name": "mlp"}}],
)
def test_a_run_is_the_same_as_on_the_cpu_and_goes_on_after_a_stop(
    settings: dict[str, Any], tmp_path: Path, apple: Apple
) -> None:
    table = {**TINY, "rounds": 2, **settings}
    with UNTESTED:
        run = fedrfq.run(table, "mps", tmp_path)
    next(iter(run))
    assert apple.calls > 100
    with UNTESTED:
        result = fedrfq.resume(run.path, "mps").finish()
    expected = fedrfq.run(table, "cpu", tmp_path).finish()
    assert result
    assert expected
    assert run.environment["device_type"] == "mps"
    for name in ("accuracy_mean", "accuracy_all", "silhouette", "prototype_failure"):
        assert result[name] == pytest.approx(expected[name], abs=0.1)


def test_dropout_is_drawn_there_too(apple: Apple) -> None:
    chances = torch.tensor([0.1, 0.9])
    there = keep_factors([(0.2, 2)], chances.to("mps")).cpu()
    assert torch.equal(there, keep_factors([(0.2, 2)], chances))


def test_noise_is_refused_where_there_is_no_float64(tmp_path: Path, apple: Apple) -> None:
    noise = {"train": {"dp_noise": 1.0}, "method": {"name": "fedavg"}}
    with pytest.raises(UserError, match="which mps does not know: use --device cpu"), UNTESTED:
        fedrfq.run({**TINY, **noise}, "mps", tmp_path)


def test_it_is_refused_where_there_is_none() -> None:
    with pytest.raises(UserError, match="finds no Apple GPU here; use --device cpu"):
        pick_device("mps")
