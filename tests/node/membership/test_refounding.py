"""A federation is founded anew when some have agreed: what they had of the first is set aside."""

from __future__ import annotations

import asyncio
import logging
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrfq.consensus.messages import Fetch, Message, PartKind
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.node.driver.admission import Admission
from fedrfq.node.membership import epochs, founding, identity, joining, refounding
from fedrfq.node.obstacles import log_other_runs
from fedrfq.node.ops.local_cluster import free_ports
from fedrfq.node.storage.write_ahead_log import DamagedLog, WriteAheadLog
from support.command import command, fedrfq
from support.parties import purpose

LIMIT_S = 120.0
CLASSES = ("bag", "boot")
SETS = ["--set", "model.name=mlp", "--set", "rounds=2"]


class Parties:
    """Four servers and two clients, each with the one command that its operator starts."""

    def __init__(self, folder: Path, running: ExitStack) -> None:
        self.folder = folder
        self.shared = folder / "shared"
        self.shared.mkdir()
        self._running = running
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        join = ("--join", self.shared)
        self.commands: dict[str, tuple[object, ...]] = {
            f"hospital-{k}": ("--address", f"127.0.0.1:{port}", *join)
            for k, port in enumerate(free_ports(4))
        }
        for k in range(2):
            self.commands[f"ward-{k}"] = ("--data", pictures(folder / f"scans-{k}"), *join)

    def start(self, *names: str) -> None:
        for name in names:
            role = "server" if name.startswith("hospital") else "client"
            words = command(role, self.folder / name, *self.commands[name])
            with self.log(name).open("ab") as out:
                process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=out, stderr=out)
            self._running.callback(process.wait)
            self._running.callback(process.kill)
            self.processes[name] = process

    def found(self, *options: object) -> str:
        """Found the federation once all have asked, and return the id that is read out."""
        self.until(lambda: len(list((self.shared / "requests").glob("*.toml"))) == 6)
        contract = ("--classes", ",".join(CLASSES), *options)
        fedrfq("committee", "init", self.shared, *contract, *SETS, "--minimum", 2)
        return joining.spoken(identity.read_federation(self.shared / "federation.toml"))

    def type(self, told: str, *names: str) -> None:
        for name in names:
            typed = self.processes[name].stdin
            assert typed is not None
            typed.write(told.encode() + b"\n")
            typed.flush()

    def stop(self, *names: str) -> None:
        for name in names:
            self.processes[name].terminate()
            self.processes[name].wait(LIMIT_S)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str, text: str) -> int:
        return self.log(name).read_text().count(text)

    def until(self, what: Callable[[], bool]) -> None:
        limit = time.monotonic() + LIMIT_S
        while not what():
            assert time.monotonic() < limit, {
                name: self.log(name).read_text()[-2000:] for name in self.processes
            }
            time.sleep(0.05)


def pictures(folder: Path) -> Path:
    random = np.random.default_rng(len(folder.name))
    for brightness, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            values = 100 * brightness + random.integers(0, 60, (8, 8))
            Image.fromarray(values.astype(np.uint8)).save(folder / name / f"{number}.png")
    return folder


