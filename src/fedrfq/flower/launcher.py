"""Runs the app with `flwr run`, and says how it ended, which `flwr run` does not.

Unless a SuperLink is named, the run gets one of its own on free ports, which simulates the nodes
and ends with the run. So paths are relative to the current folder, and nothing stays in the
background.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.node.ops.local_cluster import free_ports

COMPLETED = "finished:completed"
# The app's one dependency is this installation: Flower must not look for it on the network.
_OFFLINE = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_STARTED = re.compile(r"started run (\d+)")
_MAX_START_S = 120.0
_MAX_STOP_S = 10.0

Environment = Mapping[str, str]


def run(app: Path, superlink: str | None, nodes: int, settings: Sequence[str]) -> str:
    """Run the app, print its log and return how it ended, such as "finished:failed"."""
    if superlink is not None:
        return _run([str(app), superlink, *_options("--run-config", settings)], _environment())
    size = f"num-supernodes={nodes} client-resources-num-cpus=1"
    arguments = [str(app), *_options("--run-config", settings), "--federation-config", size]
    with _own_superlink() as environment:
        return _run(arguments, environment)


def _run(arguments: Sequence[str], environment: Environment) -> str:
    command = [_program("flwr"), "run", *arguments, "--stream"]
    number = None
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            number = number or _STARTED.search(line)
    if number is None:
        raise UserError(f"flwr run ended with code {process.returncode} and started nothing")
    return _status(number.group(1), environment)


def _status(number: str, environment: Environment) -> str:
    """Return how a run ended, as the SuperLink knows it."""
    command = [_program("flwr"), "list", "--run-id", number, "--format", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    try:
        (listed,) = json.loads(done.stdout)["runs"]
        return str(listed["status"])
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"the SuperLink does not say how run {number} ended; ask it with `flwr list`"
        ) from None


@contextmanager
def _own_superlink() -> Iterator[Environment]:
    """Start a SuperLink that simulates nodes; yield the environment of those who talk to it."""
    port, control = free_ports(2)
    command = [_program("flower-superlink"), "--insecure", "--simulation"]
    command += ["--isolation", "subprocess", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--control-api-address", f"127.0.0.1:{control}"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **_environment(),
            "FLWR_HOME": folder,
            "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(port),
            "FLWR_LOCAL_CONTROL_API_PORT": str(control),
        }
        log = Path(folder) / "superlink.log"
        with log.open("wb") as file:
            # A session of its own, so that it can be stopped together with its children.
            process = subprocess.Popen(
                command, env=environment, stdout=file, stderr=file, start_new_session=True
            )
        try:
            _await_start(process, port, log)
            yield environment
        finally:
            _stop(process)


def _await_start(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _MAX_START_S
    while not _is_healthy(port):
        if process.poll() is not None or time.monotonic() > deadline:
            said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise UserError(f"Flower's SuperLink did not start: {' '.join(said)}")
        time.sleep(0.1)


def _is_healthy(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/health"
    with suppress(OSError), urllib.request.urlopen(url, timeout=1) as answer:
        return bool(answer.status == 200)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the SuperLink, and then whatever is left of the processes that it started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_MAX_STOP_S)
    # The group has the number of its first process, also after that one has ended.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _options(name: str, values: Sequence[str]) -> list[str]:
    return [part for value in values for part in (name, value)]


def _environment() -> dict[str, str]:
    # Flower starts its programs by name: those of this installation must come first.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **_OFFLINE, "PATH": path}


def _program(name: str) -> str:
    return str(Path(sys.executable).with_name(name))
