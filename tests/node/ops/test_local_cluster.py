"""A federation on one machine: child processes, seeded chaos, and the command for all of it."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from fedrfq.cli import local_cluster
from fedrfq.errors import UserError
from fedrfq.node.ops.chaos import Chaos
from fedrfq.node.ops.child_processes import Child, stop
from fedrfq.node.ops.local_cluster import (
    Cluster,
    Size,
    found_local,
    free_ports,
    open_or_found,
    size,
)
from support.command import command

SLEEP = "import time; print('here', flush=True); time.sleep(600)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {SLEEP}"
PARENT = """
import os, signal, sys
from pathlib import Path
from fedrfq.node.ops.child_processes import Child
child = Child("child", [sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]))
child.start()
print(child.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def until(holds: Callable[[], bool], limit_s: float = 90.0) -> None:
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def gone(pid: int) -> bool:
    """Return whether a process has ended, though perhaps nobody has waited for it yet."""
    try:
        return process_state(pid) == "Z"
    except OSError:
        return True


def process_state(pid: int) -> str:
    """Return the letter that Linux has for the state of a process."""
    text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    # The name of the program comes first, in parentheses, and may itself contain some.
    return text.rpartition(")")[2].split()[0]


def sleeper(tmp_path: Path, script: str = SLEEP) -> Child:
    return Child("sleeper", [sys.executable, "-c", script], tmp_path / "output.log")


# Processes


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux ends a process with its parent"
)
def test_a_child_dies_with_its_parent_even_of_kill_9(tmp_path: Path) -> None:
    arguments = [sys.executable, "-c", PARENT, SLEEP, str(tmp_path / "output.log")]
    parent = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert parent.returncode == -signal.SIGKILL
    until(lambda: gone(int(parent.stdout)))


