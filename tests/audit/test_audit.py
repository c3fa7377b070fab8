"""`fedrfq verify` accepts a true log, finds every changed byte, and says what it found."""

from __future__ import annotations

import errno
import json
import re
import shutil
from pathlib import Path

import pytest

from fedrfq.audit import Audit, AuditFailed
from fedrfq.committee import Simulated
from fedrfq.errors import UserError
from fedrfq.files import hash_chain
from support.audited import ROUNDS, equivocated, failure, offsets, rules
from support.command import fedrfq
from support.committees import written


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return equivocated(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


# What holds


def test_a_run_holds_with_and_without_its_bodies(run: Path) -> None:
    for recompute in (False, True):
        found = list(Audit(run, recompute).rounds())
        assert [audited.round for audited in found] == [1, 2, 3]
        assert all(len(audited.inputs.uploads) == 3 for audited in found)
        # The faulty server is charged, and nobody else.
        assert len({charge.who for audited in found for charge in audited.charges}) == 1
    shutil.copytree(run, run.parent / "bare")
    (run.parent / "bare" / "bodies.bin").unlink()
    (run.parent / "bare" / "rounds.jsonl").unlink()
    assert len(list(Audit(run.parent / "bare").rounds())) == ROUNDS


# Bytes


@pytest.mark.parametrize("name", ["audit.log", "bodies.bin"])
def test_every_byte_counts(tmp_path: Path, name: str) -> None:
    """A change of any byte is found, in the entry that the byte belongs to."""
    copy = written(tmp_path / "small", Simulated(), 2, clients=1)
    whole = (copy / name).read_bytes()
    places = offsets(copy, name)
    audit = Audit(copy, recompute=name == "bodies.bin")
    for at in range(len(whole)):
        (copy / name).write_bytes(whole[:at] + bytes([whole[at] ^ (1 << at % 8)]) + whole[at + 1 :])
        with pytest.raises(AuditFailed) as caught:
            list(audit.rounds())
        number = sum(offset <= at for offset in places)
        assert (caught.value.file, caught.value.offset, caught.value.round) == (
            name,
            places[number - 1],
            number,
        ), at


def test_a_log_cut_anywhere_is_torn_there(copy: Path) -> None:
    whole = (copy / "audit.log").read_bytes()
    places = offsets(copy, "audit.log")
    audit = Audit(copy)
    for size in sorted({*range(0, len(whole), 7), *places[:-1]}):
        (copy / "audit.log").write_bytes(whole[:size])
        with pytest.raises(AuditFailed) as caught:
            list(audit.rounds())
        number = sum(offset <= size for offset in places)
        assert (caught.value.offset, caught.value.round) == (places[number - 1], number)
        assert ("the log ends" if size in places[:-1] else "torn") in str(caught.value)


def test_bodies_cut_off_are_torn_or_missing(copy: Path) -> None:
    whole = (copy / "bodies.bin").read_bytes()
    places = offsets(copy, "bodies.bin")
    for size, reason in (
        (places[2], "ends before this round"),
        (places[2] + 10, "torn"),
        (len(whole) - 1, "torn"),
    ):
        (copy / "bodies.bin").write_bytes(whole[:size])
        found = failure(copy, recompute=True)
        assert (found.file, found.offset, found.round) == ("bodies.bin", places[2], 3)
        assert reason in found.why
    list(Audit(copy).rounds())  # which needs no bodies


def test_more_after_the_end_is_found(copy: Path) -> None:
    for name in ("audit.log", "bodies.bin"):
        whole = (copy / name).read_bytes()
        (copy / name).write_bytes(whole + b"\0")
        assert failure(copy, recompute=True).offset == len(whole)
        (copy / name).write_bytes(whole)
    hash_chain.append(copy / "bodies.bin", rules(copy).run, b"")
    assert "no such round" in failure(copy, recompute=True).why


# The command


def test_the_command_says_what_it_found(run: Path) -> None:
    done = fedrfq("verify", run, "--recompute", "--json")
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["holds"] is True
    assert (report["rounds"], report["recomputed"], report["servers"]) == (ROUNDS, True, 4)
    assert report["run"] == rules(run).run.hex()
    assert {charge["who"] for charge in report["evidence"]} <= {f"server {k}" for k in range(4)}
    assert f"{ROUNDS} of {ROUNDS}, recomputed" in done.stdout
    # Clients send noise, so somebody is found odd.
    assert report["reduced"]
    for reasons in report["reduced"].values():
        assert all(name.startswith("client ") for name in reasons)
        assert all(re.match(r"class(es)? \d", why) for why in reasons.values())
    assert f"in {len(report['reduced'])} rounds; in round" in done.stdout
    assert "is verified" in done.stdout


def test_the_command_points_at_the_first_byte_that_does_not_hold(copy: Path) -> None:
    whole = (copy / "audit.log").read_bytes()
    places = offsets(copy, "audit.log")
    at = places[1] + 100
    (copy / "audit.log").write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    done = fedrfq("verify", copy, "--json", expect=1)
    (line,) = [line for line in done.stderr.splitlines() if "verification failed" in line]
    assert f"audit.log, byte {places[1]}, round 2" in line
    report = json.loads(done.stdout.splitlines()[-1])
    assert report == {
        "holds": False,
        "file": "audit.log",
        "offset": places[1],
        "round": 2,
        "why": "the entry's hash is not that of its bytes",
    }


def test_the_command_needs_a_run_with_a_committee(tmp_path: Path) -> None:
    done = fedrfq("verify", tmp_path, expect=2)
    assert "has no federation.toml" in done.stderr


def test_a_folder_that_cannot_be_looked_into_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(UserError, match=r"federation.toml cannot be read .*Permission denied"):
        Audit(tmp_path)
