"""Runs on data that were given as Python objects: recorded by hash, resumed with the same again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fedrfq
from fedrfq.data import Dataset
from support.command import fedrfq as command

SMALL: dict[str, Any] = {
    "clients": 3,
    "rounds": 2,
    "checkpoint": 1,
    "model": {"name": "mlp"},
    "partition": {"name": "iid", "samples": 20, "test_samples": 10},
}


@pytest.fixture(scope="module")
def given(mnist: Dataset) -> Dataset:
    pair = (mnist.test_x[::10], mnist.test_y[::10])
    return Dataset.from_arrays(mnist.train_x[::20], mnist.train_y[::20], pair, name="digits")


@pytest.fixture(scope="module")
def stopped(given: Dataset, tmp_path_factory: pytest.TempPathFactory) -> fedrfq.Run:
    run = fedrfq.run(SMALL, "cpu", tmp_path_factory.mktemp("given"), data=given)
    next(iter(run))
    return run


def test_the_run_says_what_data_it_had(stopped: fedrfq.Run, given: Dataset) -> None:
    assert stopped.experiment.data.name == "given:digits"
    assert stopped.experiment.name == "digits-fedrfq"
    assert stopped.environment["data"]["sha256"] == given.sha256
    assert "give the same again" in stopped.environment["data"]["origin"]


def test_it_is_shown_and_reported_without_the_data(stopped: fedrfq.Run) -> None:
    assert "1 of 2" in command("show", stopped.path).stdout
    assert fedrfq.resume(stopped.path).report().is_file()
    assert len(fedrfq.resume(stopped.path).predict(0, [[[0] * 28] * 28])) == 1


def test_it_is_resumed_with_the_same_data_only(stopped: fedrfq.Run, given: Dataset) -> None:
    with pytest.raises(fedrfq.UserError, match=r"data=…\) and the same data"):
        fedrfq.resume(stopped.path, "cpu").finish()
    other = Dataset.from_arrays(given.train_x, given.train_y[::-1].copy(), name="digits")
    with pytest.raises(fedrfq.UserError, match="the data changed"):
        fedrfq.resume(stopped.path, "cpu", data=other).finish()
    again = fedrfq.resume(stopped.path, "cpu", data=given)
    again.finish()
    assert list(again.rounds["round"]) == [1, 2]


def test_a_finished_run_needs_its_data_no_more(given: Dataset, tmp_path: Path) -> None:
    run = fedrfq.run(SMALL, "cpu", tmp_path, data=given)
    next(iter(run))
    assert "the same data" in command("resume", run.path, expect=2).stderr
    result = run.finish()
    done = command("resume", run.path, "--json")
    assert "all rounds of this run are trained; here is the result" in done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == result
    assert "2 of 2" in command("resume", run.path).stdout


def test_known_data_are_recorded_by_their_name(mnist: Dataset, tmp_path: Path) -> None:
    run = fedrfq.run(fedrfq.load(sets=["clients=3"]), "cpu", tmp_path, data=mnist)
    assert run.experiment == fedrfq.load(sets=["clients=3"])


def test_rows_of_numbers_are_trained_on(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 120)
    rows = rng.normal(size=(120, 4)) + 3 * y[:, None]
    data = Dataset.from_arrays(rows, y)
    run = fedrfq.run({**SMALL, "rounds": 5}, "cpu", tmp_path, data=data)
    result = run.finish()
    assert result is not None
    assert result["accuracy_mean"] > 80


def test_numbers_are_not_taken_for_pixels_when_predicting(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 120)
    images = (100 * y[:, None, None] + rng.integers(0, 50, (120, 4, 4))).astype(float)
    data = Dataset.from_arrays(images, y)
    run = fedrfq.run({**SMALL, "rounds": 3}, "cpu", tmp_path, data=data)
    run.finish()
    as_floats = run.predict(0, images[:20])
    as_whole_numbers = run.predict(0, images[:20].astype(int))
    assert list(as_floats["probability"]) == list(as_whole_numbers["probability"])


@pytest.mark.parametrize(("labels", "why"), [([1, 2, 3], "labels from 1"), ([0, 10, 20], "0, 10")])
def test_labels_that_leave_numbers_out_make_no_empty_classes(labels: list[int], why: str) -> None:
    x = np.zeros((6, 8, 8), np.uint8)
    with pytest.raises(fedrfq.UserError, match=why):
        Dataset.from_arrays(x, np.array(labels * 2))


@pytest.mark.parametrize(
    ("labels", "remedy"),
    [
        (np.eye(6), r"y\.argmax\(1\)"),
        (np.arange(6.0), r"y\.astype\(int\)"),
        (np.arange(6)[:, None], r"y\.ravel\(\)"),
        (np.array([b"a", b"b"] * 3), r"y\.astype\(str\)"),
    ],
)
def test_labels_of_another_kind_are_refused_with_what_converts_them(
    labels: NDArray[Any], remedy: str
) -> None:
    with pytest.raises(fedrfq.UserError, match=remedy):
        Dataset.from_arrays(np.zeros((6, 8, 8), np.uint8), labels)


def test_faults_of_images_and_labels_are_said_at_once() -> None:
    with pytest.raises(fedrfq.UserError, match=r"2 things are wrong: .*first in sample 0.*argmax"):
        Dataset.from_arrays(np.full((6, 8, 8), np.nan), np.eye(6))


def test_a_dataset_is_shown_without_its_arrays(given: Dataset) -> None:
    size = f"{len(given.train_y)} training and {len(given.test_y)} test samples of 1×"
    assert size in repr(given)
    assert len(repr(given)) < 120


def test_bare_arrays_are_refused_with_what_takes_them() -> None:
    with pytest.raises(fedrfq.UserError, match="from_arrays"):
        fedrfq.run({"rounds": 1}, data=np.zeros((6, 8, 8)))
