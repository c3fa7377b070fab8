"""`fedrfq evidence` names who is convicted by what, and exports proofs that others can check."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fedrfq.committee import Simulated
from fedrfq.consensus.events import Received
from fedrfq.consensus.messages import Evidence, Kind, Message, Prepare
from fedrfq.federation.round_log import pack, unpack
from support.command import fedrfq
from support.committees import some_settings, uploads, written
from support.networked import CLIENTS, Networked


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Networked:
    """One round, in which client 1 lies; server 2 lies in the next, which is not decided."""
    made = Networked(tmp_path_factory.mktemp("evidence") / "federation")
    lie = made.upload(1, 1, uploads(some_settings(CLIENTS, seed=9), 1).encoded(1)[1])
    made.give(0, Received(~1, lie))
    made.round(1)
    one, other = (
        made.rules.signed(Prepare(2, 0, value * 32, 2), made.signers[2]) for value in (b"a", b"b")
    )
    for message in (one, other):
        made.give(0, Received(2, message))
    made.close()
    return made


def test_both_messages_are_shown_with_the_party_s_name(federation: Networked) -> None:
    lines = fedrfq("evidence", federation.home(0)).stdout.splitlines()
    assert lines[0] == "round 1: client-1 signed two different UPLOAD messages"
    assert lines[1].startswith("    UPLOAD(1 1 ")
    assert lines[1] != lines[2]
    # This one is only in the server's write-ahead log.
    assert lines[3] == "round 2: server-2 signed two different PREPARE messages"
    assert "PREPARE(2 0 616161 2)" in lines[4]
    assert "PREPARE(2 0 626262 2)" in lines[5]
    assert lines[6] == "2 pieces of evidence"


def test_nobody_caught_is_said(federation: Networked) -> None:
    assert "nobody was caught" in fedrfq("evidence", federation.home(~0)).stdout


def test_what_is_exported_proves_itself_to_whoever_has_the_federation_s_file(
    federation: Networked, tmp_path: Path
) -> None:
    proofs = tmp_path / "proofs.bin"
    shown = fedrfq("evidence", federation.home(0), "--export", proofs).stdout
    found = [placed.message for placed in unpack(proofs.read_bytes())]
    assert [message.body.kind for message in found] == [Kind.EVIDENCE] * 2
    checked = fedrfq("evidence", "--check", proofs, federation.folder / "federation.toml").stdout
    assert checked == shown.replace(f"wrote {proofs}\n", "")


def test_what_proves_nothing_is_refused(federation: Networked, tmp_path: Path) -> None:
    proofs = tmp_path / "proofs.bin"
    file = federation.folder / "federation.toml"
    fedrfq("evidence", federation.home(0), "--export", proofs)
    (_, message), *_ = unpack(proofs.read_bytes())
    assert isinstance(message.body, Evidence)
    first = message.body.first
    forged = Message(first.run, first.body, first.raw, bytes(64))
    for false in (
        federation.rules.unsigned(Evidence(1, forged, message.body.second)),
        federation.rules.unsigned(Evidence(1, first, first)),
        first,
    ):
        proofs.write_bytes(pack([message, false]))
        done = fedrfq("evidence", "--check", proofs, file, expect=2)
        assert f"byte {len(pack([message]))}: this proves nothing" in done.stderr
    for data in (b"hello", pack([message])[:-1]):
        proofs.write_bytes(data)
        done = fedrfq("evidence", "--check", proofs, file, expect=2)
        assert "not what --export writes" in done.stderr
    other = Networked(tmp_path / "other")
    other.close()
    proofs.write_bytes(pack([message]))
    done = fedrfq("evidence", "--check", proofs, other.folder / "federation.toml", expect=2)
    assert "proves nothing" in done.stderr
    done = fedrfq("evidence", "--check", tmp_path / "none", file, expect=2)
    assert "No such file" in done.stderr


def test_a_damaged_log_hides_nothing_of_the_other_file(
    federation: Networked, tmp_path: Path
) -> None:
    path = shutil.copytree(federation.home(0), tmp_path / "copy")
    (path / "audit.log").write_bytes(b"torn")
    assert "2 pieces of evidence" in fedrfq("evidence", path).stdout
    shutil.copy(federation.home(0) / "audit.log", path)
    (segment,) = (path / "log").iterdir()
    segment.write_bytes(b"x" * 1000)
    assert "1 piece of evidence" in fedrfq("evidence", path).stdout


def test_a_simulated_run_has_evidence_too(tmp_path: Path) -> None:
    run = written(tmp_path / "run", Simulated(4, 1, "equivocate"), 2, clients=3, seed=2)
    assert "round 1: server " in fedrfq("evidence", run).stdout
