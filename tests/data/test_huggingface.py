"""Hugging Face's datasets and Flower's partitioners, on small data made on the spot.

What needs their packages is skipped without them: `make test-extras` installs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fedrfq.data import Dataset, load
from fedrfq.data.huggingface import _chosen, _read
from fedrfq.data.partition import FlowerPartitioner
from fedrfq.errors import UserError
from support.fake_hub import serving

RANDOM = np.random.default_rng(2)
X = RANDOM.integers(0, 256, (20, 8, 6), np.uint8)
Y = np.array([0, 1] * 10)


@pytest.fixture(scope="module")
def datasets() -> Any:
    return pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def pictures(datasets: Any) -> Any:
    features = datasets.Features(
        {
            "id": datasets.Value("int64"),
            "image": datasets.Image(),
            "kind": datasets.ClassLabel(names=["cat", "dog"]),
            "site": datasets.Value("string"),
        }
    )

    def split(rows: slice) -> Any:
        columns = {
            "id": list(range(20))[rows],
            "image": [Image.fromarray(image) for image in X[rows]],
            "kind": Y[rows].tolist(),
            "site": ["north", "south"] * len(X[rows][::2]),
        }
        return datasets.Dataset.from_dict(columns, features=features)

    return datasets.DatasetDict({"train": split(slice(0, 14)), "test": split(slice(14, 20))})


def test_columns_and_classes_are_found(pictures: Any) -> None:
    data = Dataset.from_huggingface(pictures, groups="site")
    assert (
        data.sha256
        == Dataset.from_arrays(
            X[:14],
            Y[:14],
            (X[14:], Y[14:]),
            ["cat", "dog"],
            groups=[0, 1] * 7,
            test_groups=[0, 1] * 3,
        ).sha256
    )
    assert data.classes == ("cat", "dog")
    assert data.source == "given:huggingface"


def test_one_split_is_split_by_content(pictures: Any) -> None:
    data = Dataset.from_huggingface(pictures["train"])
    assert (len(data.train_y), len(data.test_y)) == (12, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"image": "picture"}, "no column 'picture'"),
        ({"label": "class"}, "no column 'class'"),
        ({"image": "id"}, "found shape"),
    ],
)
def test_what_is_not_there_is_told(pictures: Any, arguments: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Dataset.from_huggingface(pictures, **arguments)


@pytest.fixture(scope="module")
def numbers(datasets: Any) -> Any:
    """Return 20 samples with two columns of numbers, and others."""
    columns = {
        "age": list(range(20)),
        "dose": [i / 7 for i in range(20)],
        "word": ["a"] * 20,
        "gap": [None, *range(19)],
        "label": Y.tolist(),
    }
    return datasets.Dataset.from_dict(columns)


def test_rows_are_made_of_several_columns(numbers: Any) -> None:
    data = Dataset.from_huggingface(numbers, columns=["age", "dose"])
    rows = np.stack([np.arange(20), np.arange(20) / 7], 1)
    assert data.sha256 == Dataset.from_arrays(rows, Y).sha256
    assert data.shape == (2, 1, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, r"none of the columns age, .* has images.*columns=\['…', '…'\]"),
        ({"columns": ["age", "word"]}, "a number for each sample in the column 'word', found <U1"),
        ({"columns": ["gap"]}, "in the column 'gap', found object"),
        ({"columns": ["weight"]}, "no column 'weight'"),
        ({"columns": ["age", "label"]}, "without the label 'label'"),
        ({"columns": "age"}, "columns are a list"),
        ({"columns": ["age"], "image": "dose"}, "instead of image"),
    ],
)
def test_columns_that_are_no_rows_are_told(numbers: Any, arguments: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Dataset.from_huggingface(numbers, **arguments)


def test_transparent_pictures_are_refused_as_those_in_files_are(datasets: Any) -> None:
    def data(*alphas: int) -> Dataset:
        pictures = [Image.fromarray(image).convert("RGB") for image in X]
        for picture, alpha in zip(pictures, alphas, strict=False):
            picture.putalpha(alpha)
        features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
        columns = {"image": pictures, "label": Y.tolist()}
        return Dataset.from_huggingface(datasets.Dataset.from_dict(columns, features=features))

    assert data(255).sha256 == data().sha256
    with pytest.raises(
        UserError, match=r"huggingface: image 1: .* found pixels that shine through"
    ):
        data(255, 100)


@pytest.mark.parametrize("thing", [5, None, np.zeros(3)])
def test_what_is_no_dataset_is_told(thing: Any) -> None:
    with pytest.raises(UserError, match=r"expected a Dataset or DatasetDict.*found (int|None|nd)"):
        Dataset.from_huggingface(thing)
    for make in (Dataset.from_folder, Dataset.from_npz):
        with pytest.raises(UserError, match="expected the path of a folder or file, found"):
            make(thing)


def test_parquet_files_of_a_hub_are_read(pictures: Any, tmp_path: Path) -> None:
    files = {}
    for split in ("train", "test"):
        pictures[split].to_parquet(tmp_path / f"{split}.parquet")
        files[split] = [str(tmp_path / f"{split}.parquet")]
    data = Dataset.from_huggingface(_read(files))
    assert data.sha256 == Dataset.from_huggingface(pictures).sha256


def test_a_dataset_of_a_hub_is_downloaded_once_and_then_needs_no_network(
    pictures: Any, tmp_path: Path
) -> None:
    """The real client, in a process of its own, with a hub on this machine."""
    pytest.importorskip("huggingface_hub")
    for split in ("train", "test"):
        (tmp_path / "hub" / "default" / split).mkdir(parents=True)
        pictures[split].to_parquet(tmp_path / "hub" / "default" / split / "0000.parquet")
    (tmp_path / "hub" / "data.py").write_text("raise SystemExit('a script of the hub ran')")

    def loaded(address: str) -> subprocess.CompletedProcess[str]:
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        code = "from fedrfq.data import load; print(load('hf:own/data@default').sha256)"
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **hub},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    with serving("own/data", tmp_path / "hub") as address:
        online = loaded(address)
    offline = loaded(address)
    expected = f"{Dataset.from_huggingface(pictures).sha256}\n"
    assert (online.stdout, offline.stdout) == (expected, expected), online.stderr + offline.stderr


def test_the_files_of_one_configuration_are_chosen() -> None:
    files = ["b/train/0.parquet", "a/test/0.parquet", "a/train/1.parquet", "a/train/0.parquet", "x"]
    chosen = {"test": ["a/test/0.parquet"], "train": ["a/train/0.parquet", "a/train/1.parquet"]}
    assert _chosen("o/n", "", files) == chosen
    assert _chosen("o/n", "b", files) == {"train": ["b/train/0.parquet"]}
    with pytest.raises(UserError, match=r"no configuration 'c'.*there are: a, b"):
        _chosen("o/n", "c", files)


@pytest.mark.parametrize(
    "name",
    [
        "hf:pandas",
        "hf:./own/data",
        "hf:../own",
        "hf:/etc/passwd",
        "hf:own/data/more",
        "hf:own/..",
        "hf:a..b/c",
        "hf:own\\data",
        "hf:",
        "hf:öwn/data",
    ],
)
def test_no_name_of_the_hub_is_a_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="expected hf:OWNER/NAME"):
        load(name)


def test_a_folder_of_the_same_name_is_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network this must fail, though `own/data` is a dataset that lies there."""
    pytest.importorskip("huggingface_hub")
    for part in ("train", "test"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "own" / "data" / part / kind
            folder.mkdir(parents=True)
            Image.fromarray(X[0]).save(folder / "1.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="hf:own/data: cannot get it from the hub"):
        load("hf:own/data")


DATA = Dataset.from_arrays(
    RANDOM.integers(0, 256, (200, 4, 4), np.uint8), np.arange(200) % 4, groups=np.arange(200) % 3
)


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("IidPartitioner", ""),
        ("DirichletPartitioner", "alpha = 0.5, min_partition_size = 3"),
        ("PathologicalPartitioner", "num_classes_per_partition = 2"),
        ("NaturalIdPartitioner", 'partition_by = "group"'),
    ],
)
def test_flowers_partitioners_deal(name: str, arguments: str) -> None:
    pytest.importorskip("flwr_datasets")
    kind = FlowerPartitioner(name, arguments, test_samples=8)
    one, again = kind.deal(DATA, 3, rng()), kind.deal(DATA, 3, rng())
    everyone = np.concatenate(one.train)
    assert len(np.unique(everyone)) == len(everyone)
    for client in range(3):
        assert one.train[client].tolist() == again.train[client].tolist()
        assert one.test[client].tolist() == again.test[client].tolist()
        assert set(DATA.test_y[one.test[client]]) <= set(DATA.train_y[one.train[client]])
    if name == "PathologicalPartitioner":
        assert [len(held) for held in one.classes] == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("DirichletPartitoner", "", "did you mean DirichletPartitioner"),
        ("DirichletPartitioner", "", "alpha.*set partition.arguments"),
        ("IidPartitioner", "beta = 1", "beta"),
        ("os", "", "there is no 'os'"),
        ("NaturalIdPartitioner", 'partition_by = "owner"', "cannot deal"),
    ],
)
def test_what_flower_cannot_do_is_told(name: str, arguments: str, said: str) -> None:
    pytest.importorskip("flwr_datasets")
    with pytest.raises(UserError, match=said):
        FlowerPartitioner(name, arguments).deal(DATA, 3, rng())


def test_arguments_are_toml() -> None:
    with pytest.raises(UserError, match="as in a TOML table"):
        FlowerPartitioner(arguments="alpha: 3")
