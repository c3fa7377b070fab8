"""Clusters of prototypes compared with their classes: by hand, and of small runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.paper.clusters import Clustered, clustered
from fedrfq.paper.failures import FailuresPlan, needed, prototypes
from fedrfq.studies.grid import EndedRun, Grid
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.study import Study
from support.command import fedrfq
from support.small import CPU, TINY
from support.studies import study_of

TABLE: dict[str, Any] = {
    "experiment": {**TINY, "rounds": 1, "data": {"name": "mnist5k"}},
    "axes": {
        "dataset": {"small": {}, "cifar10": {"data": {"name": "cifar10"}}},
        "method": {
            "fedproto": {"method": {"name": "fedproto"}},
            "fedrfq": {"method": {"name": "fedrfq"}},
        },
    },
}


def by_hand() -> Clustered:
    """Return six samples of class 3 and four of class 7, of which one and two are misplaced."""
    y_N = np.array([3] * 6 + [7] * 4)
    cluster_N = np.array([0] * 5 + [1] + [0] * 2 + [1] * 2)
    return Clustered(np.zeros((10, 2)), y_N, cluster_N, np.array([3, 7]))


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Grid:
    found = Grid(
        FailuresPlan.of(study_of("failures", TABLE, seeds=2)).experiments,
        tmp_path_factory.mktemp("runs"),
        CPU,
        200,
        keep=True,
    )
    for _ in found.advance():
        pass
    return found


@pytest.fixture(scope="module")
def shown(grid: Grid, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    told: list[float] = []
    plan = FailuresPlan.of(study_of("failures", TABLE, seeds=2))
    found = plan.show(
        grid.ended, tmp_path_factory.mktemp("shown"), CPU, lambda share, words: told.append(share)
    )
    assert told == [0, 0.25, 0.5, 0.75]
    return found


def test_counts_purity_and_confused_pairs_by_hand() -> None:
    found = by_hand()
    assert found.counts().tolist() == [[5, 2], [1, 2]]
    assert found.majority().tolist() == [3, 7]
    assert found.purity() == 0.7
    assert [(pair.first, pair.second, pair.share) for pair in found.confused(3)] == [(3, 7, 0.3)]
    assert found.adjusted_rand() == adjusted_rand_score(found.y_N, found.cluster_N)


def test_the_most_confused_come_first_and_those_that_are_not_confused_never() -> None:
    y_N = np.repeat([0, 1, 2, 3], 10)
    cluster_N = y_N.copy()
    cluster_N[[0, 20, 21, 22]] = [1, 3, 3, 3]
    found = Clustered(np.zeros((40, 2)), y_N, cluster_N, np.arange(4))
    assert [(pair.first, pair.second) for pair in found.confused(3)] == [(2, 3), (0, 1)]
    assert len(found.confused(1)) == 1


def test_well_separated_classes_are_their_own_clusters_in_order() -> None:
    rng = np.random.default_rng(0)
    y_N = np.repeat([4, 1, 8], 30)
    vectors = rng.standard_normal((90, 5)) + 20 * y_N[:, None]
    found = clustered(vectors, y_N, 0)
    assert found.classes.tolist() == found.majority().tolist() == [1, 4, 8]
    assert found.counts().tolist() == (30 * np.eye(3, dtype=int)).tolist()
    assert (found.purity(), found.adjusted_rand(), found.confused(3)) == (1, 1, [])
    assert found.flat().shape == (90, 2)
    assert np.corrcoef(found.flat()[:, 0], y_N)[0, 1] ** 2 > 0.9


def test_clusters_follow_from_the_seed() -> None:
    vectors = np.random.default_rng(0).standard_normal((200, 5))
    y_N = np.arange(200) % 8
    assert np.array_equal(
        clustered(vectors, y_N, 0).cluster_N, clustered(vectors, y_N, 0).cluster_N
    )
    assert not np.array_equal(
        clustered(vectors, y_N, 0).cluster_N, clustered(vectors, y_N, 1).cluster_N
    )


def test_prototypes_are_those_of_the_last_round_s_models_pooled(grid: Grid, mnist: Dataset) -> None:
    ended = next(e for e in grid.ended.values() if e.run.experiment().pool.name == "softpool")
    found = prototypes(ended, 0, CPU)
    experiment = ended.run.experiment()
    loop = RoundLoop([experiment], mnist, CPU)
    state, _ = loop.advance(loop.start())
    p_NV, _, y_N = loop._test(state.params).vectors()
    assert found.y_N.tolist() == y_N.tolist()
    assert found.vectors_NV.shape == (len(y_N), 24)
    assert torch.allclose(torch.from_numpy(found.vectors_NV).float(), p_NV, atol=1e-3)


def test_a_row_for_each_run_with_what_its_record_says(grid: Grid, shown: StudyResult) -> None:
    assert [(row["dataset"], row["method"], row["seed"]) for row in shown.rows] == [
        ("small", method, seed) for method in ("fedproto", "fedrfq") for seed in (0, 1)
    ]
    last = [ended.run.rounds()[-1] for ended in grid.ended.values()]
    assert {row["prototype_failure"] for row in shown.rows} == {
        100 * (r.prototype_failure or 0) for r in last
    }
    assert {row["prototype_accuracy"] for row in shown.rows} == {
        r.prototype_accuracy_mean for r in last
    }
    assert all(
        0 < row["purity"] <= 100 and row["classes"] <= 10 and row["confused"].count("/") <= 3
        for row in shown.rows
    )
    assert all(len(row["confused"].split(", ")) == 3 for row in shown.rows)


def test_a_line_for_each_method_and_their_differences(shown: StudyResult) -> None:
    lines, differences = shown.sheets
    assert [row[:3] for row in lines.rows] == [("small", "fedproto", "2"), ("small", "fedrfq", "2")]
    assert [row[:2] for row in differences.rows] == [("small", "fedrfq − fedproto")]
    mean = [
        np.mean([row["purity"] for row in shown.rows if row["method"] == m])
        for m in ("fedproto", "fedrfq")
    ]
    assert differences.rows[0][2].startswith(f"{mean[1] - mean[0]:+.1f} ±")
    assert lines.rows[0][5].startswith(f"{mean[0]:.1f} ±")
    assert lines.rows[0][-1] == shown.rows[0]["confused"]


def test_a_picture_for_each_dataset_and_the_counts_of_the_first_seed(shown: StudyResult) -> None:
    assert [path.name for path in shown.pictures] == ["failures-small.png"]
    assert shown.pictures[0].read_bytes().startswith(b"\x89PNG")
    assert [(one["dataset"], one["method"]) for one in shown.whole["clusters"]] == [
        ("small", "fedproto"),
        ("small", "fedrfq"),
    ]
    assert np.sum(shown.whole["clusters"][0]["counts"]) == shown.rows[0]["samples"]


def test_data_that_are_not_there_are_left_out_and_it_says_so(shown: StudyResult) -> None:
    plan = FailuresPlan.of(study_of("failures", TABLE))
    assert plan.keep
    assert {experiment.data.name for experiment in plan.experiments} == {"mnist5k"}
    assert (
        "cifar10 is left out: `fedrfq data get cifar10` downloads its samples."
        in shown.sheets[0].note
    )
    assert shown.whole["left_out"] == plan.missing
    with pytest.raises(UserError, match="fedrfq data get cifar10"):
        FailuresPlan.of(study_of("failures", {**TABLE, "only": {"dataset": ["cifar10"]}}))


def test_weights_that_are_not_there_are_asked_for() -> None:
    model = {"name": "resnet18", "weights": "imagenet"}
    assert "data get resnet18" in needed(from_table({"data": {"name": "mnist5k"}, "model": model}))
    assert not needed(from_table({"data": {"name": "mnist5k"}, "model": {"name": "resnet18"}}))
    assert not needed(from_table({"data": {"name": "mnist5k"}}))


def test_what_is_made_on_first_use_is_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path))
    assert not needed(from_table({"data": {"name": "mnist5k"}}))
    assert "data get mnist`" in needed(from_table({"data": {"name": "mnist"}}))


def test_runs_that_diverged_do_not_count(grid: Grid, tmp_path: Path) -> None:
    plan = FailuresPlan.of(study_of("failures", TABLE, seeds=2))
    gone = plan.axes.experiments[("small", "fedproto"), 1].hash()
    ended = {
        key: EndedRun(run.run, "too large" if key == gone else None)
        for key, run in grid.ended.items()
    }
    found = plan.show(ended, tmp_path, CPU, lambda share, words: None)
    assert len(found.rows) == 3
    assert "Runs that diverged and do not count: 1." in found.sheets[0].note
    assert "±" not in found.sheets[1].rows[0][2]
    with pytest.raises(UserError, match="every run diverged"):
        plan.show(
            {key: EndedRun(run.run, "gone") for key, run in grid.ended.items()},
            tmp_path,
            CPU,
            lambda share, words: None,
        )


def test_one_method_alone_has_no_differences(grid: Grid, tmp_path: Path) -> None:
    table = {**TABLE, "only": {"method": ["fedrfq"]}}
    plan = FailuresPlan.of(study_of("failures", table, seeds=2))
    assert len(plan.show(grid.ended, tmp_path, CPU, lambda share, words: None).sheets) == 1


def test_the_command_keeps_the_models_that_it_needs(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(
        'kind = "failures"\n[experiment]\nrounds = 1\nclients = 4\n'
        "partition = {ways = 2, spread = 0, shots = 5, test_shots = 5}\n"
        "[axes.dataset.mnist5k]\n[axes.method.fedproto]\n"
    )
    done = fedrfq("reproduce", file, "--out", tmp_path, "--device", "cpu")
    assert "failures-mnist5k.png" in done.stdout
    assert "nor that between reruns" in done.stdout


def test_the_studies_axes_are_checked() -> None:
    with pytest.raises(UserError, match="dataset and method"):
        FailuresPlan.of(
            study_of("failures", {**TABLE, "axes": {"method": TABLE["axes"]["method"]}})
        )
    with pytest.raises(UserError, match="unknown key"):
        FailuresPlan.of(replace(study_of("failures", {**TABLE, "axis": {}})))


def test_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.paper.failures.needed", lambda experiment: "")
    plan = FailuresPlan.of(Study.load("failures"))
    assert {(labels, e.rounds) for (labels, _), e in plan.axes.experiments.items()} == {
        ((dataset, method), rounds)
        for dataset, rounds in (("mnist", 100), ("femnist", 120), ("cifar10", 110))
        for method in ("fedproto", "fedrfq")
    }
    cifar = plan.axes.experiments[("cifar10", "fedrfq"), 0]
    assert (cifar.method.lam, cifar.train.batch_size, cifar.model.weights) == (0.1, 32, "imagenet")  # type: ignore[attr-defined]
    quick = FailuresPlan.of(Study.load("failures", quick=True))
    assert [(e.data.name, e.rounds) for e in quick.experiments] == [("mnist5k", 10)] * 2
