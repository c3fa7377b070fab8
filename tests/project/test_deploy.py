"""Units, container file and operating manual: what they name exists and what they promise holds."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrfq.node.ops.local_cluster import free_ports
from support.command import fedrfq
from support.manual import parse
from support.paths import ROOT

DEPLOY = ROOT / "deploy"
PARTIES = ("server", "client")
SERVER_PACKAGES = ["numpy", "typer", "rich", "pynacl", "cryptography"]
CLIENT_ONLY = [
    "torch",
    "sklearn",
    "scipy",
    "matplotlib",
    "mlxtend",
    "pandas",
    "PIL",
    "onnx",
    "safetensors",
]


# systemd


class Unit(RawConfigParser):
    """Keys as they are written, the last value of each; comments stand on lines of their own."""

    def __init__(self, party: str) -> None:
        super().__init__(
            strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",)
        )
        self.path = DEPLOY / f"fedrfq-{party}@.service"
        self.read(self.path)

    def optionxform(self, optionstr: str) -> str:
        return optionstr


@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ReadWritePaths", "/var/lib/fedrfq/%i"),
        ("User", "fedrfq"),
        ("PrivateTmp", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("CapabilityBoundingSet", ""),
        ("Restart", "on-failure"),
        ("RestartPreventExitStatus", "2"),
        ("KillSignal", "SIGTERM"),
        ("LimitCORE", "0"),
        ("UMask", "0077"),
    ],
)
def test_a_unit_gives_its_process_no_more_than_it_needs(party: str, key: str, value: str) -> None:
    assert Unit(party)["Service"][key] == value


@pytest.mark.parametrize("party", PARTIES)
def test_a_unit_bounds_memory_and_time_and_filters_system_calls(party: str) -> None:
    service = Unit(party)["Service"]
    assert re.fullmatch(r"\d+G", service["MemoryMax"])
    assert re.fullmatch(r"\d+(s|min)", service["TimeoutStopSec"])
    assert "SystemCallFilter=@system-service\n" in Unit(party).path.read_text()


@pytest.mark.parametrize("party", PARTIES)
def test_a_unit_runs_a_command_that_exists_on_its_own_folder(party: str) -> None:
    program, *arguments, more = shlex.split(Unit(party)["Service"]["ExecStart"])
    assert more == "$FEDRFQ_OPTIONS"
    assert (
        "FEDRFQ_OPTIONS=\n" in Unit(party).path.read_text()
    )  # nothing, unless the operator says otherwise
    assert program == "/opt/fedrfq/bin/fedrfq"
    assert arguments[:2] == [party, "/var/lib/fedrfq/%i"]
    assert parse(arguments) == []


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("party", PARTIES)
def test_systemd_takes_the_unit(party: str, tmp_path: Path) -> None:
    """With a program that is there: the real one is in /opt."""
    unit = tmp_path / f"fedrfq-{party}@.service"
    unit.write_text(Unit(party).path.read_text().replace("/opt/fedrfq/bin/fedrfq", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if unit.name.split("@")[0] in line]
    assert (done.returncode, ours) == (0, [])


# Containers


@dataclass
class Stage:
    """A stage of a container file; what it inherits stands before its own instructions."""

    base: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.steps if key == name]

    def last(self, name: str) -> Any:
        return self.all(name)[-1]


def stages() -> dict[str, Stage]:
    text = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text())
    found: dict[str, Stage] = {}
    current = Stage("")
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition(" ")
        if key == "FROM":
            base, name = value.split(" AS ")
            current = found[name] = Stage(base, list(found[base].steps) if base in found else [])
        else:
            current.steps.append((key, value.strip()))
    return found


def test_the_images_are_a_server_and_a_client_on_a_slim_python() -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert re.search(r"^ARG BASE=\S*python:3\.12-slim$", text, re.MULTILINE)
    assert list(stages()) == ["build", "build-client", "party", "server", "client"]


@pytest.mark.parametrize("party", PARTIES)
def test_an_image_runs_its_party_as_nobody_special_and_stops_when_asked(party: str) -> None:
    stage = stages()[party]
    assert stage.last("USER") == "fedrfq"
    assert stage.steps.index(("USER", "fedrfq")) > max(
        n for n, step in enumerate(stage.steps) if step[0] == "RUN"
    )
    assert stage.last("STOPSIGNAL") == "SIGTERM"
    assert stage.last("VOLUME") == "/var/lib/fedrfq"
    program, *arguments = json.loads(
        stage.last("ENTRYPOINT")
    )  # no shell between: it would keep the signal to itself
    assert (program, *arguments) == ("fedrfq", party, "/var/lib/fedrfq")
    assert parse(arguments + (json.loads(stage.last("CMD")) if stage.all("CMD") else [])) == []


def test_nothing_is_copied_into_an_image_but_the_program() -> None:
    sources = [word for copy in stages()["build"].all("COPY") for word in copy.split()[:-1]]
    assert sources == [
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "src",
        "experiments",
    ]
    assert not any(stage.all("ADD") for stage in stages().values())
    copied = [copy for stage in ("server", "client") for copy in stages()[stage].all("COPY")]
    assert copied == [
        "--from=build /opt/fedrfq /opt/fedrfq",
        "--from=build-client /opt/fedrfq /opt/fedrfq",
    ]
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text().split()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(sources)


def test_the_base_package_is_what_a_server_needs_and_training_is_an_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.split("[>=]", line)[0] for line in project["dependencies"]]
    assert needed == SERVER_PACKAGES
    (install,) = [run for run in stages()["build"].all("RUN") if "pip install" in run]
    assert install.endswith(" /source")
    client = stages()["build-client"].last("RUN")
    assert re.search(r'TORCH_INDEX.* "torch==.*pip install .*"/source\[train\]"', client)


def test_the_client_gets_the_torch_that_everyone_else_does() -> None:
    (pinned,) = re.findall(r"torch==\S+", (ROOT / "constraints.txt").read_text())
    assert f'"{pinned}"' in (DEPLOY / "Containerfile").read_text()


def test_the_trial_consortium_runs_commands_that_exist() -> None:
    """`make test-images` runs them."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert len([name for name in services if name.startswith("server-")]) == 4
    found = services["found"]["entrypoint"][-1].partition("|| ")[2]
    commands = [shlex.split(found)]
    commands += [
        [*service["entrypoint"], *service.get("command", [])]
        for name, service in services.items()
        if name != "found"
    ]
    for program, *arguments in commands:
        assert (program, parse(arguments)) == ("fedrfq", [])


