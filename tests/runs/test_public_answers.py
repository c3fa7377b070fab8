"""`fedrfq predict` with a public map: who spoke, what was never seen, and not knowing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.data import Dataset
from fedrfq.files import tensors
from fedrfq.learning.public.classifier_file import CLASSIFIERS
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.node.client_learning import MODEL, participant
from fedrfq.node.membership import founding, identity
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.runs.inference import ClientModel
from fedrfq.runs.run_directory import RunDirectory
from support.command import SMALL, fedrfq, sets
from support.small import CPU

OPEN = ["method.name=local", "public.name=random", "rounds=1"]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory, mnist: Dataset) -> list[Path]:
    """Return one picture of each digit."""
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    for digit in range(10):
        first = int(np.flatnonzero(mnist.test_y == digit)[0])
        Image.fromarray(mnist.test_x[first, 0]).save(folder / f"{digit}.png")
    return [folder / f"{digit}.png" for digit in range(10)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    done = fedrfq("run", *sets([*SMALL, *OPEN]), "--out", out, "--json")
    return Path(json.loads(done.stdout.splitlines()[-1])["run_dir"])


def predicted(folder: Path, client: int, *more: Any) -> tuple[list[dict[str, Any]], str]:
    done = fedrfq("predict", folder, client, *more, "--json")
    table, last = done.stdout.rstrip("\n").rsplit("\n", 1)
    found: list[dict[str, Any]] = json.loads(last)["predictions"]
    return found, table


def held(run: Path, client: int) -> set[str]:
    rows = [line.split(",") for line in (run / "partition.csv").read_text().splitlines()[1:]]
    return {row[1] for row in rows if row[0] == str(client) and int(row[2])}


def test_it_says_who_spoke_and_what_the_client_never_saw(run: Path, pictures: list[Path]) -> None:
    found, table = predicted(run, 2, *pictures)
    seen = held(run, 2)
    assert [row["seen"] for row in found] == [row["class"] in seen for row in found]
    assert {(row["seen"], row["spoke"]) for row in found} == {
        (True, "own model"),
        (False, "public map"),
    }
    pairs = zip(found, pictures, strict=True)
    right = {path.stem for row, path in pairs if row["class"] == path.stem}
    # It has been taught classes by the others.
    assert right - seen
    assert "public map" in table
    assert "never saw" in table


def test_below_the_threshold_it_does_not_know(run: Path, pictures: list[Path]) -> None:
    sure, _ = predicted(run, 2, *pictures)
    assert all(row["class"] == row["most_likely"] for row in sure)
    limit = float(np.median([row["probability"] for row in sure]))
    found, table = predicted(run, 2, *pictures, "--threshold", limit)
    known = [row["probability"] >= limit for row in found]
    assert [row["class"] is not None for row in found] == known
    assert set(known) == {True, False}
    assert "do not" in table


def test_the_threshold_is_the_experiments_by_default(run: Path, pictures: list[Path]) -> None:
    model = ClientModel.load(RunDirectory.open(run), 2)
    assert model.public is not None
    strict = replace(model.public, map_=replace(model.public.map_, threshold=0.999999))
    found = replace(model, public=strict).predict(pictures)
    assert None in [row["class"] for row in found]
    assert None not in [row["class"] for row in replace(model, public=strict).predict(pictures, 0)]


def test_without_what_was_learned_the_own_model_speaks_alone(
    run: Path, pictures: list[Path], tmp_path: Path
) -> None:
    """As in a run that has not ended yet."""
    picture = shutil.copy(pictures[0], tmp_path / f"{'long-' * 40}name.png")
    path = run / CLASSIFIERS
    content = path.read_bytes()
    path.unlink()
    try:
        done = fedrfq("predict", run, 2, picture, "--json")
        assert "speaks alone" in done.stderr
        (row,) = json.loads(done.stdout.splitlines()[-1])["predictions"]
        own = {"file", "class", "probability", "seen"}
        assert set(row) == own | {"nearest_prototype", "nearest_prototype_seen"}
        # Among many columns the name of a file is not cut off.
        cells = [line.split("│")[1].strip() for line in done.stdout.splitlines() if "│" in line]
        assert str(picture) in "".join(cells)
        errors = fedrfq("predict", run, 2, pictures[0], "--threshold", 0.5, expect=2).stderr
        assert "a threshold needs" in errors
    finally:
        path.write_bytes(content)


def test_classifiers_of_another_map_are_refused(run: Path, pictures: list[Path]) -> None:
    path = run / CLASSIFIERS
    content = path.read_bytes()
    named, _ = tensors.load(path)
    tensors.save(path, named | {"weight": named["weight"][:, 1:].contiguous()}, {})
    try:
        errors = fedrfq("predict", run, 2, pictures[0], expect=2).stderr
        assert "does not belong to the experiment's public map" in errors
    finally:
        path.write_bytes(content)


def test_a_network_clients_folder(tmp_path: Path, pictures: list[Path], mnist: Dataset) -> None:
    """Its model and its classifier are all that is needed: no server, and no data."""
    chosen = [*SMALL, *OPEN, "clients=3"]
    founding.init(tmp_path / "f", ["127.0.0.1:7400"], 3, sets=chosen)
    own = tmp_path / "f" / "client-1"
    learning = participant(identity.load(own), "mnist5k", CPU)
    nothing = Globals.none(10, learning.experiment.prototype_size())
    learning.train(1, nothing)
    assert "speaks alone" in fedrfq("predict", own, 1, pictures[0]).stderr
    loop = RoundLoop([learning.experiment], mnist, CPU)
    state, _ = loop.advance(loop.start())
    learning.test(1, nothing, state.public[0])
    found, _ = predicted(own, 1, *pictures)
    seen = {str(j) for j in learning.held_1J[0].nonzero().flatten().tolist()}
    assert [row["seen"] for row in found] == [row["class"] in seen for row in found]
    assert {row["spoke"] for row in found} == {"own model", "public map"}
    assert "the folder of client 1" in fedrfq("predict", own, 0, pictures[0], expect=2).stderr
    model = own / MODEL / "model.safetensors"
    named, about = tensors.load(model)
    tensors.save(model, dict(list(named.items())[1:]), about)
    assert "is not a model of" in fedrfq("predict", own, 1, pictures[0], expect=2).stderr
