"""Flower's simulation engine as a process of its own: its SuperLink, and all that it starts, on ports of their own."""

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
_MARK = "FEDRFQ_SIMULATION"  # in the environment of every process, so that none is left behind
_OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_BETWEEN_S = 0.5  # two looks at the memory


class Simulation:
    """`folder` is where the SuperLink runs, and keeps what it needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = uuid.uuid4().hex
        self._port, self._control = free_ports(2)
        self.peak = 0  # bytes of all processes together, each page they share counted once

    def start(self, limit_s: float = 60.0) -> None:
        address = f"127.0.0.1:{self._control}"
        port = str(self._port)
        command = [
            "--insecure",
            "--simulation",
            "--isolation",
            "subprocess",
            "--host",
            "127.0.0.1",
            "--port",
            port,
        ]
        with (self.folder / "superlink.log").open("wb") as log:
            subprocess.Popen(
                [_program("flower-superlink"), *command, "--control-api-address", address],
                cwd=self.folder,
                env=self._environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until = time.monotonic() + limit_s
        while not self._healthy():
            if time.monotonic() > until:
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
        """A run of the app to its end, a node with so many cores; what it says."""
        with self._popen(settings, nodes, app, cores) as process:
            try:
                return process.communicate(timeout=limit_s)[0]
            finally:
                process.kill()

    @contextmanager
    def running(
        self, settings: Mapping[str, str | float], nodes: int
    ) -> Iterator[subprocess.Popen[str]]:
        """A run that has begun."""
        with self._popen(settings, nodes, APP) as process:
            yield process
            process.kill()

    def statuses(self) -> list[str]:
        """Of all runs, the latest first."""
        command = [_program("flwr"), "list", "--format", "json"]
        done = subprocess.run(
            command, env=self._environment(), capture_output=True, text=True, timeout=60, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return [run["status"] for run in found["runs"]]

    def kill(self, name: str = "") -> None:
        """All processes of this simulation; or those alone whose command has this word."""
        while found := [pid for pid in self.processes() if name in _command(pid)]:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def processes(self) -> list[int]:
        mark = f"{_MARK}={self._mark}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found

    @contextmanager
    def watched(self) -> Iterator[None]:
        """While `peak` is kept."""
        done = threading.Event()

        def watch() -> None:
            while not done.wait(_BETWEEN_S):
                self.peak = max(self.peak, sum(map(_proportional, self.processes())))

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
        pairs = [
            f"{key}='{value}'" if isinstance(value, str) else f"{key}={value}"
            for key, value in settings.items()
        ]
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
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/health", timeout=1
            ) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _environment(self) -> dict[str, str]:
        own = {
            _MARK: self._mark,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(self._port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(self._control),
        }
        return {**os.environ, **_OFFLINE, **own}


@contextmanager
def simulation(folder: Path) -> Iterator[Simulation]:
    """One that answers; in the end nothing of it is left."""
    found = Simulation(folder)
    (folder / "home").mkdir(parents=True)
    try:
        found.start()
        yield found
    finally:
        found.kill()


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def _command(pid: int) -> str:
    with suppress(OSError):
        return (
            (Path("/proc") / str(pid) / "cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    return ""


def _proportional(pid: int) -> int:
    """Bytes of memory, of each shared page its share."""
    with suppress(OSError, ValueError):
        lines = (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines()
        return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return 0