def test_a_child_is_killed_and_started_again(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    for lives in (1, 2):
        child.start()
        until(lambda: child.said() == ["here"])
        assert (child.running, child.spoke, child.code, child.starts) == (True, True, None, lives)
        child.kill()
        assert (child.running, child.spoke, child.code) == (False, False, -signal.SIGKILL)
    child.kill()  # nothing is left to be killed


def test_what_was_said_in_earlier_lives_is_not_said_again(tmp_path: Path) -> None:
    (tmp_path / "output.log").write_text("old\n")
    child = sleeper(tmp_path)
    child.start()
    try:
        until(lambda: child.spoke)
        assert child.said() == ["here"]
    finally:
        child.kill()


def test_a_line_is_said_when_it_is_whole(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    assert child.said() == []
    child.output.write_bytes(b"one\ntw")
    assert child.said() == ["one"]
    child.output.write_bytes(b"one\ntwo\n\xff\n")
    assert child.said() == ["two", "\ufffd"]


def test_a_paused_child_stops_all_the_same(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    child.start()
    until(lambda: child.said() == ["here"])
    child.pause()
    until(lambda: process_state(child.pid) == "T")
    assert stop([child]) == []
    assert child.code == -signal.SIGTERM


def test_who_will_not_stop_is_killed_and_named(tmp_path: Path) -> None:
    child = sleeper(tmp_path, STUBBORN)
    child.start()
    until(lambda: child.said() == ["here"])
    assert stop([child], patience_s=0.2) == ["sleeper"]
    assert child.code == -signal.SIGKILL


def test_a_child_has_a_session_and_one_thread_of_its_own(tmp_path: Path) -> None:
    """Ctrl-C in a terminal goes to the parent alone."""
    child = sleeper(
        tmp_path,
        f"import os; print(os.environ['OMP_NUM_THREADS'], os.getsid(0), flush=True); {SLEEP}",
    )
    child.start()
    try:
        until(lambda: child.spoke)
        assert child.said()[0] == f"1 {child.pid}"
    finally:
        child.kill()


# Chaos


class FakeChild:
    """A process of which only what chaos does to it is recorded."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name = name
        self.log = log
        self.running = True
        self.rising = 0

    def kill(self) -> None:
        assert self.running
        self.running = False
        self.rising = 3
        self.log.append(f"{self.name} -")

    def start(self) -> None:
        assert not self.running
        self.running = True
        self.log.append(f"{self.name} +")

    def ready(self) -> bool:
        self.rising -= 1
        return self.rising <= 0


def storm(faults: int, seed: int, steps: int = 3000) -> tuple[list[str], Chaos, int]:
    """Return what happens to four servers and two clients, the chaos, and the most servers away."""
    log: list[str] = []
    children: dict[int, Any] = {
        party: FakeChild(f"party {party}", log) for party in (0, 1, 2, 3, ~0, ~1)
    }
    for child in children.values():
        child.rising = 20
    chaos = Chaos(
        children, faults, Random(seed), lambda party: children[party].ready(), pause_s=1.0
    )
    most = 0
    for step in range(steps):
        chaos.step(step * 0.1)
        assert step >= 18 or not log  # nobody is at work yet
        if step > 20:
            servers = [child for party, child in children.items() if party >= 0]
            most = max(most, sum(not child.running or child.rising > 0 for child in servers))
    chaos.end()
    assert all(child.running for child in children.values())
    return log, chaos, most


@pytest.mark.parametrize("faults", [0, 1, 2])
def test_chaos_strikes_everyone_and_leaves_a_quorum(faults: int) -> None:
    log, chaos, most = storm(faults, 0)
    assert most == faults
    struck = {line for line in log if line.endswith("-")}
    assert struck == {
        f"party {party} -" for party in ((0, 1, 2, 3, ~0, ~1) if faults else (~0, ~1))
    }
    assert chaos.cycles == sum(line.endswith("-") for line in log) > 100


def test_chaos_follows_from_its_seed() -> None:
    assert storm(1, 7)[0] == storm(1, 7)[0] != storm(1, 8)[0]


def test_chaos_spares_who_has_ended() -> None:
    children: dict[int, Any] = {~0: SimpleNamespace(running=False)}
    chaos = Chaos(children, 1, Random(0), lambda party: True)
    assert not any(chaos.step(step) for step in range(100))


# Federations


def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(20)
    assert max(ports) < 32_768  # nobody who dials is given one of these
    assert len(set(ports)) == 20


def test_a_federation_that_is_there_is_gone_on_with(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    new = found_local(folder, Size(1, 2, 5))
    nothing = dict.fromkeys(("servers", "clients", "rounds"))
    assert size(new) == Size(1, 2, 5)
    assert (
        open_or_found(folder, nothing, None, 0).text
        == open_or_found(folder, {**nothing, "clients": 2}, None, 9).text
        == new.text
    )
    for key, value in (("servers", 4), ("clients", 6), ("rounds", 3)):
        with pytest.raises(UserError, match=f"leave --{key} {value} out"):
            open_or_found(folder, {**nothing, key: value}, None, 0)
    with pytest.raises(UserError, match="leave --experiment out"):
        open_or_found(folder, nothing, tmp_path / "other.toml", 0)


class Answer(BaseHTTPRequestHandler):
    """Answers every request with the same status."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"round": 7}')

    def log_message(self, *arguments: object) -> None: ...


def test_only_the_running_process_of_a_party_speaks_for_it(tmp_path: Path) -> None:
    """A status file that another process, or an earlier one, has left does not count."""
    found_local(tmp_path / "federation", Size(1, 1, 1))
    cluster = Cluster(tmp_path / "federation")
    with HTTPServer(("127.0.0.1", 0), Answer) as web:
        threading.Thread(target=web.serve_forever, daemon=True).start()
        (cluster.own(0) / "status.json").write_text(json.dumps({"port": web.server_port, "pid": 5}))
        for pid, code, answers in ((5, None, True), (5, 0, False), (6, None, False)):
            cluster.children[0].process = cast(
                Any, SimpleNamespace(pid=pid, poll=lambda code=code: code)
            )
            assert cluster.status(0) == ({"round": 7} if answers else None)
            assert cluster.answers(0) == answers
        web.shutdown()
    assert cluster.last_round(~0) is None
    assert cluster.failed() == []


# The command


def fake(**what: Any) -> Any:
    return SimpleNamespace(folder=Path("federation"), failed=lambda expected: [], **what)


def test_what_parties_warn_of_is_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [
        "2026-01-01T00:00:00Z warning too few",
        "2026-01-01T00:00:00Z info    no error",
        "",
        "2026-01-01T00:00:00Z error   full",
    ]
    local_cluster._relay_warnings(
        fake(children={0: SimpleNamespace(name="server-0", said=lambda: lines)}), Console()
    )
    assert capsys.readouterr().out.splitlines() == [
        f"server-0: {lines[0]}",
        f"server-0: {lines[3]}",
    ]


def test_slow_servers_are_waited_for_in_the_end_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([False, False, True])
    local_cluster._settle(fake(settled=lambda: next(answers)))
    assert not list(answers)
    monkeypatch.setattr(local_cluster, "_SETTLE_S", 0.2)
    with pytest.raises(UserError, match="not all servers have the last round"):
        local_cluster._settle(fake(settled=lambda: False))


def test_servers_are_settled_once_all_say_that_the_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found_local(tmp_path / "federation", Size(4, 1, 1))
    cluster = Cluster(tmp_path / "federation")
    said = dict[int, Any].fromkeys(range(4), {"finished": True})
    monkeypatch.setattr(cluster, "status", said.get)
    assert cluster.settled()
    for answer in (None, {"finished": False}):
        said[2] = answer
        assert not cluster.settled()


def parties(folder: Path) -> list[int]:
    """Return the processes that were started for a federation's folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(word.startswith(f"{folder}/".encode()) for word in words):
            found.append(int(entry.name))
    return found


def test_a_local_cluster_in_chaos_gets_through_and_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    options = ("--clients", 2, "--rounds", 1, "--chaos", "--seed", 7)
    done = subprocess.run(
        command("local-cluster", folder, *options),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 logs are verified" in done.stdout
    assert len(re.findall(r"client-\d │ 1 ", done.stdout)) == 2
    killed = len(re.findall(r"(?m)^killed ", done.stdout))
    assert f"killed and restarted {killed} time" in done.stdout
    assert killed > 0
    assert parties(folder) == []


def test_ctrl_c_stops_a_local_cluster_cleanly(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    arguments = command(
        "local-cluster", folder, "--servers", 1, "--clients", 1, "--rounds", 100_000
    )
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: (folder / "server-0" / "status.json").exists())
        assert len(parties(folder)) == 2
        process.send_signal(signal.SIGINT)
        # On a loaded machine both parties may take all the time they have before they are killed.
        said = process.communicate(timeout=120)[0]
    finally:
        process.kill()
    assert process.returncode == 130
    assert f"continue with: {shlex.join(command('local-cluster', folder))}" in said
    assert "stopped" in (folder / "server-0" / "output.log").read_text()
    assert parties(folder) == []


def test_a_party_that_falls_ends_a_local_cluster_with_its_last_words(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    found_local(folder, Size(1, 1, 1))
    (folder / "server-0" / "vote.key").chmod(0o644)
    done = subprocess.run(
        command("local-cluster", folder), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "server-0 has ended with exit code 2" in done.stderr
    assert "can be read by others" in done.stderr
    assert parties(folder) == []
