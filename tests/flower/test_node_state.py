"""A node's state: killed at any point, it continues, and repeats what it signed to the byte."""

from __future__ import annotations

import fcntl
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files import tensors
from fedrfq.flower import clientapp
from fedrfq.flower.messages import NAME, NodeAnswer
from fedrfq.flower.node_state import KEPT, NodeState
from fedrfq.flower.packed_result import public_in, without_public
from fedrfq.flower.shard import Shard
from fedrfq.learning.all_classes import CommonFigures
from support.flowered import NOTHING, Done, experiment, node_of, order, rounds, sent_to

CLIENTS = "clients-0-1"


class Killed(BaseException):
    """The process is gone."""


@pytest.fixture(scope="module")
def e() -> Experiment:
    return experiment(clients=2)


@pytest.fixture(scope="module")
def run(e: Experiment, mnist: Dataset) -> list[Done]:
    return rounds(e, mnist)


def ask(e: Experiment, run: list[Done], number: int, state: Path, train: bool = True) -> NodeAnswer:
    """Return a new process's answer to the order that comes after a round."""
    clientapp._simulated.cache_clear()
    last = b""
    if number:
        last = run[number - 1].last
    return sent_to(0, 1, order(e, number, last, train, state))


def content(answer: NodeAnswer) -> dict[str, Any]:
    assert not answer.error
    return dict(answer.record()[NAME])


