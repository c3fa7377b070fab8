"""Studies from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrfq


@pytest.fixture
def study() -> dict[str, Any]:
    return {
        "name": "mine",
        "controls": False,
        "tune": [],
        "experiment": {
            "clients": 3,
            "rounds": 1,
            "model": {"name": "mlp"},
            "partition": {"shots": 6, "test_shots": 4},
        },
        "axes": {"method": ["local", "fedproto"]},
    }


def test_a_comparison_is_a_table_and_is_carried_out_once(
    tmp_path: Path, study: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = fedrfq.compare(study, "cpu", tmp_path, progress=True)
    assert "fedproto × 1" in capsys.readouterr().out
    assert list(found.table["method"]) == ["local", "fedproto"]
    assert found.table["own_mean"].between(0, 100).all()
    assert "| fedproto |" in repr(found)
    made = "`fedrfq.compare in Python`; revision"
    assert made in repr(found)
    assert made in (found.path / "table.md").read_text()
    runs = sorted(tmp_path.glob("mine/*/result.json"))
    assert len(runs) == 2
    assert fedrfq.compare(study, "cpu", tmp_path).table.equals(found.table)
    assert capsys.readouterr().out == ""
    assert sorted(tmp_path.glob("mine/*/result.json")) == runs


def test_a_comparison_says_what_noise_costs_each_method(
    tmp_path: Path, study: dict[str, Any]
) -> None:
    study["experiment"] |= {"public": {"name": "random"}, "privacy": {"noise": 2.0}}
    said = repr(fedrfq.compare(study, "cpu", tmp_path))
    assert "Privacy of local: ε = 1.993 at δ = 1e-05 after 1 uploads, per sample." in said
    assert "Privacy of fedproto: no ε: method 'fedproto' uploads prototypes" in said


def small_net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 8), torch.nn.Linear(8, 3))


def test_all_runs_of_a_study_have_the_given_data_and_model(
    tmp_path: Path, study: dict[str, Any]
) -> None:
    images = np.random.default_rng(0).integers(0, 255, (90, 8, 8), np.uint8)
    data = fedrfq.Dataset.from_arrays(images, np.arange(90) % 3)
    study["experiment"]["partition"] = {"ways": 2, "shots": 6, "test_shots": 4}
    found = fedrfq.compare(study, "cpu", tmp_path, data=data, model=small_net)
    assert list(found.table["method"]) == ["local", "fedproto"]
    runs = [file.parent for file in sorted(tmp_path.glob("mine/*/result.json"))]
    for run in (fedrfq.resume(path, data=data, model=small_net) for path in runs):
        assert run.experiment.data.name == data.source
        assert isinstance(run.models[0], torch.nn.Module)


def test_a_run_without_its_models_says_how_to_train_them_again(
    tmp_path: Path, study: dict[str, Any]
) -> None:
    fedrfq.compare(study, "cpu", tmp_path)
    run = fedrfq.resume(next(tmp_path.glob("mine/*/result.json")).parent)
    run.directory.prune(-1)
    with pytest.raises(fedrfq.UserError, match="models were not kept: train them again with"):
        run.models[0]
