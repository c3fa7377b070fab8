"""Runs with a public map: what they keep over an interruption, and the classifiers they leave."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrfq import experiment
from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.public.classifier_file import CLASSIFIERS, load_classifier, save_classifiers
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session
from support.command import CPU, SMALL, assert_same_run, fedrfq, only_run, sets

PUBLIC = [
    *SMALL,
    "rounds=4",
    "method.name=local",
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "committee.name=simulated",
]
COUNTS = {"weight": (2, 3, 4), "bias": (2, 4), "temperature": (2,), "held": (2, 4)}


@pytest.fixture(scope="module")
def finished(_data_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with a public map that was never interrupted."""
    out = tmp_path_factory.mktemp("finished")
    fedrfq("run", *sets(PUBLIC), "--out", out)
    return only_run(out).path


def test_a_resumed_run_ends_as_if_never_stopped(tmp_path: Path, finished: Path) -> None:
    """The statistics are exchanged in round 1 alone: from there on only the checkpoint has them."""
    session = Session.begin([experiment.load(sets=PUBLIC)], CPU, tmp_path)
    for outcomes in session.advance():
        if outcomes[0].record.round == 3:
            break
    session.close()
    path = session.runs[0].path
    (number,) = RunDirectory.open(path).checkpoints()
    assert number == 2
    fedrfq("resume", path)
    assert_same_run(path, finished)
    assert (path / CLASSIFIERS).read_bytes() == (finished / CLASSIFIERS).read_bytes()
    assert RunDirectory.open(path).last(CPU).public[0] is not None


def test_a_run_is_verified_with_its_statistics(finished: Path) -> None:
    assert "recomputed" in fedrfq("verify", finished, "--recompute").stdout


def test_the_result_is_of_the_combined_prediction(finished: Path) -> None:
    result = json.loads((finished / "result.json").read_text())
    assert result["accuracy_unheld"] > 50
    assert result["accuracy_all"] > result["head_accuracy_all"]


def test_every_client_has_its_classifier(finished: Path) -> None:
    for client in range(6):
        found = load_classifier(finished, client)
        assert found is not None
        made, held_J = found
        assert made.weight_VJ.shape == (64, 10)
        assert 0 < held_J.sum() < 10
    with pytest.raises(UserError, match="has no client 6"):
        load_classifier(finished, 6)


def test_a_run_without_a_map_has_none(whole: Path) -> None:
    assert not (whole / CLASSIFIERS).exists()
    assert load_classifier(whole, 0) is None


def test_a_last_round_of_statistics_leaves_the_global_prototypes(tmp_path: Path) -> None:
    """Of two runs in one stack, one sends prototypes in the last round and one statistics."""
    settings = [setting for setting in PUBLIC if not setting.startswith("method.name")]
    again = [*settings, "rounds=3", "method.name=fedproto", "committee.name=direct"]
    experiments = [experiment.load(sets=[*again, f"public.every={every}"]) for every in (0, 2)]
    session = Session.begin(experiments, CPU, tmp_path)
    for _ in session.advance():
        pass
    session.finish()
    session.close()
    sent = []
    for run in session.runs:
        named, _ = tensors.load(run.path / "prototypes.safetensors", 1 << 26)
        assert named["globals/present"].any()
        sent.append(len(named["values"]) > 0)
    assert sent == [True, False]


def _some() -> dict[str, Tensor]:
    """Return the tensors of two clients' classifiers: three values, four classes."""
    named = {name: torch.ones(shape) for name, shape in COUNTS.items()}
    return named | {"held": torch.ones(COUNTS["held"]).bool()}


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    weight_VJ = torch.arange(12.0).view(3, 4).double()
    made = PublicClassifier(weight_VJ, torch.arange(4.0).double(), 0.5)
    held_KJ = torch.tensor([[True, False, False, True]])
    save_classifiers(tmp_path, [made], held_KJ)
    found = load_classifier(tmp_path, 0)
    assert found is not None
    z_NV = torch.eye(3)
    assert torch.equal(found[0].log_probabilities(z_NV), made.log_probabilities(z_NV))
    assert torch.equal(found[1], held_KJ[0])


HOSTILE: dict[str, dict[str, Any]] = {
    "missing": {"held": None},
    "unknown": {"more": torch.ones(1)},
    "type": {"held": torch.ones(2, 4)},
    "dimensions": {"bias": torch.ones(2, 4, 1)},
    "classes": {"bias": torch.ones(2, 5)},
    "clients": {"temperature": torch.ones(3)},
    "nan": {"weight": torch.full((2, 3, 4), torch.nan)},
    "infinite": {"bias": torch.full((2, 4), torch.inf)},
    "cold": {"temperature": torch.zeros(2)},
    "negative": {"temperature": -torch.ones(2)},
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_file_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    named = {name: tensor for name, tensor in (_some() | change).items() if tensor is not None}
    tensors.save(tmp_path / CLASSIFIERS, named, {})
    with pytest.raises(UserError, match="does not have the classifiers of"):
        load_classifier(tmp_path, 0)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"\xff" * 16])
def test_a_file_that_is_no_tensors_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / CLASSIFIERS).write_bytes(content)
    with pytest.raises(UserError, match=CLASSIFIERS):
        load_classifier(tmp_path, 0)
