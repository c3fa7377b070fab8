"""Flower's simulation engine in separate processes: a SuperLink on free ports and its children."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from fedrfq.node.ops.local_cluster import free_ports

APP = Path(__file__).parents[1] / "examples" / "flower"
# In the environment of every process, so that all of them can be found and stopped.
_MARK = "FEDRFQ_SIMULATION"
_OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
# The time between two measurements of the memory.
_WATCH_INTERVAL_S = 0.5


class Simulation:
    """A SuperLink that simulates nodes; `folder` is where it runs and keeps its files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._port, self._control = free_ports(2)
        # Bytes of all processes together; a shared page counts once.
        self.peak = 0

    def start(self, limit_s: float = 60.0) -> None:
        """Start the SuperLink and wait until it is healthy."""
        options = {
            "--isolation": "subprocess",
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--control-api-address": f"127.0.0.1:{self._control}",
        }
        command = [_program("flower-superlink"), "--insecure", "--simulation"]
        for name, value in options.items():
            command += [name, value]
        with (self.folder / "superlink.log").open("wb") as log:
            subprocess.Popen(
                command,
                cwd=self.folder,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + limit_s
        while not self._healthy():
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "superlink.log").read_text(encoding="utf-8"))
            time.sleep(0.1)

    def run(
        self,
        settings: Mapping[str, str | float],
        nodes: int,
        limit_s: float = 300.0,
        app: Path = APP,
        cores: int = 1,
    ) -> str:
        """Run the app to its end, with `cores` for each node; return its output."""
        with self._popen(settings, nodes, app, cores) as process:
            try:
                return process.communicate(timeout=limit_s)[0]
            finally:
                process.kill()

    @contextmanager
    def running(
        self, settings: Mapping[str, str | float], nodes: int
    ) -> Iterator[subprocess.Popen[str]]:
        """Start a run of the app; kill its command at the end of the block."""
        with self._popen(settings, nodes, APP) as process:
            yield process
            process.kill()

    def statuses(self) -> list[str]:
        """Return the status of every run, the latest first."""
        command = [_program("flwr"), "list", "--format", "json"]
        completed = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=60, check=True
        )
        answer: dict[str, Any] = json.loads(completed.stdout)
        return [run["status"] for run in answer["runs"]]

    def kill(self, name: str = "") -> None:
        """Kill all processes of this simulation, or only those with `name` in their command."""
        # Again until none is left: a dying process may just have started another.
        while pids := [pid for pid in self.processes() if name in _command(pid)]:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def processes(self) -> list[int]:
        """Return the process ids of everything this simulation has started."""
        mark = f"{_MARK}={self._mark}".encode()
        pids = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    pids.append(int(path.parent.name))
        return pids

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Keep `peak` up to date during the block."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_WATCH_INTERVAL_S):
                self.peak = max(self.peak, sum(map(_memory, self.processes())))

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _popen(
        self, settings: Mapping[str, str | float], nodes: int, app: Path, cores: int = 1
    ) -> subprocess.Popen[str]:
        pairs = [f"{key}={_toml(value)}" for key, value in settings.items()]
        size = f"num-supernodes={nodes} client-resources-num-cpus={cores}"
        command = [
            _program("flwr"),
            "run",
            str(app),
            "--run-config",
            " ".join(pairs),
            "--federation-config",
            size,
            "--stream",
        ]
        return subprocess.Popen(
            command,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _healthy(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self._port}/health"
            with urllib.request.urlopen(url, timeout=1) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        # The programs of this interpreter's environment come first on the path.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        own = {
            _MARK: self._mark,
            "PATH": path,
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self._port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(self._control),
        }
        return {**os.environ, **_OFFLINE, **own}


@contextmanager
def simulation(folder: Path) -> Iterator[Simulation]:
    """Start a simulation and yield it once it answers; kill all of it in the end."""
    started = Simulation(folder)
    (folder / "home").mkdir(parents=True)
    try:
        started.start()
        yield started
    finally:
        started.kill()


def _toml(value: str | float) -> str:
    if isinstance(value, str):
        return f"'{value}'"
    return str(value)


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _command(pid: int) -> str:
    with suppress(OSError):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        return arguments.replace(b"\0", b" ").decode(errors="replace")
    return ""


def _memory(pid: int) -> int:
    """Return the bytes of a process, counting its share of every shared page."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0
