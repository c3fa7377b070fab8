"""Where samples do not suffice, the error has a line that works, all of it at once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq import experiment
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.learning.draws import deal
from support.command import fedrfq

LINE = re.compile(r"; this works with these data: (.*)")


def samples(counts: list[int], tests: list[int]) -> Dataset:
    """Return a dataset with so many samples of each class to train on, and to test on."""
    train_y = np.repeat(np.arange(len(counts)), counts)
    test_y = np.repeat(np.arange(len(tests)), tests)
    return Dataset(
        name="own",
        train_x=np.zeros((len(train_y), 1, 16, 16), np.uint8),
        train_y=train_y,
        test_x=np.zeros((len(test_y), 1, 16, 16), np.uint8),
        test_y=test_y,
        classes=tuple(f"class {label}" for label in range(len(counts))),
        mean=(0.0,),
        std=(1.0,),
        sha256="",
    )


def proposed(sets: list[str], dataset: Dataset) -> list[str]:
    """Return the settings that the error proposes."""
    with pytest.raises(UserError, match=LINE) as error:
        deal(experiment.load(sets=sets), dataset)
    (line,) = LINE.findall(str(error.value))
    return line.removeprefix("--set ").split(" --set ")


@pytest.mark.parametrize(
    ("sets", "counts", "tests", "expected"),
    [
        # The default asks for 100 shots and 40 to test on; the rarest class has 12 and 4.
        (
            ["clients=2", "partition.ways=2", "partition.spread=0"],
            [12, 300, 300],
            [4, 40, 40],
            ["partition.shots=12", "partition.test_shots=4"],
        ),
        (["partition.ways=9", "clients=1"], [300] * 3, [99] * 3, ["partition.ways=3"]),
        # No class of a client can be tested, so classes cannot be dealt one by one.
        (
            ["clients=2"],
            [100, 100, 0],
            [50, 50, 0],
            ["partition.name=dirichlet", "partition.samples=100"],
        ),
        (
            ["clients=4", "partition.name=iid"],
            [100] * 2,
            [50] * 2,
            ["partition.samples=50"],
        ),
        (["clients=9", "partition.name=groups"], [60] * 3, [30] * 3, ["partition.name=dirichlet"]),
        # One sample of each class: two clients can hold it only together.
        (
            ["clients=2", "partition.ways=2", "partition.spread=0"],
            [1, 1],
            [1, 1],
            ["partition.shots=1", "partition.test_shots=1", "partition.share=true"],
        ),
    ],
)
def test_what_is_proposed(
    sets: list[str], counts: list[int], tests: list[int], expected: list[str]
) -> None:
    dataset = samples(counts, tests)
    found = proposed(sets, dataset)
    assert found[: len(expected)] == expected
    deal(experiment.load(sets=[*sets, *found]), dataset)


@pytest.mark.parametrize(("kind", "asked"), [("classes", 40), ("iid", 17), ("dirichlet", 23)])
def test_one_client_more_than_is_proposed_has_nothing_to_train_on(kind: str, asked: int) -> None:
    dataset = samples([100] * 3, [40] * 3)
    found = proposed([f"partition.name={kind}", f"clients={asked}"], dataset)
    (clients,) = (int(each.removeprefix("clients=")) for each in found if "clients=" in each)
    assert 2 < clients < asked
    again = proposed([f"partition.name={kind}", f"clients={clients + 1}"], dataset)
    assert f"clients={clients}" in again


def test_a_class_without_samples_is_named() -> None:
    with pytest.raises(UserError, match=r"class 'class 1' of own has no test samples; add some"):
        deal(experiment.load(sets=["partition.ways=2"]), samples([300, 300], [40, 0]))


def test_whatever_the_data_are_the_proposal_works() -> None:
    random = np.random.default_rng(20)
    lines = 0
    for _ in range(40):
        classes = int(random.integers(2, 12))
        dataset = samples(
            random.integers(1, 60, classes).tolist(), random.integers(1, 15, classes).tolist()
        )
        kind = random.choice(["classes", "dirichlet", "iid", "groups"])
        sets = [f"partition.name={kind}", f"clients={random.integers(1, 30)}"]
        if random.random() < 0.3:
            sets.append("validation=0.25")
        try:
            deal(experiment.load(sets=sets), dataset)
        except UserError as error:
            if found := LINE.findall(str(error)):
                lines += 1
                more = found[0].removeprefix("--set ").split(" --set ")
                deal(experiment.load(sets=[*sets, *more]), dataset)
    assert lines > 25


def test_six_hundred_small_pictures_run_in_one_go(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name in "abcdef":
        (tmp_path / "own" / name).mkdir(parents=True)
        for number in range(100):
            pixels = random.integers(0, 256, (8, 8), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "own" / name / f"{number}.png")
    asked = ["--set", f"data.name={tmp_path / 'own'}", "--set", "rounds=1", "--out", tmp_path / "r"]
    said = fedrfq("run", *asked, "--dry-run", expect=2).stderr
    (line,) = LINE.findall(" ".join(said.split()))
    # The images are too small for the default model, too.
    assert line.endswith("--set model.name=mlp")
    fedrfq("run", *asked, *line.split())
    assert list((tmp_path / "r").glob("*/*/result.json"))


def test_for_data_from_python_it_is_in_python() -> None:
    dataset = samples([12, 300, 300], [4, 40, 40])
    given = experiment.from_table({"data": {"name": "given:arrays"}, "clients": 30})
    with pytest.raises(UserError, match=LINE) as error:
        deal(given, dataset)
    (line,) = LINE.findall(str(error.value))
    changes = ast.literal_eval(line)
    assert changes["clients"] < 30
    deal(experiment.from_table({**given.table(), **changes}), dataset)


def test_data_that_no_partition_can_deal_are_said_to_be_such_at_once() -> None:
    for name in ("classes", "iid", "dirichlet"):
        with pytest.raises(UserError, match="expected a class with training and test samples"):
            deal(experiment.load(sets=[f"partition.name={name}"]), samples([150, 0], [0, 5]))
