"""What the network's benchmarks and campaigns share: a federation of servers as processes, and what is recorded of a run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from fedrfq.node.membership import founding
from fedrfq.node.membership.identity import read_federation
from fedrfq.node.ops.local_cluster import Cluster
from fedrfq.node.storage.party_folder import FEDERATION

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "network"
_WIDTH = 140  # of what is printed to a file
FOREVER = 10**9  # rounds: until told to stop


@contextmanager
def founded(
    clients: int, ports: Sequence[int], waits: Mapping[str, int] | None = None
) -> Iterator[Path]:
    """A new one, with servers on these ports of this machine; in the end it is gone."""
    with TemporaryDirectory(prefix="fedrfq-") as folder:
        path = Path(folder) / "federation"
        founding.init(
            path,
            [f"127.0.0.1:{port}" for port in ports],
            clients,
            waits,
            sets=[f"rounds={FOREVER}"],
        )
        yield path


@contextmanager
def servers(
    folder: Path,
    parties: Sequence[int] | None = None,
    more: Mapping[int, Sequence[object]] | None = None,
) -> Iterator[Cluster]:
    """The servers of a federation, or these of its parties, as processes; stopped in the end."""
    cluster = Cluster(
        folder,
        range(read_federation(folder / FEDERATION).roster.n) if parties is None else parties,
        more,
    )
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def answering(cluster: Cluster, parties: Sequence[int], limit_s: float = 60.0) -> None:
    """Wait until these answer."""
    until = time.monotonic() + limit_s
    while not all(cluster.status(party) for party in parties):
        for child in cluster.fallen():
            raise RuntimeError(f"{child.name} has ended: {' / '.join(child.said()[-3:])}")
        if time.monotonic() > until:
            raise RuntimeError("servers do not answer")
        await asyncio.sleep(0.1)


def console() -> Console:
    """As wide as the tables need where nobody looks."""
    found = Console()
    if found.is_terminal:
        return found
    return Console(width=_WIDTH)


def memory(pid: int) -> dict[str, int]:
    """Bytes that a process holds now, and has held at most."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    found = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in lines
        if line.startswith(("VmRSS", "VmHWM"))
    }
    return {"now": found["VmRSS"], "peak": found["VmHWM"]}


def arguments(about: str | None, out: str) -> argparse.ArgumentParser:
    """A benchmark's, with the place of its record."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=RESULTS / out, metavar="FILE.json")
    return parser


def record(path: Path, found: Mapping[str, Any]) -> None:
    """What was found, with what it was measured on and how to do it again."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**_circumstances(), **found}, indent=2) + "\n", encoding="utf-8")


def _circumstances() -> dict[str, Any]:
    command = f"python bench/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": git.stdout.strip(),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
