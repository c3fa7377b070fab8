"""The plugins in examples/plugins: written from outside by the guide, and each one works."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

import fedrfq
from fedrfq.api.contracts import check_plugin
from fedrfq.data import Dataset, get, load
from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.rules import RULES
from support.judging import sent
from support.paths import ROOT
from support.small import run, tiny

pytestmark = pytest.mark.usefixtures("apart")

EXAMPLES = ROOT / "examples" / "plugins"
MLP = {"name": "mlp", "width": 20}


def load_example(name: str) -> None:
    fedrfq.load_plugin(EXAMPLES / name)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_each_keeps_its_contract(path: Path) -> None:
    assert [finding for finding in check_plugin(path) if not finding.holds] == []


def test_a_new_method_takes_at_most_40_lines(mnist: Dataset) -> None:
    load_example("pull.py")
    assert len((EXAMPLES / "pull.py").read_text().splitlines()) <= 40
    _, (_, (second,)) = run([tiny(method={"name": "pull"}, model=MLP)], mnist, 2)
    assert second.record.loss > second.record.loss_classification > 0


def test_a_server_keeps_state_and_is_trusted_alone(mnist: Dataset) -> None:
    load_example("apart.py")
    experiment = tiny(method={"name": "apart"}, model=MLP)
    state, (_, second) = run([experiment], mnist, 2)
    assert torch.isfinite(state.server[0]["prototypes"]).all()
    assert state.globals_[0].present_J.any()
    assert (second[0].record.loss_prototype or 0) > 0
    with pytest.raises(UserError, match="trains one trusted server"):
        tiny(method={"name": "apart"}, committee={"name": "simulated"})


def test_an_attack_drifts_and_remembers(mnist: Dataset) -> None:
    load_example("creep.py")
    attack = {"name": "creep", "clients": 1, "strength": 0.1}
    state, _ = run([tiny(attack=attack, model=MLP)], mnist, 3)
    assert int(state.attack[0]["steps"]) == 3


def test_the_geometric_median_is_found_and_refused_for_a_committee() -> None:
    """Of (0,0), (0,0), (9,0) it is the point that has two of three; the mean is (3,0)."""
    load_example("geometric_median.py")
    uploads = sent(
        np.array([[[0, 0]], [[0, 0]], [[9000, 0]]]), np.ones((3, 1), np.int64), [0, 1, 2]
    )
    weight_KJ = np.full((3, 1), 1024, np.int64)
    state, centres_JV = RULES["geometric-median"].combine(
        {}, Globals.none(1, 2), uploads, weight_KJ
    )
    assert (state, np.abs(centres_JV).max() <= 1) == ({}, True)
    method = {"name": "fedproto", "aggregate": "geometric-median"}
    (row,) = tiny(method=method).table()["plugins"]
    assert row["name"] == "geometric_median.py"
    with pytest.raises(UserError, match="the rule GeometricMedian does not say that it is exact"):
        tiny(method=method, committee={"name": "simulated"})


def test_fashion_mnist_is_read_from_its_files_and_loaded_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "data"))
    load_example("fashion_mnist.py")
    for part, number in (("train", 20), ("t10k", 10)):
        images = bytes((0, 0, 8, 3)) + b"".join(
            size.to_bytes(4, "big") for size in (number, 28, 28)
        )
        labels = bytes((0, 0, 8, 1)) + number.to_bytes(4, "big")
        pixels = bytes(i % 251 for i in range(number * 28 * 28))
        packed = gzip.compress(images + pixels)
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(packed)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(
            labels + bytes(i % 10 for i in range(number))
        )
    get("fashion-mnist", tmp_path, progress=False)
    dataset = load("fashion-mnist")
    assert (len(dataset.train_y), len(dataset.test_y), dataset.shape) == (20, 10, (1, 28, 28))
    assert dataset.classes[0] == "T-shirt"
    assert fedrfq.load(sets=["data.name=fashion-mnist"]).name == "fashion-mnist-fedrfq"


def test_a_small_resnet_trains_all_clients_as_each_alone(mnist: Dataset) -> None:
    load_example("small_resnet.py")
    model = {"name": "small-resnet", "width": 8}
    experiments = [tiny(seed=seed, model=model) for seed in (0, 1)]
    together, _ = run(experiments, mnist, 1)
    alone, ((outcome,),) = run(experiments[1:], mnist, 1)
    assert outcome.record.loss > 0
    for name, p in alone.params[0].items():
        torch.testing.assert_close(together.params[0][name][6:], p, rtol=1e-3, atol=1e-4)