BARE = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {CLIENT_ONLY!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Blocker())
from fedrfq.cli.main import main
sys.argv = ["fedrfq", *sys.argv[1:]]
main()
"""


def check_health(folder: Path) -> int:
    """What the image's health check comes to in this folder."""
    (check,) = stages()["server"].all("HEALTHCHECK")
    _, *command = json.loads(check.partition("CMD ")[2].replace("/var/lib/fedrfq", str(folder)))
    return subprocess.run(
        [sys.executable, *command], capture_output=True, timeout=60, check=False
    ).returncode


@contextmanager
def answering(code: int) -> Iterator[int]:
    """A party's status port, well or not."""

    class Status(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Status) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("code", "well"), [(200, True), (503, False)])
def test_the_health_check_asks_the_party(code: int, well: bool, tmp_path: Path) -> None:
    with answering(code) as port:
        (tmp_path / "status.json").write_text(json.dumps({"port": port, "pid": 1}))
        assert (check_health(tmp_path) == 0) == well


def test_a_server_runs_on_what_its_image_has_and_is_well_until_it_is_stopped(
    tmp_path: Path,
) -> None:
    fedrfq(
        "committee",
        "init",
        tmp_path / "all",
        "--servers",
        1,
        "--clients",
        1,
        "--port",
        *free_ports(1),
    )
    folder = tmp_path / "all" / "server-0"
    command = [sys.executable, "-c", BARE, "server", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while (
            not (folder / "status.json").exists()
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        well = check_health(folder)
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert (well, process.returncode) == (0, 0), log
    finally:
        process.kill()
        process.wait()


def test_the_health_check_fails_where_nothing_runs(tmp_path: Path) -> None:
    assert check_health(tmp_path) != 0
