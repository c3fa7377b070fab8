"""The run as an object: iterate, stop early, go on, look at what it left."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedrfq
from fedrfq.experiment import from_table
from fedrfq.files.locks import acquire
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session
from support.command import assert_same_run
from support.command import fedrfq as command

SMALL: dict[str, Any] = {
    "clients": 3,
    "rounds": 4,
    "checkpoint": 3,
    "partition": {"shots": 6, "test_shots": 4},
}


def started(out: Path, **more: Any) -> fedrfq.Run:
    return fedrfq.run(SMALL, "cpu", out, **more)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedrfq.Run:
    run = started(tmp_path_factory.mktemp("finished"))
    run.finish()
    return run


def test_a_run_is_iterated_and_looked_at(finished: fedrfq.Run) -> None:
    assert finished.result is not None
    assert finished.result["rounds"] == 4
    assert list(finished.rounds["round"]) == [1, 2, 3, 4]
    assert list(finished.clients["client"]) == [0, 1, 2] * 4
    assert finished.clients["accuracy"].dtype == float
    assert {len(vector) for vector in finished.prototypes.values()} == {24}
    assert "4 of 4 rounds" in repr(finished)


def test_tables_are_columns_without_pandas(
    finished: fedrfq.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert finished.rounds["round"] == [1, 2, 3, 4]
    assert finished.clients["client"] == [0, 1, 2] * 4


def test_a_source_is_a_dict_a_path_or_an_experiment(tmp_path: Path) -> None:
    run = started(tmp_path)
    written = run.path / "experiment.toml"
    assert tomllib.loads(written.read_text())["clients"] == 3
    assert fedrfq.load(str(written)) == run.experiment
    for source in (written, str(written), run.experiment):
        assert fedrfq.run(source, "cpu", tmp_path).experiment == run.experiment


def test_leaving_the_loop_leaves_a_checkpoint_and_a_result(tmp_path: Path) -> None:
    run = started(tmp_path)
    for record in run:
        if record.round == 2:
            break
    assert run.result is not None
    assert run.result["rounds"] == 2
    # Studies and audits take result.json as the sign that all rounds are there.
    assert RunDirectory(run.path).result() is None
    assert max(RunDirectory(run.path).checkpoints()) == 2
    # The directory is free: another process shows it, and this one goes on.
    assert "2 of 4" in command("show", run.path).stdout
    assert [record.round for record in run] == [3, 4]
    assert run.result["rounds"] == 4
    assert not (run.path / "result-so-far.json").exists()


def test_a_stopped_run_ends_as_if_it_had_never_stopped(
    finished: fedrfq.Run, tmp_path: Path
) -> None:
    run = started(tmp_path)
    for _ in run:
        run.stop()
    assert list(run.rounds["round"]) == [1]
    again = fedrfq.resume(str(run.path), "cpu")
    again.finish()
    assert_same_run(finished.path, again.path)


def test_the_newest_run_is_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = started(Path("runs"))
    assert fedrfq.resume("latest").path == run.path


class Looking(fedrfq.Callback):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_round(self, run: Any, record: fedrfq.RoundRecord) -> None:
        self.seen.append(looked_at(run))


def looked_at(run: fedrfq.Run) -> tuple[bytes, Any, float]:
    """Return what is seen of a client's weights, of the prototypes and of a prediction."""
    weights = torch.cat([p.flatten() for p in run.models[1].parameters()])
    probability = run.predict(1, np.zeros((1, 28, 28), np.uint8))["probability"][0]
    return weights.detach().numpy().tobytes(), np.stack([*run.prototypes.values()]), probability


def test_inside_the_loop_a_run_is_seen_as_of_the_last_round(
    finished: fedrfq.Run, tmp_path: Path
) -> None:
    told = Looking()
    run = started(tmp_path, callbacks=[told])
    with pytest.raises(fedrfq.UserError, match=r"no round yet: iterate over the run"):
        print(run.prototypes)
    seen = [looked_at(run) for _ in run]
    np.testing.assert_equal(seen, told.seen)
    assert len({weights for weights, _, _ in seen}) == 4
    np.testing.assert_equal(seen[-1], looked_at(run))
    # Looking changes nothing.
    assert_same_run(finished.path, run.path)


