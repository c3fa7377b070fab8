"""Campaigns find the same in one go or in many, on one process or several."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from fedrfq.errors import UserError
from fedrfq.simulator.fuzz.campaign import Breach, Campaign, Tally
from fedrfq.simulator.fuzz.coverage import REQUIRED, by_group, missing
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import Settings
from fedrfq.simulator.fuzz.workers import workers
from support.command import command, fedrfq
from support.paths import ROOT

SETTINGS = Settings(servers=4, schedules=240, seed=7)


def quiet(settings: Settings, index: int) -> Tally:
    """Pretend to run a schedule: all that comes of it are the digits of its seed."""
    seed = settings.schedule_seed(index)
    return Tally(1, seed % 100, Counter({f"digit {seed % 10}": 1, "all": 2}))


def planted(settings: Settings, index: int) -> Tally:
    """Pretend that three schedules break an invariant; only the first of them counts."""
    breach = None
    if index in (130, 131, 200):
        breach = Breach(index, settings.schedule_seed(index), "agreement", "planted")
    return Tally(1, 1, Counter(all=1), breach)


def deadly(settings: Settings, index: int) -> Tally:
    """Kill the worker in the middle of the campaign."""
    if index == 60:
        os.kill(os.getpid(), signal.SIGKILL)
    return quiet(settings, index)


def slow(settings: Settings, index: int) -> Tally:
    time.sleep(0.005)
    return quiet(settings, index)


def finish(campaign: Campaign, jobs: int = 1) -> Tally:
    with workers(jobs) as pool:
        for _ in campaign.advance(pool, jobs):
            pass
    return campaign.tally


def test_every_schedule_has_a_seed_of_its_own() -> None:
    seeds = {
        Settings(n, 1, seed).schedule_seed(i) for n in (4, 7) for seed in (0, 1) for i in range(500)
    }
    assert len(seeds) == 2000
    other = Settings(4, 99, 0, "a mutant", "ed25519", True)
    assert Settings(4, 1, 0).schedule_seed(3) == other.schedule_seed(3)


def test_the_number_of_processes_changes_nothing(tmp_path: Path) -> None:
    records = []
    for jobs in (1, 2, 3):
        path = tmp_path / f"{jobs}.json"
        finish(Campaign(SETTINGS, path, quiet), jobs)
        record = json.loads(path.read_text())
        assert record.pop("timing")["seconds"] >= 0
        records.append(json.dumps(record))
    assert records[0] == records[1] == records[2]
    assert json.loads(records[0])["summary"]["exercised"]["all"] == 480


def test_stopped_and_taken_up_it_finds_the_same(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    uninterrupted = finish(Campaign(SETTINGS, None, quiet))
    calls = 0
    while not Campaign(SETTINGS, path, quiet).done():
        calls += 1
        with workers(2) as pool:
            next(Campaign(SETTINGS, path, quiet).advance(pool, 2))
    assert calls > 3
    assert Campaign(SETTINGS, path, quiet).tally == uninterrupted


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_breach_counts(jobs: int) -> None:
    tally = finish(Campaign(SETTINGS, None, planted), jobs)
    assert tally.breach == Breach(130, SETTINGS.schedule_seed(130), "agreement", "planted")
    assert tally.schedules == tally.exercised["all"] == 131


class Inline(Executor):
    """Runs every call at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def test_little_is_begun_beyond_an_early_breach() -> None:
    run: list[int] = []

    def first_breaks(settings: Settings, index: int) -> Tally:
        run.append(index)
        if index > 0:
            return quiet(settings, index)
        return Tally(1, 1, breach=Breach(index, 1, "agreement", "planted"))

    assert len(list(Campaign(SETTINGS, None, first_breaks).advance(Inline(), 2))) == 1
    assert len(run) <= 4


def test_a_campaign_that_found_a_breach_is_done(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    first = finish(Campaign(SETTINGS, path, planted))
    again = Campaign(SETTINGS, path, planted)
    assert again.done()
    assert finish(again) == first


@pytest.mark.parametrize(
    "other",
    [Settings(5, 240, 7), Settings(4, 250, 7), Settings(4, 240, 8), Settings(4, 240, 7, wire=True)],
)
def test_other_settings_are_refused(tmp_path: Path, other: Settings) -> None:
    path = tmp_path / "out.json"
    finish(Campaign(SETTINGS, path, quiet))
    with pytest.raises(UserError, match="other settings"):
        Campaign(other, path, quiet)


def test_findings_of_another_version_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    finish(Campaign(SETTINGS, path, quiet))
    monkeypatch.setattr("fedrfq.simulator.fuzz.campaign.code_hash", lambda: "another")
    with pytest.raises(UserError, match="code"):
        Campaign(SETTINGS, path, quiet)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"settings": {}, "summary": 3}', "\xff"])
def test_a_file_that_is_no_record(tmp_path: Path, text: str) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"out\.json .*remove it"):
        Campaign(SETTINGS, path, quiet)


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        finish(Campaign(SETTINGS, tmp_path / "file" / "out.json", quiet))


