"""A run with a committee: its audit log is valid, and it resumes to the same bytes."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrfq.audit import Audit
from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.runs import summary
from fedrfq.runs.session import Session
from support.command import (
    SMALL,
    assert_same_run,
    command,
    fedrfq,
    of_every_round,
    only_run,
    records,
    sets,
    small_session,
    started,
)
from support.small import CPU

LIARS = [
    "committee.name=simulated",
    "committee.faulty=1",
    "committee.behaviour=equivocate",
    "detector.name=adaptive",
]


@pytest.fixture(scope="module")
def agreed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never interrupted."""
    out = tmp_path_factory.mktemp("agreed")
    fedrfq("run", *sets([*SMALL, *LIARS]), "--out", out, "--device", "cpu")
    return only_run(out).path


def test_a_run_leaves_a_log_that_holds(agreed: Path) -> None:
    found = list(Audit(agreed, recompute=True).rounds())
    lines = records(agreed)
    assert [audited.certificate.view for audited in found] == [line["view"] for line in lines]
    assert [len(audited.charges) for audited in found] == [line["evidence"] for line in lines]
    assert sum(line["evidence"] for line in lines) > 0
    result = json.loads((agreed / "result.json").read_text())
    assert result["evidence"] == sum(line["evidence"] for line in lines)
    assert result["committee_bytes"] == sum(line["committee_bytes"] for line in lines)
    shown = dict(summary.rows(only_run(agreed.parent.parent)))
    assert shown["committee"].startswith("4 servers, 1 faulty (equivocate)")
    assert "proofs of misbehaviour" in shown["agreement"]


def test_one_trusted_server_leaves_no_log(tmp_path: Path) -> None:
    session = small_session(tmp_path, "rounds=1")
    assert [outcomes[0].report for outcomes in session.advance()] == [None]
    assert not session.runs[0].audited()
    assert not {path.name for path in session.runs[0].path.iterdir()} & {
        "audit.log",
        "bodies.bin",
        "federation.toml",
    }
    assert session.finish()[0]["view_changes"] is None
    assert "committee" not in dict(summary.rows(session.runs[0]))


