"""What the live page makes of files that are damaged, hostile or too many; without a browser."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.node.storage import client_history
from fedrfq.report import live_federation, live_page, live_runs, watch
from fedrfq.report.live_runs import LiveRuns, waiting
from fedrfq.report.page import ReportPage
from fedrfq.report.watch import Watch, watched

GOOD = {"round": 3, "accuracy": 50.0}


@pytest.mark.parametrize(
    "line",
    [
        "no json",
        "[" * 100_000,
        "[]",
        json.dumps({"accuracy": 1}),
        json.dumps({"round": "3"}),
        json.dumps({"round": True}),
        json.dumps({"round": 0}),
        json.dumps({"round": 1 << 31}),
    ],
)
def test_a_line_that_no_client_writes_is_left_out(line: str, tmp_path: Path) -> None:
    text = f"{line}\n{json.dumps(GOOD)}\n" + '{"round": 4'
    (tmp_path / client_history.NAME).write_text(text)
    assert live_federation._read_history(tmp_path) == [GOOD]


@pytest.mark.parametrize("content", [None, b"\xff\xfe\n"])
def test_a_history_that_cannot_be_read_is_none(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / client_history.NAME).write_bytes(content)
    assert live_federation._read_history(tmp_path) == []


def test_numbers_that_would_break_an_axis_are_left_out() -> None:
    found = [live_federation._number({"x": value}, "x") for value in (2, 1e300, "3", None)]
    assert found == [2.0, None, None, None]


def test_a_log_that_is_too_large_or_damaged_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = cast(Federation, SimpleNamespace(roster=SimpleNamespace(run=bytes(32))))
    path = tmp_path / "audit.log"
    assert list(live_federation._entries(path, federation)) == []
    path.write_bytes(b"no log at all, whatever its first bytes say")
    assert list(live_federation._entries(path, federation)) == []
    monkeypatch.setattr(live_federation, "_MAX_LOG_BYTES", 10)
    monkeypatch.setattr("fedrfq.files.hash_chain.entries", lambda *_: pytest.fail("it was read"))
    assert list(live_federation._entries(path, federation)) == []


def test_only_so_many_runs_are_read_and_a_broken_one_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "MAX_RUNS", 2)
    folders = [tmp_path / name for name in ("a", "b", "c")]
    page = LiveRuns().several(folders)
    assert page.title == "Waiting for a run"
    assert "Only the newest 2 of 3 runs are shown." in page.subtitle
    assert page.subtitle.count("Left out: ") == 2


def test_a_run_that_goes_on_is_not_said_to_be_unfinished() -> None:
    notes = ["The run has not finished: …", "Another."]
    assert live_runs._still_true(notes) == ["Another."]


@pytest.mark.parametrize("error", [UserError("mend it"), ValueError("odd")])
def test_whatever_lies_in_the_files_the_server_goes_on(error: Exception) -> None:
    def fails(run: str) -> Any:
        raise error

    looking = Watch(fails)
    looking._look()
    state = json.loads(looking._newest("").text)
    assert state["title"] == "Waiting for a run"
    # What the user can mend is said in its own words.
    odd = "What is there cannot be shown (ValueError('odd'))."
    assert state["subtitle"] == ("mend it" if isinstance(error, UserError) else odd)


def test_a_run_is_read_while_somebody_looks_at_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(run: str) -> ReportPage:
        made.append(run)
        return waiting(f"page of {run}")

    looking = Watch(make)
    assert "is being read" in looking._newest("run=a").text
    looking._look()
    assert "page of a" in looking._newest("run=a").text
    # However many are asked for, only the latest are made, and no more are remembered.
    monkeypatch.setattr(watch, "_MAX_PAGES", 2)
    for name in "bcd":
        looking._newest(f"run={name}&run=x")
    made.clear()
    looking._look()
    assert sorted(made) == ["c", "d"]
    assert sorted(looking._asked) == ["", "c", "d"]
    # One that nobody has asked for in a while is forgotten.
    monkeypatch.setattr(watch, "_LOOKED_AT_S", 0.0)
    looking._look()
    assert list(looking._asked) == [""]


def test_a_federation_is_watched_alone_and_a_run_with_a_committee_is_a_run(tmp_path: Path) -> None:
    for name in ("run", "consortium"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "federation.toml").touch()
    (tmp_path / "run" / "experiment.toml").touch()
    assert not watch._is_federation(tmp_path / "run")
    assert watch._is_federation(tmp_path / "consortium")
    with pytest.raises(UserError, match="consortium is a federation: watch it alone"):
        watched([tmp_path / "run", tmp_path / "consortium"])
    with pytest.raises(UserError, match="nowhere does not exist"):
        watched([tmp_path / "nowhere"])


def test_the_page_may_ask_its_own_server_and_nobody_else() -> None:
    page = live_page.shell("program()")
    policy = page.split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    assert "connect-src 'self'" in policy
    assert "default-src 'none'" in policy


def test_names_in_a_page_are_plain() -> None:
    state = json.loads(live_page.state(waiting("nothing yet")))
    assert state["sections"] == []
    assert state["subtitle"] == "nothing yet"
