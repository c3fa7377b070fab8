"""A federation is changed by agreement, the next run inherits from it, and anyone can follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import (
    ReconfigurableApplication,
    inherited_by,
    read_successor,
    reconfigurable,
)
from fedrfq.node.membership import epochs, identity
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.membership.founding import NewKeys
from fedrfq.robust.detectors import Detector
from fedrfq.robust.detectors.none import NoDetection
from support.command import fedrfq
from support.committees import some_settings, uploads
from support.federations import ended_run, founded
from support.remembering import Halving

NEW = NewKeys.new("client-9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    founded(tmp_path, clients=3)
    return tmp_path


@pytest.fixture
def federation(folder: Path) -> Federation:
    return identity.load(folder / "server-0").federation


def decided(
    application: ReconfigurableApplication, round_: int = 1, before: Outcome | None = None
) -> Outcome:
    """Return the outcome of a round in which all clients upload."""
    clients = application.task.clients
    sent = uploads(some_settings(clients), round_).encoded(round_)
    messages = [Upload(round_, k, content) for k, content in enumerate(sent)]
    return application.decide(round_, before or application.start(), messages)


@pytest.mark.parametrize("wrong", ["follows", "shape", "noise", "length"])
def test_what_cannot_take_the_place_is_refused(
    federation: Federation, folder: Path, wrong: str
) -> None:
    application = reconfigurable(federation)
    right = changed(federation, [NEW.request]).text
    shown = {
        "follows": changed(changed(federation, [NEW.request]), [], ["client-9"]).text.encode(),
        "shape": right.replace("values = 4", "values = 5").encode(),
        "noise": b"\xff\xfe",
        "length": b"#" * (1 << 23),
    }[wrong]
    assert application.refuses_successor(right.encode()) is None
    assert application.refuses_successor(shown) is not None
    # A client's upload must be prototypes.
    assert application.refuses(Upload(1, 0, right.encode())) is not None


def test_the_next_run_remembers_by_name(federation: Federation) -> None:
    new = changed(federation, [NEW.request], ["client-0"])
    assert [member.name for member in new.members.values()][4:] == [
        "client-9",
        "client-1",
        "client-2",
    ]
    state = {
        name: np.arange(3) + 10 * n for n, name in enumerate(federation.task.detector.start(3))
    }
    outcome = inherited_by(federation, Outcome(b"globals", b"", codec.encode_state(state)), new)
    found = codec.decode_state(outcome.state)
    fresh = new.task.detector.start(3)
    assert outcome.globals_ == b"globals"
    for name, array in found.items():
        assert array.tolist() == [fresh[name][0], *state[name][1:]]


def test_a_rule_remembers_classes_and_another_detector_begins_afresh(
    federation: Federation,
) -> None:
    def judged_by(one: Federation, detector: Detector) -> Federation:
        return replace(one, task=replace(one.task, detector=detector))

    old = judged_by(federation, Halving())
    state = {name: array + 7 for name, array in old.task.start_state().items()}
    outcome = Outcome(b"globals", b"", codec.encode_state(state))

    def remembered(detector: Detector) -> dict[str, list[int]]:
        new = judged_by(changed(federation, [NEW.request], ["client-0"]), detector)
        found = codec.decode_state(inherited_by(old, outcome, new).state)
        assert found.keys() == new.task.start_state().keys()
        return {name: array.tolist() for name, array in found.items()}

    classes = old.task.classes
    same = remembered(Halving())
    assert same == {"rounds": [0, 7, 7], "rule/rounds": [7] * classes}
    # Other options of the detector, and the same rule.
    other = remembered(Halving(lone="hold"))
    assert other == {"rounds": [0, 0, 0], "rule/rounds": [7] * classes}
    assert remembered(Halving(most=3)) == {"rounds": [0, 0, 0], "rule/rounds": [0] * classes}
    assert remembered(NoDetection()) == {}


def test_a_newcomer_takes_the_place_of_an_expelled_party(federation: Federation) -> None:
    server = NewKeys.new("server-x", "127.0.0.1:9")
    rotated = NewKeys.new("client-1")
    new = changed(
        federation, [server.request, rotated.request, NEW.request], ["server-2"], minimum=2
    )
    assert [member.name for member in new.members.values()] == [
        *("server-0", "server-1", "server-x", "server-3"),
        *("client-0", "client-1", "client-2", "client-9"),
    ]
    assert new.clients[1] == rotated.request.key != federation.clients[1]
    assert read_successor(federation, new.text.encode()) == new
    assert differences(federation, new) == [
        "server-2: leaves",
        "server-x: joins as a server",
        "client-9: joins as a client",
        "client-1: new key, certificate",
        "minimum: 1 -> 2",
    ]
    with pytest.raises(UserError, match=r"no party 'client-7'"):
        changed(federation, [], ["client-7"])
    with pytest.raises(UserError, match="nothing would change"):
        changed(federation)


def last_round(federation: Federation, folder: Path, text: bytes) -> bytes:
    """Return what the last round of a run leaves, which decides on a successor."""
    outcome = decided(reconfigurable(federation))._replace(successor=text)
    return ended_run(federation, folder, outcome)


def activated(
    folder: Path, crash: int, monkeypatch: pytest.MonkeyPatch, last: bytes, text: bytes
) -> bool:
    """Activate a successor, and crash at the given rename; return whether it came to the end."""
    done = 0
    rename = Path.rename

    def crashing(path: Path, target: Path) -> Path:
        nonlocal done
        if done == crash:
            raise KeyboardInterrupt
        done += 1
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crashing)
        try:
            epochs.activate_successor(folder, last, text)
        except KeyboardInterrupt:
            return False
    return True


def test_an_activation_that_a_crash_interrupts_is_completed(
    federation: Federation,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rotated = NewKeys.new("server-0", federation.members[0].address)
    text = changed(federation, [rotated.request]).text.encode()
    last = last_round(federation, folder, text)
    for crash in range(20):
        home = tmp_path_factory.mktemp("home")
        for path in (folder / "server-0").iterdir():
            (home / path.name).write_bytes(path.read_bytes())
            (home / path.name).chmod(path.stat().st_mode)
        (home / "log").mkdir()
        for name in ("audit.log", "bodies.bin", "log/1"):
            (home / name).write_bytes(b"old")
        rotated.write(home / epochs.ROTATION)
        complete = activated(home, crash, monkeypatch, last, text)
        epochs.complete_activation(home)
        assert (home / "federation.toml").read_bytes() == text
        assert identity.load(home).party == 0  # with the new keys
        assert sorted(path.name for path in (home / "past").iterdir()) == ["1"]
        assert (home / "past/1/log/1").read_bytes() == b"old"
        assert (home / "past/1/federation.toml").read_text() == federation.text
        assert not [
            name
            for name in ("log", "audit.log", epochs.NEXT, epochs.ROTATION)
            if (home / name).exists()
        ]
        if complete:
            return
    raise AssertionError("the activation crashed every time")


def test_whoever_trusts_the_first_file_can_follow(federation: Federation, folder: Path) -> None:
    home = folder / "server-0"
    new = changed(federation, [NEW.request])
    last = last_round(federation, folder, new.text.encode())
    assert epochs.inherited_outcome(home, federation) is None
    with pytest.raises(UserError, match="copy the folder past"):
        epochs.inherited_outcome(home, new)
    epochs.activate_successor(home, last, new.text.encode())
    (run,) = epochs.ended_epochs(home)
    assert (run.federation, epochs.rounds_before(home)) == (federation, 1)
    found = epochs.inherited_outcome(home, new)
    assert found == inherited_by(federation, run.outcome, new)
    again = changed(new, [], ["client-9"])  # a second time
    for flipped in range(0, len(last), 97):
        damaged = bytearray(last)
        damaged[flipped] ^= 1
        (home / "past/1/last.bin").write_bytes(damaged)
        with pytest.raises(UserError):
            list(epochs.ended_epochs(home))
    (home / "past/1/last.bin").write_bytes(last)
    (home / "federation.toml").write_text(again.text)
    with pytest.raises(UserError, match="is not what"):
        list(epochs.ended_epochs(home))


def test_a_log_of_an_ended_run_that_is_missing_or_cut_off_is_a_gap(
    federation: Federation, folder: Path
) -> None:
    """How the run ended is certified beside its log, and tells how many rounds it had."""
    home = folder / "server-0"
    new = changed(federation, [NEW.request])
    last = last_round(federation, folder, new.text.encode())
    epochs.activate_successor(home, last, new.text.encode())
    (home / "audit.log").write_bytes(b"")
    done = fedrfq("verify", home, expect=3)
    run = federation.roster.run.hex()
    assert f"of the rounds of run {run[:12]}… are missing 1:" in " ".join(done.stderr.split())


def test_a_client_follows_without_the_servers_memory(federation: Federation, folder: Path) -> None:
    new = changed(federation, [NEW.request])
    home = folder / "client-0"
    last = last_round(federation, folder, new.text.encode())
    epochs.activate_successor(home, last, new.text.encode())
    (run,) = epochs.ended_epochs(home)
    own = epochs.encode_last(
        Rules(federation.roster), run.certificate, run.outcome._replace(state=b"")
    )
    (home / "past/1/last.bin").write_bytes(own)
    found = epochs.inherited_outcome(home, new)
    assert found is not None
    assert (found.globals_, found.state) == (run.outcome.globals_, b"")