def test_a_worker_that_dies_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    with pytest.raises(UserError, match="worker process died"):
        finish(Campaign(SETTINGS, path, deadly), 2)
    finish(Campaign(SETTINGS, path, quiet), 2)
    assert Campaign(SETTINGS, path, quiet).tally == finish(Campaign(SETTINGS, None, quiet))


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


SCRIPT = """
import pathlib, sys
import test_campaign as t
t.finish(t.Campaign(t.SETTINGS, pathlib.Path(sys.argv[1]), t.slow), 2)
"""


def test_killed_in_the_middle_it_goes_on_and_leaves_no_process_behind(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = [sys.executable, "-c", SCRIPT, str(path)]
    # The package under test may itself be found by PYTHONPATH.
    paths = [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        arguments,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
    )
    wait_for(path, process)
    process.kill()
    # This returns once the last process that holds the pipe has ended.
    process.communicate(timeout=30)
    before = json.loads(path.read_text())["summary"]["schedules"]
    assert 0 < before < SETTINGS.schedules
    assert finish(Campaign(SETTINGS, path, quiet), 2) == finish(Campaign(SETTINGS, None, quiet))


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    arguments = command("committee", "fuzz", "--schedules", 20_000, "--jobs", 2, "--out", path)
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_for(path, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"the same command continues" in errors
    assert b"Traceback" not in errors


def test_what_never_happened_is_missing() -> None:
    everything = Counter(name for names in REQUIRED.values() for name in names)
    assert missing(everything) == []
    assert missing(everything - Counter(["lost", "crashes"])) == ["lost", "crashes"]
    groups = by_group(Counter({"lost": 3, "something new": 1}))
    assert groups["the network"]["lost"] == 3
    assert groups["crashes"]["crashes"] == 0
    assert groups["besides"] == {"something new": 1}


def test_the_command_goes_on_and_ends_with_json(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    first = fedrfq(
        "committee", "fuzz", "--schedules", 30, "--seed", 5, "--jobs", 2, "--out", path, "--json"
    )
    record = json.loads(first.stdout.splitlines()[-1])
    assert record["settings"]["servers"] == 4
    assert record["summary"]["schedules"] == 30
    assert record["summary"]["breach"] is None
    assert "never" in first.stdout
    again = fedrfq(
        "committee", "fuzz", "--schedules", 30, "--seed", 5, "--jobs", 1, "--out", path, "--json"
    )
    assert json.loads(again.stdout.splitlines()[-1])["summary"] == record["summary"]
    refused = fedrfq("committee", "fuzz", "--schedules", 30, "--seed", 6, "--out", path, expect=2)
    assert "other settings (seed 5, not 6)" in refused.stderr


def test_a_violation_is_shown_and_replays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant takes the true replica's place; the workers are forked from this process."""
    with monkeypatch.context() as patch:
        patch.setattr("fedrfq.simulator.fuzz.trial.TRUE", MUTANTS["certificates-unverified"])
        done = fedrfq(
            "committee", "fuzz", "--seed", 5, "--jobs", 2, "--out", tmp_path / "out.json", expect=1
        )
    (seed,) = re.findall(r"fedrfq committee replay --servers 4 --schedule-seed (\d+)", done.stdout)
    transcript = (tmp_path / f"violation-{seed}.txt").read_text()
    assert "certificate broke in schedule" in done.stdout
    replay = ("committee", "replay", "--servers", 4, "--schedule-seed", seed)
    assert fedrfq(*replay, "--mutant", "certificates-unverified", expect=1).stdout == transcript
    assert "every invariant held" in fedrfq(*replay).stdout


def test_a_campaign_that_exercised_too_little_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.cli.fuzz_campaign._MIN_SCHEDULES_JUDGED", 10)
    assert "never" in fedrfq("committee", "fuzz", "--schedules", 10, "--jobs", 1, expect=3).stdout


def test_bytes_on_the_wire_and_real_signatures() -> None:
    options = ("--schedules", 6, "--jobs", 2, "--wire", "--signatures", "ed25519", "--json")
    record = json.loads(fedrfq("committee", "fuzz", *options).stdout.splitlines()[-1])
    assert record["settings"]["signatures"] == "ed25519"
    assert record["summary"]["schedules"] == 6


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("fuzz", "--signatures", "rsa"), "--signatures is one of"),
        (("replay", "--schedule-seed", 1, "--mutant", "none"), "--mutant is one of"),
        (("fuzz", "--servers", 3), "--servers"),
        (("fuzz", "--schedules", 0), "--schedules"),
    ],
)
def test_impossible_options(options: tuple[object, ...], error: str) -> None:
    assert error in fedrfq("committee", *options, expect=2).stderr


def test_exploring() -> None:
    record = json.loads(
        fedrfq("committee", "explore", "--depth", 2, "--json").stdout.splitlines()[-1]
    )
    assert record["violation"] is None
    assert record["states"] > 10