def test_it_is_founded_anew_when_two_of_six_have_agreed(tmp_path: Path) -> None:
    with ExitStack() as running:
        parties = Parties(tmp_path, running)
        everybody = list(parties.commands)
        parties.start(*everybody)
        told = parties.found("--shape", "1x8x8")
        agreed = ["hospital-0", "ward-0"]
        others = [name for name in everybody if name not in agreed]
        parties.type(told, *agreed)
        # The client has even trained, a model that the next contract has no use for.
        model = tmp_path / "ward-0" / "model" / "model.safetensors"
        parties.until(lambda: model.exists() and bool(parties.said("ward-0", "connected")))
        parties.stop(*others)
        (parties.shared / "federation.toml").unlink()
        told = parties.found("--shape", "1x10x10", "--resize")
        parties.start(*others)
        parties.type(told, *others)
        # Two go on with the first until their operators start them again, too.
        foreign = "has another federation.toml  peer"
        parties.until(lambda: bool(parties.said("hospital-1", f"{foreign}=ward-0")))
        parties.until(lambda: bool(parties.said("hospital-0", f"{foreign}=ward-1")))
        parties.stop(*agreed)
        parties.start(*agreed)
        parties.type(told, *agreed)
        parties.until(lambda: all(parties.processes[f"ward-{k}"].poll() == 0 for k in range(2)))
        for name in agreed:
            assert parties.said(name, "had certified no round: it is set aside in") == 1
            (aside,) = (tmp_path / name / "set-aside").iterdir()
            assert parties.said("hospital-1", f"{foreign}={name}") <= 1
            assert {"federation.toml", "log"} <= {path.name for path in aside.iterdir()}
        # Clients need three servers; the fourth may learn of the rounds later.
        logs = [tmp_path / name / "audit.log" for name in everybody[:4]]
        parties.until(lambda: all(log.stat().st_size for log in logs))
        # From now on the same command asks nothing.
        parties.stop(*everybody[:4])
        parties.start("hospital-0")
        parties.until(lambda: parties.said("hospital-0", "started") == 3)
    assert "2 of 2" in fedrfq("verify", tmp_path / "hospital-1", "--recompute").stdout
    # Once rounds are certified nothing is set aside, wherever it is written that they are.
    (parties.shared / "federation.toml").unlink()
    parties.found("--shape", "1x12x12", "--resize")
    (tmp_path / "hospital-1" / "audit.log").unlink()
    shutil.rmtree(tmp_path / "hospital-2" / "log")
    for name in everybody[:3]:
        said = fedrfq("server", tmp_path / name, *parties.commands[name], expect=2).stderr
        assert "has certified rounds, and" in said
        assert "start it without --join" in said


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(joining, "_LOOK_EVERY_S", 0.01)
    folder = tmp_path / "shared"
    folder.mkdir()
    joining.ask(tmp_path / "hospital", folder, "127.0.0.1:7400")
    joining.ask(tmp_path / "ward", folder)
    return folder


def founded(shared: Path, deadline_ms: int) -> Federation:
    """Found a federation, perhaps in place of another, of the same parties."""
    (shared / "federation.toml").unlink(missing_ok=True)
    timings = Timings(deadline_ms=deadline_ms)
    federation = founding.federation(purpose(1), founding.requests(shared), timings)
    founding.found(shared, federation, [])
    return federation


def agree(folder: Path, shared: Path) -> None:
    me = joining.await_federation(folder, shared)
    joining.agree(me, joining.spoken(me.federation), shared)


@contextmanager
def opened(folder: Path) -> Iterator[WriteAheadLog]:
    log = WriteAheadLog.open(folder, identity.load(folder).federation.roster.run)
    try:
        yield log
    finally:
        log.close()


def note(folder: Path) -> Message:
    """Let a server write something to its log."""
    own = identity.load(folder)
    message = Rules(own.federation.roster).unsigned(Fetch(1, PartKind.CERT))
    with opened(folder) as log:
        log.append(message)
    return message


def test_who_goes_back_to_the_first_federation_has_its_log_again(
    tmp_path: Path, shared: Path
) -> None:
    """Without it, a server would vote again in a run in which it may have voted."""
    hospital = tmp_path / "hospital"
    founded(shared, 1000)
    agree(hospital, shared)
    said = note(hospital)
    founded(shared, 2000)
    assert not refounding.has_agreed(hospital, shared)
    refounding.set_aside(hospital)
    agree(hospital, shared)
    assert refounding.has_agreed(hospital, shared)
    with opened(hospital) as log:
        assert not log.messages
    founded(shared, 1000)
    assert not refounding.has_agreed(hospital, shared)
    refounding.set_aside(hospital)
    agree(hospital, shared)
    with opened(hospital) as log:
        assert [message.digest for message in log.messages] == [said.digest]


