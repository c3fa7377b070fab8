"""`fedrfq verify` on files that are missing, hostile, or of another run."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from fedrfq.audit import Audit
from fedrfq.errors import UserError
from support.audited import equivocated, failure, offsets
from support.command import fedrfq
from support.unusual import put_instead


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return equivocated(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_log_that_ends_early_is_found_where_the_run_has_its_result(copy: Path) -> None:
    """The records are cut too. Without a result this is a run that was stopped.

    The command then says how many rounds are missing.
    """
    for name in ("audit.log", "bodies.bin"):
        (copy / name).write_bytes((copy / name).read_bytes()[: offsets(copy, name)[2]])
    (copy / "rounds.jsonl").write_text("{}\n" * 2)
    report = json.loads(fedrfq("verify", copy, "--recompute", "--json").stdout.splitlines()[-1])
    assert (report["rounds"], report["expected"]) == (2, 3)
    (copy / "result.json").write_text("{}\n")
    found = failure(copy)
    assert (found.file, found.offset, found.round) == (
        "audit.log",
        (copy / "audit.log").stat().st_size,
        3,
    )
    assert "result.json is of 3 rounds" in found.why


def test_no_round_yet_is_nothing_to_verify(copy: Path) -> None:
    for name in ("audit.log", "bodies.bin", "rounds.jsonl"):
        (copy / name).write_bytes(b"")
    with pytest.raises(UserError, match=r"audit\.log has no round yet"):
        list(Audit(copy, recompute=True).rounds())


@pytest.mark.parametrize(
    "name", ["federation.toml", "experiment.toml", "audit.log", "bodies.bin", "rounds.jsonl"]
)
def test_what_is_no_file_is_not_waited_for(copy: Path, name: str) -> None:
    (copy / name).unlink()
    for other in ("pipe", "folder", "link"):
        put_instead(copy / name, other)
        with pytest.raises(UserError, match=f"{name} cannot be read .it is a {other}"):
            list(Audit(copy, recompute=True).rounds())


HOSTILE = {
    "deep": "a = " + "[" * 100_000,
    "deep tables": "a = " + "{a=" * 100_000,
    "dots": "a" + ".a" * 100_000 + " = 1",
    "long number": "a = " + "9" * 5_000,
    "long hexadecimal number": "a = 0x" + "f" * 5_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_tables_are_refused_at_once(copy: Path, text: str) -> None:
    before = (copy / "experiment.toml").read_bytes()
    (copy / "experiment.toml").write_text(text)
    assert failure(copy).file == "experiment.toml"
    (copy / "experiment.toml").write_bytes(before)
    (copy / "federation.toml").write_text(text)
    with pytest.raises(UserError, match=r"federation\.toml cannot be read as a federation"):
        Audit(copy)


def test_a_file_too_long_is_not_read(copy: Path) -> None:
    for name in ("federation.toml", "experiment.toml"):
        before = (copy / name).read_bytes()
        os.truncate(copy / name, 1 << 40)
        with pytest.raises(UserError, match=f"{name} cannot be read .it has 1,099"):
            Audit(copy)
        (copy / name).write_bytes(before)


def test_records_of_a_terabyte_are_not_counted(copy: Path) -> None:
    os.truncate(copy / "rounds.jsonl", 1 << 40)
    with pytest.raises(UserError, match=r"rounds.jsonl cannot be read .it has a line of more than"):
        list(Audit(copy).rounds())


def test_another_experiment_is_found(copy: Path) -> None:
    text = (copy / "experiment.toml").read_text()
    for other in (
        text.replace("rounds = 3", "rounds = 4"),
        "committee = 1",
        "cohorts = [1]",
        "rounds = 'x'",
    ):
        (copy / "experiment.toml").write_text(other)
        assert failure(copy).file == "experiment.toml"
        Audit(copy).expected()


def test_another_federation_is_another_run(copy: Path) -> None:
    text = (copy / "federation.toml").read_text()
    (copy / "federation.toml").write_text(text.replace("view_ms = 2000", "view_ms = 2001"))
    assert "of another run" in failure(copy).why
    (copy / "federation.toml").write_text(text.replace("view_ms = 2000", "view_ms = 2_000"))
    with pytest.raises(UserError, match="not as this program writes it"):
        Audit(copy)
    for other in (
        text + " ",
        text.replace("\n", "\r\n"),
        text + "more = 1\n",
        text.replace("minimum = 1", "minimum = 9"),
    ):
        (copy / "federation.toml").write_bytes(other.encode())
        with pytest.raises(UserError, match=r"federation\.toml"):
            Audit(copy)


@pytest.mark.parametrize("name", ["federation.toml", "experiment.toml", "audit.log", "bodies.bin"])
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(UserError, match=name):
        list(Audit(copy, recompute=True).rounds())


def test_a_party_that_never_ran_is_told_of_as_such(copy: Path) -> None:
    (copy / "audit.log").unlink()
    with pytest.raises(UserError, match=r"has no audit\.log: it has never run, or lost the file"):
        list(Audit(copy).rounds())
