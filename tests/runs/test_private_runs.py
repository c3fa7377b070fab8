"""Runs with noise: drawn once, kept before it is used, accounted for, and never from the seed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrfq import experiment
from fedrfq.errors import UserError
from fedrfq.learning.public.exchange import PublicExchange
from fedrfq.privacy.accountant import epsilon
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session
from fedrfq.runs.summary import rows
from support.command import CPU, assert_same_run, fedrfq, only_run, sets

PRIVATE = [
    "clients=3",
    "rounds=2",
    "checkpoint=1",
    "partition.shots=4",
    "partition.test_shots=2",
    "method.name=local",
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "public.every=1",
    "detector.name=sampling",
    "committee.name=simulated",
    "privacy.noise=2.0",
]


@pytest.fixture(scope="module")
def finished(_data_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished")
    fedrfq("run", *sets(PRIVATE), "--out", out)
    return only_run(out).path


def uploads(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (path / "privacy").iterdir()}


def test_every_client_has_an_epsilon(finished: Path) -> None:
    """Statistics are exchanged in both rounds."""
    spent = epsilon([2.0, 2.0], 1e-5)
    claims = json.loads((finished / "privacy.json").read_text())["clients"]
    assert [row["client"] for row in claims] == list(range(3))
    for row in claims:
        assert (row["uploads"], row["epsilon"], row["why"]) == (2, spent, "")
        assert (row["noise"], row["delta"], row["unit"]) == (2.0, 1e-5, "sample")
        assert "discrete Gaussian" in row["mechanism"]
    result = json.loads((finished / "result.json").read_text())
    assert result["privacy"]["epsilon"] == spent
    # The report has the same rows.
    facts = [text for label, text in rows(RunDirectory.open(finished)) if label == "privacy"]
    assert facts == [f"ε = {spent:.4g} at δ = 1e-05, for any one sample; uploads: 2 (3 clients)"]


def test_a_delta_that_is_large_beside_the_samples_is_said(finished: Path, tmp_path: Path) -> None:
    """A mechanism that shows one of 12 samples as it is has the δ of one in 12."""
    assert not [text for label, text in rows(RunDirectory.open(finished)) if label == "warning"]
    many = [*PRIVATE, "rounds=1", "clients=2", "partition.shots=50", "privacy.delta=0.01"]
    assert "above one in 1" in fedrfq("run", *sets(many), "--dry-run").stdout
    fedrfq("run", *sets(many), "--out", tmp_path)
    (said,) = [text for label, text in rows(only_run(tmp_path)) if label == "warning"]
    assert said.startswith("δ = 0.01 is above one in 1")


def test_it_is_verified_and_the_auditor_sees_the_mechanism(finished: Path) -> None:
    *table, found = fedrfq("verify", finished, "--recompute", "--json").stdout.splitlines()
    assert json.loads(found)["privacy"]["noise"] == 2.0
    assert "agreed on 2 × what one" in "".join(table)
    assert "All uploads" in "".join(table)
    without = " ".join(fedrfq("verify", finished).stdout.replace("│", " ").split())
    assert "No upload was checked" in without
    assert "All uploads" not in without


def test_the_seed_does_not_decide_the_noise(tmp_path: Path, finished: Path) -> None:
    fedrfq("run", *sets([*PRIVATE, "rounds=1"]), "--out", tmp_path)
    drawn = uploads(only_run(tmp_path).path)
    assert drawn.keys() < uploads(finished).keys()
    assert all(content != uploads(finished)[name] for name, content in drawn.items())


def test_a_run_that_is_resumed_draws_nothing_again(tmp_path: Path) -> None:
    """It is stopped in the middle of a round: what was drawn is there, and no record of it."""
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    path = session.runs[0].path
    next(session.advance())
    # As if it had died before the first checkpoint: the records say that nothing happened.
    session.close()
    for checkpoint in (path / "checkpoints").iterdir():
        checkpoint.unlink()
    first = uploads(path)
    assert len(first) == 3
    fedrfq("resume", path)
    after = uploads(path)
    assert {name: after[name] for name in first} == first
    assert len(after) == 6
    claims = json.loads((path / "privacy.json").read_text())["clients"]
    assert {row["uploads"] for row in claims} == {2}


def test_a_run_with_the_same_noise_is_the_same_to_the_byte(tmp_path: Path) -> None:
    """Noise is all that differs: given the uploads of another run, everything else follows."""
    runs = []
    for number in range(2):
        session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path / str(number))
        path = session.runs[0].path
        if runs:
            (path / "privacy").mkdir()
            for name, content in uploads(runs[0]).items():
                (path / "privacy" / name).write_bytes(content)
        for _ in session.advance():
            pass
        session.finish()
        session.close()
        runs.append(path)
    assert_same_run(*runs)
    assert (runs[0] / "audit.log").read_bytes() == (runs[1] / "audit.log").read_bytes()


def test_noise_that_cannot_be_kept_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    path = session.runs[0].path
    # A file where the folder should be.
    (path / "privacy").write_text("")
    with pytest.raises(UserError, match="cannot write to"):
        next(session.advance())
    assert (path / "rounds.jsonl").read_text() == ""
    session.close()


def test_a_spent_budget_stops_uploads_and_the_run_goes_on(tmp_path: Path) -> None:
    fedrfq("run", *sets([*PRIVATE, "privacy.budget=2.0"]), "--out", tmp_path)
    run = only_run(tmp_path)
    assert len(uploads(run.path)) == 3
    records = run.rounds()
    assert [record.parameters_up > 0 for record in records] == [True, False]
    claims = json.loads((run.path / "privacy.json").read_text())["clients"]
    assert {(row["uploads"], row["epsilon"] <= 2.0) for row in claims} == {(1, True)}
    fedrfq("verify", run.path, "--recompute")


def test_a_budget_for_no_upload_at_all_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="below what one upload costs"):
        Session.begin([experiment.load(sets=[*PRIVATE, "privacy.budget=0.5"])], CPU, tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_epsilon_is_refused_where_prototypes_leave_the_client(tmp_path: Path) -> None:
    fedrfq(
        "run",
        *sets([*PRIVATE, "method.name=fedproto", "public.every=0", "rounds=1"]),
        "--out",
        tmp_path,
    )
    run = only_run(tmp_path)
    claims = json.loads((run.path / "privacy.json").read_text())["clients"]
    assert {row["epsilon"] for row in claims} == {None}
    assert "uploads prototypes of features that were trained" in claims[0]["why"]
    (fact,) = [text for label, text in rows(run) if label == "privacy"]
    assert fact.startswith("no ε: method 'fedproto' uploads")
    planned = fedrfq(
        "run", *sets([*PRIVATE, "method.name=fedproto", "public.every=0"]), "--dry-run"
    ).stdout
    assert "privacy: no ε: method 'fedproto' uploads" in planned


def test_all_classes_are_uploaded_where_that_was_agreed_on(tmp_path: Path) -> None:
    session = Session.begin(
        [experiment.load(sets=[*PRIVATE, "privacy.classes=all"])], CPU, tmp_path
    )
    (outcome,) = next(session.advance())
    session.close()
    assert outcome.sent.held_KJ.all()


def test_declared_classes_are_uploaded_with_samples_or_without(tmp_path: Path) -> None:
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    loop = session.loop
    expected = [own.tolist() for own in loop.partitions[0].classes]
    (outcome,) = next(session.advance())
    session.close()
    assert [row.nonzero()[0].tolist() for row in outcome.sent.held_KJ] == expected


@pytest.mark.parametrize("kind", ["iid", "dirichlet"])
def test_classes_that_follow_from_samples_are_no_declaration(kind: str) -> None:
    """One sample of a class decides whether the class is uploaded, and so shows."""
    dealt = [key for key in PRIVATE if not key.startswith("partition.")]
    dealt += [f"partition.name={kind}", "privacy.budget=0"]
    why = experiment.load(sets=dealt).uncovered()
    assert why.startswith(f"with partition '{kind}'")
    assert f"no ε: {why}" in fedrfq("run", *sets(dealt), "--dry-run").stdout
    assert not experiment.load(sets=[*dealt, "privacy.classes=all"]).uncovered()
    # Clients of a federation with a data contract declare classes themselves.
    assert not experiment.load(sets=[*dealt, "data.name=contract"]).uncovered()


@pytest.mark.parametrize("damage", ["{}", '{"clients": []}', '{"clients": [{"noise": []}]}'])
def test_a_record_that_somebody_wrote_is_refused_politely(finished: Path, damage: str) -> None:
    path = finished / "privacy.json"
    text = path.read_text()
    path.write_text(damage)
    try:
        with pytest.raises(UserError, match="restore the files"):
            rows(RunDirectory.open(finished))
    finally:
        path.write_text(text)


def test_samples_reach_the_mechanism_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With noise, the statistics without it are not even computed."""
    monkeypatch.setattr(PublicExchange, "uploads", None)
    session = Session.begin([experiment.load(sets=PRIVATE)], CPU, tmp_path)
    next(session.advance())
    session.close()
