"""What the network benchmarks share: a federation of server processes, and their records."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
RESULTS = ROOT / "results"
# Columns of a table that is printed to a file.
_WIDTH = 140
# As many rounds as nobody will wait for: servers run until they are stopped.
FOREVER = 10**9


@contextmanager
def founded(
    clients: int,
    ports: Sequence[int],
    waits: Mapping[str, int] | None = None,
    detector: str = "none",
) -> Iterator[Path]:
    """Found a federation with servers on these ports of this machine; remove it in the end."""
    with TemporaryDirectory(prefix="fedrfq-") as folder:
        path = Path(folder) / "federation"
        addresses = [f"127.0.0.1:{port}" for port in ports]
        sets = [f"rounds={FOREVER}", f"detector.name={detector}"]
        founding.init(path, addresses, clients, waits, sets=sets)
        yield path


@contextmanager
def servers(
    folder: Path,
    parties: Sequence[int] | None = None,
    more: Mapping[int, Sequence[object]] | None = None,
) -> Iterator[Cluster]:
    """Start the servers of a federation, or the given parties, as processes; stop them in the end.

    `more` has additional command-line arguments by party.
    """
    if parties is None:
        parties = range(read_federation(folder / FEDERATION).roster.n)
    cluster = Cluster(folder, parties, more)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


async def answering(cluster: Cluster, parties: Sequence[int], limit_s: float = 60.0) -> None:
    """Wait until these parties answer status requests."""
    deadline = time.monotonic() + limit_s
    while not all(cluster.status(party) for party in parties):
        for child in cluster.failed():
            last_lines = " / ".join(child.said()[-3:])
            raise RuntimeError(f"{child.name} ended unexpectedly: {last_lines}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"not all servers answered within {limit_s:g} s")
        await asyncio.sleep(0.1)


def console() -> Console:
    """Return a console for tables, wide enough where the output goes to a file."""
    terminal = Console()
    if terminal.is_terminal:
        return terminal
    return Console(width=_WIDTH)


def memory(pid: int) -> dict[str, int]:
    """Return the resident bytes of a process, now and at the peak."""
    sizes = {}
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith(("VmRSS:", "VmHWM:")):
            name, kibibytes, _ = line.split()
            sizes[name] = int(kibibytes) * 1024
    return {"now": sizes["VmRSS:"], "peak": sizes["VmHWM:"]}


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds, of programs and kernel, that running processes have taken so far."""
    ticks = 0
    for pid in pids:
        # The name comes second, in parentheses, and may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def arguments(about: str | None, out: str) -> argparse.ArgumentParser:
    """Return a benchmark's parser, with the option that says where its record goes."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=RESULTS / out,
        metavar="FILE.json",
        help="where to write results",
    )
    return parser


def record(path: Path, results: Mapping[str, Any]) -> None:
    """Write the results, with the machine they were measured on and the command to repeat it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**_provenance(), **results}, indent=2) + "\n", encoding="utf-8")


def revision(tree: Path) -> str:
    """Return the revision of a source tree."""
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    return git.stdout.strip()


def _provenance() -> dict[str, Any]:
    command = f"python bench/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip()
    return {
        "command": command,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "revision": revision(ROOT),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
        },
        "python": platform.python_version(),
        "interpreter": _interpreter(),
    }


def _interpreter() -> dict[str, Any]:
    """Return how the interpreter was built: builds of one version differ by a tenth in speed."""
    arguments = str(sysconfig.get_config_var("CONFIG_ARGS")).replace("'", "").split()
    return {
        "build": " ".join(platform.python_build()),
        "compiler": platform.python_compiler(),
        # Without prefixes and libraries, which say nothing of the build.
        "options": [word for word in arguments if word.startswith(("--enable", "--with"))],
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
