"""`partition.name = "file"`: who holds what, from JSON, CSV or .npz, checked and hashed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrfq
from fedrfq.api.contracts.example_runs import many_samples
from fedrfq.data.partition import FromFile, Partition
from fedrfq.errors import UserError
from support.command import fedrfq as command
from support.command import only_run, sets

# Sample i of `many_samples` is of class i % 10.
HELD = {"train": [[10, 0, 1], [2, 12]], "test": [[0, 11], [2]]}


def in_json(folder: Path, held: Any = HELD) -> Path:
    path = folder / "who.json"
    path.write_text(json.dumps(held))
    return path


def in_csv(folder: Path) -> Path:
    path = folder / "who.csv"
    rows = [
        f"{client},{part},{sample}"
        for part, lists in HELD.items()
        for client, samples in enumerate(lists)
        for sample in samples
    ]
    path.write_text("\n".join(["client,part,sample", *rows]) + "\n")
    return path


def in_npz(folder: Path) -> Path:
    path = folder / "who.npz"
    arrays = {f"{part}_{k}": np.array(own) for part in HELD for k, own in enumerate(HELD[part])}
    np.savez_compressed(path, **arrays)
    return path


def dealt(path: Path, clients: int = 2) -> Partition:
    return FromFile(str(path)).deal(many_samples(), clients, np.random.default_rng(0))


@pytest.mark.parametrize("write", [in_json, in_csv, in_npz])
def test_each_format_says_the_same(write: Any, tmp_path: Path) -> None:
    partition = dealt(write(tmp_path))
    assert [own.tolist() for own in partition.train] == [[0, 1, 10], [2, 12]]
    assert [own.tolist() for own in partition.test] == [[0, 11], [2]]
    assert [held.tolist() for held in partition.classes] == [[0, 1], [2]]


def test_without_test_samples_they_are_drawn_from_held_classes(tmp_path: Path) -> None:
    path = in_json(tmp_path, {"train": HELD["train"]})
    one, other = dealt(path), dealt(path)
    for client, classes in enumerate(({0, 1}, {2})):
        assert set(many_samples().test_y[one.test[client]].tolist()) == classes
        assert np.array_equal(one.test[client], other.test[client])
    assert len(one.test[1]) == 100


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ({"train": [[0], []]}, "client 1's train samples are none"),
        ({"train": [[0], [1.5]]}, "must be a list of whole numbers"),
        ({"train": [[0], [True]]}, "must be a list of whole numbers"),
        ({"train": [[0], ["1"]]}, "must be a list of whole numbers"),
        ({"train": [[0], [[1]]]}, "must be a list of whole numbers"),
        ({"train": [[0], [6000]]}, "must be 0 to 5999, found 6000"),
        ({"train": [[0], [-1]]}, "found -1"),
        ({"train": [[0], [2**70]]}, "must be a list of whole numbers"),
        ({"train": [[0], [3, 3]]}, "client 1's train sample 3 is there twice"),
        ({"train": [[0]]}, "expected train samples of clients 0 to 1, found those of 1 clients"),
        ({"train": [[0], [1]], "test": [[0], [2]]}, "client 1 is tested on class '2'"),
        ({"train": {"0": [1]}}, "expected a list for each client in train"),
        ({"tests": []}, "expected a table with train"),
        ([], "expected a table with train"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(held: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why) as caught:
        dealt(in_json(tmp_path, held))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("who.csv", b"a,b\n1,2\n", "expected the columns client, sample"),
        ("who.csv", b"client,sample\n0,x\n", "line 2: expected a whole number, found 'x'"),
        ("who.csv", b"client,sample\n0,1\n1,%d\n" % 2**70, "must be a list of whole numbers"),
        ("who.csv", b"client,sample\n0," + b"9" * 5000, "cannot be read as who holds what"),
        ("who.csv", b"client,sample\n0\n", "line 2: expected a whole number, found None"),
        ("who.csv", b"client,sample\n0,1,2\n", "no column more"),
        ("who.csv", b"client,part,sample\n0,trian,2\n", "part must be train or test"),
        ("who.csv", b"\xff\xfe", "cannot be read as who holds what"),
        ("who.json", b"[" * 100_000, "nested too deeply"),
        ("who.npz", b"no archive", "who.npz"),
        ("who.txt", b"", "expected a file ending in .json, .csv, .npz"),
    ],
)
def test_hostile_files_are_refused(name: str, content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=why):
        dealt(path)


def test_an_npz_of_other_arrays_or_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "who.npz"
    np.savez(path, images=np.zeros(3))
    with pytest.raises(UserError, match="expected arrays such as train_0"):
        dealt(path)
    np.savez(path, train_0=np.array([{}], dtype=object))
    with pytest.raises(UserError, match="expected numbers or text"):
        dealt(path)


def test_the_limit_of_arrays_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.data.npz._MAX_SMALL_BYTES", 1000)
    path = tmp_path / "who.npz"
    np.savez_compressed(path, train_0=np.zeros(1000, np.int64))
    with pytest.raises(UserError, match="at most 1000 bytes of arrays"):
        dealt(path)


def test_a_link_to_the_recorded_file_will_do(tmp_path: Path) -> None:
    path = in_json(tmp_path)
    recorded = FromFile(str(path))
    path.rename(tmp_path / "moved.json")
    path.symlink_to("moved.json")
    found = recorded.deal(many_samples(), 2, np.random.default_rng(0))
    assert found.train[1].tolist() == [2, 12]


def test_it_needs_a_path_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"needs partition\.path"):
        FromFile().deal(many_samples(), 2, np.random.default_rng(0))
    with pytest.raises(UserError, match=r"cannot read .*: No such file"):
        FromFile(str(tmp_path / "none.json"))
    monkeypatch.setattr("fedrfq.data.partition.from_file._MAX_BYTES", 10)
    with pytest.raises(UserError, match="cannot read"):
        FromFile(str(in_json(tmp_path)))


def test_a_run_records_the_hash_and_goes_on_with_that_file_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"train": [[*range(30)], [*range(60, 90)]]}
    in_json(tmp_path, held)
    monkeypatch.chdir(tmp_path)
    settings = ["clients=2", "rounds=1", "model.name=mlp"]
    chosen = ["partition.name=file", "partition.path=who.json", "partition.test_samples=5"]
    command("run", *sets([*settings, *chosen]), "--out", tmp_path / "runs")
    run = only_run(tmp_path / "runs")
    recorded = run.experiment().partition
    assert isinstance(recorded, FromFile)
    assert recorded.path == str(tmp_path / "who.json")
    assert len(recorded.sha256) == 64
    one = fedrfq.load(sets=[*settings, *chosen]).hash()
    in_json(tmp_path, {"train": held["train"][::-1]})
    assert fedrfq.load(sets=[*settings, *chosen]).hash() != one
    command("show", run.path)
    assert "who.json has changed" in command("resume", run.path, expect=2).stderr
