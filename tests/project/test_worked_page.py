"""The page with four hospitals: a test runs every command.

Each party is a user of its own, and each hospital has a network of its own, where that is
permitted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from fedrfq.data import Dataset
from fedrfq.node.ops.local_cluster import free_ports
from support.networks import networks, permitted
from support.worked_page import HOSPITALS, WorkedPage, make_scans, play

CLASSES = ("fracture", "healthy", "pneumonia")
MOST_COMMANDS = 10
# Users without an entry in /etc/passwd: nothing on the machine is changed for them.
FIRST_USER = 61_000
USERS = {
    f"{role}-{hospital}": FIRST_USER + number
    for number, (role, hospital) in enumerate(
        (role, hospital) for role in ("hospital", "ward") for hospital in "abcde"
    )
}


def as_user(party: str) -> list[str]:
    if not party:
        return []
    user = USERS[party]
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]


def python_for_all() -> str | None:
    """Return a Python that other users can run with our packages, or None if there is none."""
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        return None
    packages = os.pathsep.join(path for path in sys.path if path)
    same = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, same):
        tried = subprocess.run(
            [*as_user("ward-a"), python, "-c", "import numpy, fedrfq.cli"],
            env={**os.environ, "PYTHONPATH": packages, "HOME": "/"},
            capture_output=True,
            check=False,
        )
        if tried.returncode == 0:
            return python
    return None


@pytest.fixture
def ground() -> Iterator[Path]:
    """Return an empty folder in which every user may make folders of their own."""
    # pytest's own folders can be entered by nobody else.
    folder = Path(tempfile.mkdtemp(prefix="fedrfq-page-"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


def chown(folder: Path) -> None:
    for party, user in USERS.items():
        if (folder / party).exists():
            for path in (folder / party, *(folder / party).rglob("*")):
                os.chown(path, user, user)


def addresses() -> dict[str, str]:
    """Return free ports for those of the page."""
    ports = free_ports(len(HOSPITALS))
    return {f"127.0.0.1:{7400 + k}": f"127.0.0.1:{port}" for k, port in enumerate(ports)}


# Two rounds of the page wait for their deadline.
QUICK = {"--deadline 60": "--deadline 20"}


@pytest.fixture(params=["one machine", "networks"])
def page(request: pytest.FixtureRequest, ground: Path) -> Iterator[WorkedPage]:
    """Return the page, in one network or where each hospital is in its own, in bad weather."""
    python = python_for_all()
    user = as_user if python else lambda party: []
    options = (lambda: chown(ground), python) if python else ()
    if request.param == "one machine":
        if permitted():
            pytest.skip("in networks of their own parties are users of their own, too")
        yield WorkedPage(ground, addresses() | QUICK, user, *options)
        return
    if not permitted():
        pytest.skip("making networks is not permitted here")
    with networks("abcde", HOSPITALS, Random(0)) as between:

        def inside(party: str) -> list[str]:
            return [*between.inside(party[-1]), *user(party)] if party else []

        yield WorkedPage(ground, between.replaced(HOSPITALS) | QUICK, inside, *options)
        assert all(proxy.connections for proxy in between.proxies)


def commands(page: WorkedPage) -> Sequence[str]:
    return [line for line, _ in page.ran]


def test_every_command_of_the_page_works(page: WorkedPage, mnist: Dataset) -> None:
    ground = page.folder
    for number, hospital in enumerate("abcde"):
        # Hospital D has no scans of the last class.
        classes = CLASSES[:2] if hospital == "d" else CLASSES
        make_scans(ground / f"scans-{hospital}", mnist, number, classes)
    stages = []
    try:
        for stage in play(page):
            stages.append(stage)
            if stage == "first round":
                first = commands(page)
    finally:
        page.stop()
    assert stages == ["first round", "changed", "joined", "upgraded", "restored"]
    # Two at each hospital, and one to found the federation.
    assert len(first) == 4 * 2 + 1 <= MOST_COMMANDS
    printed = dict(page.ran)
    assert "detector: adaptive" in printed[first[-1]]
    assert "data contract: 3 classes" in printed[first[-1]]
    # What ward D saw before somebody agreed for it.
    seen = (ground / "logs" / "ward-d").read_text(encoding="utf-8")
    before, asked, _ = seen.partition("id: ")
    assert asked
    assert "of 2 of 3 classes; none of pneumonia" in before
    assert "What this client would upload" in before
    assert "5 logs agree" in next(text for line, text in page.ran if "verify" in line)
    # One is restored: its old keys are gone, its figures are not.
    runs = [json.loads(line)["run"] for line in (ground / "ward-d/rounds.jsonl").open()]
    assert len(set(runs)) == 3
    predicted = next(text for line, text in page.ran if "predict" in line)
    assert "scans-a/fracture/0.png" in "".join(predicted.split())
    federation = tomllib.loads((ground / "ward-e" / "federation.toml").read_text())
    assert [client["name"] for client in federation["clients"]] == [
        f"ward-{hospital}" for hospital in "abcde"
    ]
    if "setpriv" in page.prefix("ward-a"):
        owners = {party: (ground / party / "vote.key").stat().st_uid for party in page.lasting}
        assert owners == {party: USERS[party] for party in page.lasting}
        refused = subprocess.run(
            [*as_user("ward-a"), "cat", ground / "hospital-a" / "vote.key"],
            capture_output=True,
            check=False,
        )
        assert b"Permission denied" in refused.stderr
