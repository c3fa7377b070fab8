"""Trackers, each with its real package and without a network; those not installed are skipped."""

import json
import sqlite3
from importlib.util import find_spec

import pytest

from fedrfq.errors import UserError
from fedrfq.experiment import from_table, load
from fedrfq.runs.trackers import TRACKERS
from support.command import SMALL, fedrfq, only_run, records, sets, small_session

QUICK = sets([*SMALL, "rounds=2", "checkpoint=1"])


def tracked(name, out):
    """Return a run of two rounds that the tracker was told of, and its records."""
    if find_spec(TRACKERS[name].package) is None:
        pytest.skip(f"{name} is not installed: make test-extras")
    fedrfq("run", *QUICK, "--set", f"track={name}", "--out", out / "runs")
    run = only_run_in(out / "runs")
    return run, records(run)


def only_run_in(out):
    (path,) = [path for path in out.glob("*/*") if (path / "rounds.jsonl").is_file()]
    return path


def test_a_run_says_what_it_tracks_and_is_the_same_run(tmp_path):
    plain = load(sets=SMALL)
    watched = from_table({**plain.table(), "track": ["tensorboard", "mlflow"]})
    assert watched.track == "tensorboard, mlflow"
    assert from_table(watched.table()) == watched
    assert watched.hash() == plain.hash()
    assert "track" not in plain.table()


def test_a_tracker_that_is_not_there_is_named_before_anything_is_written(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"found 'tensorbord' \(did you mean tensorboard\?\)"):
        small_session(tmp_path, "track=tensorbord")
    monkeypatch.setattr("fedrfq.runs.trackers.tracker.find_spec", lambda name: None)
    with pytest.raises(UserError, match='track = "wandb" needs the package wandb'):
        small_session(tmp_path, "track=wandb")
    assert list(tmp_path.iterdir()) == []


def test_tensorboard_has_the_federation_and_its_clients_and_goes_on_after_a_stop(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    session = small_session(tmp_path, "rounds=3", "track=tensorboard")
    next(session.advance())
    session.stop()
    session.close()
    fedrfq("resume", session.runs[0].path)
    run = only_run(tmp_path).path
    events = EventAccumulator(str(run / "tensorboard")).Reload()
    scalars = events.Scalars("accuracy_mean")
    assert [event.step for event in scalars] == [1, 2, 3]
    expected = [record["accuracy_mean"] for record in records(run)]
    assert [event.value for event in scalars] == pytest.approx(expected)
    names = events.Tags()["scalars"]
    assert {f"clients/{k:02d}/accuracy" for k in range(6)} <= set(names)
    assert (
        "clients = 6"
        in events.Tensors("experiment/text_summary")[0].tensor_proto.string_val[0].decode()
    )


def test_mlflow_has_one_run_with_its_settings(tmp_path):
    run, rounds = tracked("mlflow", tmp_path)
    with sqlite3.connect(tmp_path / "runs" / "mlflow.db") as store:
        assert store.execute("SELECT name, status FROM runs").fetchall() == [(run.name, "FINISHED")]
        params = dict(store.execute("SELECT key, value FROM params"))
        metrics = store.execute("SELECT step, value FROM metrics WHERE key = 'accuracy_mean'")
        assert [value for _, value in sorted(metrics)] == pytest.approx(
            [record["accuracy_mean"] for record in rounds]
        )
        clients = store.execute("SELECT count(*) FROM metrics WHERE key LIKE 'clients/03/accuracy'")
        assert clients.fetchone() == (2,)
    assert params["method.name"] == "fedrfq"


def test_mlflow_writes_its_file_store_where_one_asks_for_it(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run, rounds = tracked("mlflow", tmp_path)
    (metric,) = (tmp_path / "mlruns").glob("*/*/metrics/accuracy_mean")
    steps = [line.split() for line in metric.read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in steps] == [
        (pytest.approx(record["accuracy_mean"]), record["round"]) for record in rounds
    ]
    assert (metric.parents[1] / "tags" / "mlflow.runName").read_text() == run.name
    assert not (run.parents[1] / "mlflow.db").exists()


def test_wandb_writes_its_files_and_sends_nothing(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    run, _ = tracked("wandb", tmp_path)
    (written,) = (run / "wandb").glob("offline-run-*/*.wandb")
    content = written.read_bytes()
    assert run.name.encode() in content
    assert b"clients/03/accuracy" in content


def test_trackio_has_a_local_database(tmp_path, monkeypatch):
    if find_spec("trackio") is None:
        pytest.skip("trackio is not installed: make test-extras")
    monkeypatch.setattr("trackio.utils.TRACKIO_DIR", tmp_path / "trackio")
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "trackio")
    run, rounds = tracked("trackio", tmp_path)
    from trackio.sqlite_storage import SQLiteStorage

    logged = SQLiteStorage.get_logs("mnist5k-fedrfq", run.name)
    means = [line["accuracy_mean"] for line in logged if "accuracy_mean" in line]
    assert means == pytest.approx([record["accuracy_mean"] for record in rounds])
    assert "clients/03/accuracy" in json.dumps(logged)