def killed(*_: Any) -> Any:
    raise Killed


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_node_goes_on_in_a_new_process(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    for number, done in enumerate(run):
        assert ask(e, run, number, tmp_path).uploads == done.uploads
    assert node_of(0, 1, order(e, 0, b"", True, tmp_path)).state.read().last == run[1].last


def test_the_public_part_is_kept_and_need_not_come_again(mnist: Dataset, tmp_path: Path) -> None:
    e = experiment(
        clients=2, checkpoint=1, method={"name": "local"}, public={"name": "random", "second": 2}
    )
    run = rounds(e, mnist)
    short = [replace(done, last=without_public(done.last)) for done in run]
    assert public_in(run[0].last)
    assert short[0].last != run[0].last
    ask(e, run, 0, tmp_path)
    why = "it came without the public statistics"
    assert why in ask(e, short, 1, tmp_path).error
    ask(e, run, 1, tmp_path)
    for number in (2, 3):
        answer = ask(e, short, number, tmp_path, train=number < 3)
        assert answer.figures is not None
        found = CommonFigures.unpacked(answer.figures.common_KF)
        rows = run[number - 1].outcome.clients
        assert [found.client(row["client"]) for row in rows] == [
            {name: row[name] for name in found.client(0)} for row in rows
        ]
        assert found.final == "combined"


def test_asked_again_it_says_the_same_and_trains_nothing(
    e: Experiment, run: list[Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (0, 1):
        first = ask(e, run, number, tmp_path)
        before = files(tmp_path / CLIENTS)
        with monkeypatch.context() as patch:
            patch.setattr(Shard, "train", killed)
            patch.setattr(Shard, "test", killed)
            patch.setattr(NodeState, "save", killed)
            assert content(ask(e, run, number, tmp_path)) == content(first)
        assert files(tmp_path / CLIENTS) == before


def test_killed_once_all_is_saved_it_answers_what_it_had_signed(
    e: Experiment, run: list[Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(e, run, 0, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(NodeState, "_clear", killed)
        with pytest.raises(Killed):
            ask(e, run, 1, tmp_path)
        patch.setattr(Shard, "train", killed)
        assert ask(e, run, 1, tmp_path).uploads == run[1].uploads
    assert ask(e, run, 2, tmp_path).uploads == run[2].uploads
    assert sorted(files(tmp_path / CLIENTS)) == [
        KEPT,
        "models-0-3.safetensors",
        "models-1-3.safetensors",
    ]


def test_killed_before_all_is_saved_nothing_has_happened(
    e: Experiment, run: list[Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(e, run, 0, tmp_path)
    kept = (tmp_path / CLIENTS / KEPT).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(NodeState, "save", killed)
        with pytest.raises(Killed):
            ask(e, run, 1, tmp_path)
    assert (tmp_path / CLIENTS / KEPT).read_bytes() == kept
    assert ask(e, run, 1, tmp_path).uploads == run[1].uploads


def test_a_node_that_was_away_goes_on_with_the_last_result(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    ask(e, run, 0, tmp_path)
    answer = ask(e, run, 2, tmp_path)
    assert (answer.round, answer.trained, answer.left_out) == (3, (0, 1), ())
    assert answer.figures is not None


def test_the_last_order_only_tests(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 0, tmp_path)
    tested = ask(e, run, 1, tmp_path, train=False)
    assert (tested.clients, tested.round, tested.uploads, tested.trained) == ((0, 1), 0, (), ())
    trained = ask(e, run, 1, tmp_path)
    assert trained.uploads == run[1].uploads
    assert content(trained)["figures"] == content(tested)["figures"]
    assert content(ask(e, run, 1, tmp_path, train=False)) == content(tested)


def test_after_the_last_round_nothing_is_trained(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    last = content(ask(e, run, 3, tmp_path, train=False))
    assert "round 4 is refused: this experiment has 3 rounds" in ask(e, run, 3, tmp_path).error
    assert content(ask(e, run, 3, tmp_path, train=False)) == last


def test_of_a_folder_only_its_own_files_are_removed(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    folder = tmp_path / CLIENTS
    folder.mkdir()
    theirs = folder / "best-models-2024.pt"
    left = folder / f".models-0-1.safetensors.{'0' * 16}.tmp"
    for path in (theirs, left):
        path.touch()
    ask(e, run, 0, tmp_path)
    assert theirs.exists()
    assert not left.exists()


def test_an_older_order_is_refused_in_words(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 2, tmp_path)
    before = files(tmp_path / CLIENTS)
    for number in (0, 1):
        answer = ask(e, run, number, tmp_path)
        assert (
            f"the result of round {number} is refused, since this node knows that of round 2"
            in answer.error
        )
        assert not answer.uploads
    assert files(tmp_path / CLIENTS) == before


def test_who_does_not_train_keeps_the_model(mnist: Dataset, tmp_path: Path) -> None:
    e = experiment(clients=4, participation=0.25)
    run = rounds(e, mnist, 2)
    ask(e, run, 0, tmp_path)
    ask(e, run, 1, tmp_path)
    models = node_of(0, 1, order(e, 0, b"", True, tmp_path)).state.read().models
    trained = {
        row["client"]: done.outcome.record.round
        for done in run
        for row in done.outcome.clients
        if row["trained"]
    }
    assert models == tuple(trained.get(client, 0) for client in range(4))


def test_one_process_at_a_time(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 0, tmp_path)
    handle = os.open(tmp_path / CLIENTS, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert "in use by another process" in ask(e, run, 1, tmp_path).error
    os.close(handle)
    assert ask(e, run, 1, tmp_path).uploads == run[1].uploads


def test_the_state_of_another_run_is_refused(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    ask(e, run, 0, tmp_path)
    other = replace(e, seed=1)
    assert (
        "holds the models of another run"
        in sent_to(0, 1, order(other, 0, b"", True, tmp_path)).error
    )


def test_a_state_is_found_by_its_run(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 0, tmp_path)
    own = node_of(0, 1, order(e, 0, b"", True, tmp_path)).state
    found = NodeState.found(own.folder, own.run)
    assert found is not None
    assert found.read().models == own.read().models
    assert NodeState.found(own.folder, "0" * 64) is None
    spoil(own.folder / KEPT, facts="{}")
    with pytest.raises(UserError, match="is not as this program writes it"):
        NodeState.found(own.folder, own.run)


def test_so_is_that_of_another_where_nothing_is_exchanged(tmp_path: Path) -> None:
    local = experiment(clients=2, **NOTHING)
    assert not sent_to(0, 1, order(local, 0, b"", True, tmp_path)).error
    other = order(replace(local, seed=1), 0, b"", True, tmp_path)
    assert "holds the models of another run" in sent_to(0, 1, other).error


def test_clients_may_not_change_nodes(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 0, tmp_path)
    for place in (0, 1):
        answer = sent_to(place, 2, order(e, 0, b"", True, tmp_path))
        assert "start as many nodes as before" in answer.error
    assert not (tmp_path / "clients-0-0").exists()


def spoil(path: Path, **changes: str) -> None:
    """Change the metadata of a file of tensors."""
    named, about = tensors.load(path)
    tensors.save(path, named, {**about, **changes})


def test_damaged_files_are_named(e: Experiment, run: list[Done], tmp_path: Path) -> None:
    ask(e, run, 0, tmp_path)
    folder = tmp_path / CLIENTS
    right = files(folder)
    for facts in ("", "[]", "{}", "null", '{"run": 1}'):
        spoil(folder / KEPT, facts=facts)
        assert f"{folder / KEPT} is not as this program writes it" in ask(e, run, 1, tmp_path).error
    (folder / KEPT).write_bytes(right[KEPT].replace(b'\\"seconds\\": ', b'\\"seconds\\":-'))
    assert f"{folder / KEPT} is not as this program writes it" in ask(e, run, 1, tmp_path).error
    (folder / KEPT).write_bytes(right[KEPT][:-1])
    assert str(folder / KEPT) in ask(e, run, 1, tmp_path).error
    (folder / KEPT).write_bytes(right[KEPT])
    tensors.save(folder / "models-0-1.safetensors", {"conv1.weight": torch.zeros(1)})
    assert (
        "models-0-1.safetensors does not have the models of this experiment"
        in ask(e, run, 1, tmp_path).error
    )
    (folder / "models-0-1.safetensors").unlink()
    assert "models-0-1.safetensors" in ask(e, run, 1, tmp_path).error


def test_a_folder_that_cannot_be_made_is_named(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    error = ask(e, run, 0, tmp_path / "file").error
    assert f"{tmp_path / 'file' / CLIENTS} cannot be made" in error


def test_a_model_is_not_loaded_beyond_its_size(
    e: Experiment, run: list[Done], tmp_path: Path
) -> None:
    ask(e, run, 0, tmp_path)
    node = node_of(0, 1, order(e, 0, b"", True, tmp_path))
    path = tmp_path / CLIENTS / "models-0-1.safetensors"
    with path.open("r+b") as file:
        file.truncate(1 << 26)
    with pytest.raises(UserError, match="expected at most"):
        node.state.load_models(0, 1, node.shard.start((0,)))