def test_a_run_is_found_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = started(Path("runs"))
    again = fedrfq.resume(run.path.relative_to(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    run.finish()
    assert run.path == again.path == next(tmp_path.glob("runs/*/*"))
    assert len(again.rounds) == 4
    assert len(list(again.models)) == 3


def test_a_run_that_is_open_here_is_not_said_to_be_elsewhere(tmp_path: Path) -> None:
    run = started(tmp_path)
    with pytest.raises(fedrfq.UserError, match="in use by this program itself: finish"):
        fedrfq.resume(run.path, "cpu").finish()
    run.finish()
    # Once it is closed, another may have it.
    lock = acquire(run.path, "", "")
    with pytest.raises(fedrfq.UserError, match="in use by another process"):
        fedrfq.resume(run.path, "cpu").finish()
    os.close(lock)


def test_an_exception_in_the_loop_keeps_what_was_trained(tmp_path: Path) -> None:
    run = started(tmp_path)
    with pytest.raises(ZeroDivisionError):
        print([record.round / (record.round - 1) for record in run])
    assert max(RunDirectory(run.path).checkpoints()) == 1
    assert next(iter(run)).round == 2


def test_an_interrupt_in_training_drops_the_record_of_an_unfinished_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = started(tmp_path)
    append = RunDirectory.append

    def interrupted(self: RunDirectory, outcome: Any) -> None:
        append(self, outcome)
        if outcome.record.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunDirectory, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.finish()
    assert len(RunDirectory(run.path).rounds()) == 1
    assert max(RunDirectory(run.path).checkpoints()) == 1


def test_a_loop_that_is_open_as_the_program_ends_leaves_a_checkpoint(tmp_path: Path) -> None:
    code = f"import fedrfq; steps = iter(fedrfq.run({SMALL | {'rounds': 3}!r}, 'cpu')); next(steps)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    run = fedrfq.resume(next(tmp_path.glob("runs/*/*")))
    assert [record.round for record in run] == [2, 3]


def test_between_two_loops_the_directory_is_free(tmp_path: Path) -> None:
    run = started(tmp_path)
    session = run._opened()
    next(iter(run))
    # The session lives on, as in the traceback of a notebook, and holds nothing.
    assert next(iter(fedrfq.resume(run.path, "cpu"))).round == 2
    assert session.state.round == 1


def test_a_run_trained_beside_others_goes_on_with_them_only(tmp_path: Path) -> None:
    both = [from_table({**SMALL, "seed": seed}) for seed in (0, 1)]
    session = Session.begin(both, torch.device("cpu"), tmp_path)
    next(session.advance())
    session.stop()
    session.close()
    with pytest.raises(fedrfq.UserError, match=r"side by side with other runs.*fedrfq resume"):
        fedrfq.resume(session.runs[0].path, "cpu").finish()


class Told(fedrfq.Callback):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_start(self, run: Any) -> None:
        self.heard.append(run)

    def on_round(self, run: Any, record: fedrfq.RoundRecord) -> None:
        assert len(run.rounds) == record.round
        self.heard.append(record.round)
        if record.round == 3:
            run.stop()

    def on_end(self, run: Any, status: str) -> None:
        self.heard.append(status)


class Broken(fedrfq.Callback):
    def on_round(self, run: Any, record: fedrfq.RoundRecord) -> None:
        raise RuntimeError(f"no disk in round {record.round}")


def test_callbacks_are_told_and_cannot_lose_the_run(tmp_path: Path) -> None:
    told = Told()
    run = started(tmp_path, callbacks=[Broken(), told])
    with pytest.warns(RuntimeWarning, match=r"Broken failed in on_round.*in round 1") as warned:
        run.finish()
    assert len(warned) == 1
    with pytest.warns(RuntimeWarning, match="Broken failed"):
        run.finish()
    assert told.heard == [run, 1, 2, 3, "stopped", run, 4, "finished"]


def test_callbacks_hear_of_a_failure(tmp_path: Path) -> None:
    told = Told()
    run = fedrfq.run({**SMALL, "train": {"lr": 1e38}}, "cpu", tmp_path, callbacks=[told])
    with pytest.raises(fedrfq.UserError, match="not a number"):
        run.finish()
    assert told.heard[-1] == "failed"


def test_progress_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started(tmp_path, progress=True).finish()
    assert "100%" in capsys.readouterr().out


def test_models_can_be_trained_on(finished: fedrfq.Run) -> None:
    model = finished.models[2]
    assert len(finished.models) == 3
    assert len(list(finished.models)) == 3
    x = torch.rand(8, 1, 28, 28)
    y = torch.zeros(8, dtype=torch.int64)
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(5):
        model.train()
        loss = torch.nn.functional.cross_entropy(model(x)[0], y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        model.eval()
        losses.append(torch.nn.functional.cross_entropy(model(x)[0], y).item())
    assert losses[-1] < losses[0]
    # What was trained on is a copy: the run's own model is as it was.
    assert not torch.equal(model(x)[0], finished.models[2](x)[0])


def test_arrays_and_files_are_predicted_alike(finished: fedrfq.Run, tmp_path: Path) -> None:
    from PIL import Image

    image = np.random.default_rng(0).integers(0, 256, (28, 28), np.uint8)
    Image.fromarray(image).save(tmp_path / "a.png")
    by_file = finished.predict(1, [tmp_path / "a.png"])
    for given in (image[None], torch.from_numpy(image[None, None]), image[None] / 255):
        by_array = finished.predict(1, given)
        assert list(by_array["class"]) == list(by_file["class"])
        assert list(by_array["probability"]) == list(by_file["probability"])
    with pytest.raises(fedrfq.UserError, match=r"found \(1, 14, 28\)"):
        finished.predict(1, image[None, :14])


def test_report_and_verify(tmp_path: Path) -> None:
    table = {**SMALL, "rounds": 1, "committee": {"name": "simulated"}}
    run = fedrfq.run(table, "cpu", tmp_path)
    run.finish()
    assert run.verify() == {"holds": True, "rounds": 1, "evidence": []}
    assert run.report() == run.path / "report.html"
    assert run.report().stat().st_size > 10_000


def test_without_a_committee_there_is_nothing_to_verify(finished: fedrfq.Run) -> None:
    with pytest.raises(fedrfq.UserError, match="no audit log"):
        finished.verify()


@pytest.mark.parametrize("source", [3, None, ["method"]])
def test_what_is_no_source_is_refused_in_words(source: Any) -> None:
    with pytest.raises(fedrfq.UserError, match="a TOML file, a dict or an Experiment, found"):
        fedrfq.run(source)


def test_what_is_no_list_of_callbacks_is_refused_with_what_to_give() -> None:
    callback: Any = fedrfq.Callback()
    with pytest.raises(fedrfq.UserError, match=r"give \[callback\]"):
        fedrfq.run({"rounds": 1}, callbacks=callback)
    # The class itself, instead of one of it.
    classes: Any = [fedrfq.Callback]
    with pytest.raises(fedrfq.UserError, match=r"such as \[MyCallback\(\)\], found <class"):
        fedrfq.run({"rounds": 1}, callbacks=classes)