def test_what_a_crash_interrupts_is_finished_and_nobody_starts_without_a_log(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the first file, then after the second, and so on."""
    hospital = tmp_path / "hospital"
    founded(shared, 1000)
    agree(hospital, shared)
    said = note(hospital)
    founded(shared, 2000)
    rename = Path.rename
    for allowed in range(1, 9):
        moves = iter(range(allowed))

        def crashing(path: Path, target: Path, moves: Iterator[int] = moves) -> Path:
            if next(moves, None) is None:
                raise KeyboardInterrupt
            return rename(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "rename", crashing)
            with suppress(KeyboardInterrupt):
                refounding.set_aside(hospital)
        assert not (hospital / "federation.toml").exists()
        assert not refounding.has_agreed(hospital, shared)
        refounding.set_aside(hospital)
        (aside,) = (hospital / "set-aside").iterdir()
        assert {"federation.toml", "log"} <= {path.name for path in aside.iterdir()}
        founded(shared, 1000)
        agree(hospital, shared)
        with opened(hospital) as log:
            assert [message.digest for message in log.messages] == [said.digest]


def test_a_party_that_has_agreed_goes_on(tmp_path: Path, shared: Path) -> None:
    ward = tmp_path / "ward"
    assert not refounding.has_agreed(ward, shared)
    first = founded(shared, 1000)
    agree(ward, shared)
    assert refounding.has_agreed(ward, shared)
    # What the servers have agreed on was not founded anew, whoever put it there.
    network = first.network
    assert network is not None
    later = replace(first, network=replace(network, follows=first.roster.run.hex()))
    (shared / "federation.toml").write_text(later.text)
    assert refounding.has_agreed(ward, shared)
    # The founder has removed it, and is about to write the next.
    (shared / "federation.toml").unlink()
    assert not refounding.has_agreed(ward, shared)
    # The folder has done its work.
    assert refounding.has_agreed(ward, tmp_path / "gone")


def test_the_run_before_a_change_is_no_other_federation(
    shared: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = founded(shared, 1000)
    assert first.network is not None
    before = first.roster.run
    later = replace(first, network=replace(first.network, follows=before.hex()))

    async def hear() -> None:
        admission = Admission(later.roster, Counter())
        log_other_runs(admission, later)
        admission.on_another_run(0, before)
        admission.on_another_run(~0, bytes(32))

    with caplog.at_level(logging.WARNING):
        asyncio.run(hear())
    (record,) = caplog.records
    assert record.facts["peer"] == "ward"  # type: ignore[attr-defined]


def test_a_change_that_a_crash_interrupted_is_finished_first(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    founded(shared, 1000)
    ward = tmp_path / "ward"
    agree(ward, shared)

    def finish(folder: Path) -> None:
        (folder / "moved.toml").rename(folder / "federation.toml")

    (ward / "federation.toml").rename(ward / "moved.toml")
    monkeypatch.setattr(epochs, "complete_activation", finish)
    assert refounding.has_agreed(ward, shared)


def test_a_party_that_runs_keeps_its_log(tmp_path: Path, shared: Path) -> None:
    hospital = tmp_path / "hospital"
    founded(shared, 1000)
    agree(hospital, shared)
    with opened(hospital), pytest.raises(UserError, match="stop the other first"):
        refounding.set_aside(hospital)
    assert (hospital / "federation.toml").exists()


def test_a_file_that_was_replaced_by_hand_is_not_called_a_damaged_log(
    tmp_path: Path, shared: Path
) -> None:
    """A server that rejoined would abstain in a run in which it has said nothing."""
    hospital = tmp_path / "hospital"
    founded(shared, 1000)
    agree(hospital, shared)
    note(hospital)
    (hospital / "federation.toml").write_text(founded(shared, 2000).text)
    with pytest.raises(DamagedLog, match="put the federation") as refused, opened(hospital):
        pass
    assert "--rejoin" not in str(refused.value)