def same_log(one: Path, other: Path) -> None:
    assert_same_run(one, other)
    for name in ("audit.log", "bodies.bin", "federation.toml"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_a_killed_run_resumes_to_the_same_bytes(agreed: Path, tmp_path: Path) -> None:
    process, path = started(tmp_path, [*SMALL, *LIARS], 3, "--device", "cpu")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    # As if it had been killed in the middle of a write.
    with (path / "audit.log").open("ab") as log:
        log.write(b"torn")
    fedrfq("resume", path, "--device", "cpu")
    same_log(path, agreed)


def test_an_interrupted_round_is_decided_again(
    agreed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the proofs and the record: nothing is there twice."""
    from fedrfq.runs.run_directory import RunDirectory

    session = small_session(tmp_path, *LIARS)
    true = RunDirectory._append

    def interrupt(self: RunDirectory, name: str, text: str) -> None:
        if session.state.round == 4 and name == "rounds.jsonl":
            monkeypatch.undo()
            raise KeyboardInterrupt
        true(self, name, text)

    monkeypatch.setattr(RunDirectory, "_append", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(session.advance())
    assert len(list(session.advance())) == 4
    session.finish()
    same_log(session.runs[0].path, agreed)


def test_stacked_runs_resume_with_their_committees(tmp_path: Path) -> None:
    out = tmp_path / "runs"
    seeds = ("--seed", 0, "--seed", 1)
    settings = sets([*SMALL, *LIARS, "rounds=2"])
    fedrfq("run", *settings, *seeds, "--out", out, "--device", "cpu")
    runs = sorted(out.glob("*/*"))
    before = [(run / "audit.log").read_bytes() for run in runs]
    assert before[0] != before[1]
    for run in runs:
        (checkpoint,) = (run / "checkpoints").iterdir()
        checkpoint.unlink()
    # Of a release that decided otherwise.
    federation = runs[0] / "federation.toml"
    text = federation.read_text()
    federation.write_text(text.replace("decisions = 1\n", "decisions = 2\n"))
    with pytest.raises(UserError, match=r"federation\.toml names version 2 of the decisions"):
        Session.resume(runs[0], CPU)
    federation.write_text(text)
    session = Session.resume(runs[0], CPU)
    assert session.state.round == 0
    assert len(list(session.advance())) == 2
    assert [(run / "audit.log").read_bytes() for run in runs] == before


@pytest.mark.parametrize("name", ["audit.log", "bodies.bin", "federation.toml"])
def test_a_run_whose_proofs_are_gone_does_not_go_on(tmp_path: Path, name: str) -> None:
    session = small_session(tmp_path, *LIARS, "rounds=4")
    next(iter(session.advance()))
    session.checkpoint()
    session.close()
    path = session.runs[0].path
    (path / name).unlink()
    with pytest.raises(UserError, match=name):
        Session.resume(path, CPU)


def test_a_log_shorter_than_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    session = small_session(tmp_path, *LIARS, "rounds=4")
    next(iter(session.advance()))
    session.checkpoint()
    session.close()
    path = session.runs[0].path
    (path / "audit.log").write_bytes((path / "audit.log").read_bytes()[:-1])
    with pytest.raises(UserError, match=r"audit\.log has 0 intact entries, expected 1"):
        Session.resume(path, CPU)


def test_a_log_that_does_not_hold_is_not_gone_on_with(tmp_path: Path) -> None:
    session = small_session(tmp_path, *LIARS, "rounds=4")
    next(iter(session.advance()))
    session.checkpoint()
    session.close()
    path = session.runs[0].path
    whole = (path / "audit.log").read_bytes()
    (path / "audit.log").write_bytes(whole[:500] + bytes([whole[500] ^ 1]) + whole[501:])
    with pytest.raises(UserError, match=r"audit\.log has 0 intact entries, expected 1"):
        Session.resume(path, CPU)


LAST = "committee/last"


def cut(last: torch.Tensor) -> dict[str, torch.Tensor]:
    return {LAST: last[:-1]}


def flipped(last: torch.Tensor) -> dict[str, torch.Tensor]:
    """A byte of a signature."""
    return {LAST: torch.cat([last[:300], last[300:301] ^ 1, last[301:]])}


def empty(last: torch.Tensor) -> dict[str, torch.Tensor]:
    return {LAST: last[:0]}


def gone(last: torch.Tensor) -> dict[str, torch.Tensor]:
    return {}


@pytest.mark.parametrize("damage", [cut, flipped, empty, gone])
def test_a_checkpoint_that_the_committee_cannot_go_on_from_is_an_error(
    tmp_path: Path, damage: Callable[[torch.Tensor], dict[str, torch.Tensor]]
) -> None:
    session = small_session(tmp_path, *LIARS, "rounds=4")
    next(iter(session.advance()))
    checkpoint = session.checkpoint()
    session.close()
    named, metadata = tensors.load(checkpoint)
    last = named.pop(LAST)
    tensors.save(checkpoint, named | damage(last), metadata)
    with pytest.raises(
        UserError, match=rf"{checkpoint.name} does not have what the committee agreed on last"
    ):
        Session.resume(session.runs[0].path, CPU)
    checkpoint.unlink()  # as it says
    assert Session.resume(session.runs[0].path, CPU).state.round == 0


def test_a_disk_that_fills_up_in_the_middle_of_a_proof_loses_nothing(
    agreed: Path, tmp_path: Path
) -> None:
    def limit() -> None:
        # Two entries of bodies.bin fit, and a part of the third.
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))

    settings = sets([*SMALL, *LIARS, "checkpoint=100"])
    done = subprocess.run(
        command("run", *settings, "--out", tmp_path, "--device", "cpu"),
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )
    assert done.returncode == 2
    assert "cannot write" in done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    path = only_run(tmp_path).path
    fedrfq("resume", path, "--device", "cpu")
    # The two runs make checkpoints, and test on all classes, in different rounds.
    assert of_every_round(path) == of_every_round(agreed)
    assert records(path)[-1] == records(agreed)[-1]
    assert len(list(Audit(path, recompute=True).rounds())) == 8


def test_the_checkpoint_has_what_the_committee_goes_on_from(tmp_path: Path) -> None:
    session = small_session(tmp_path, *LIARS, "rounds=4")
    next(iter(session.advance()))
    session.checkpoint()
    loaded = session.runs[0].last(torch.device("cpu"))
    assert loaded.agreed == session.state.agreed
    assert np.array_equal(loaded.globals_[0].values_JV, session.state.globals_[0].values_JV)
