"""Run the network benchmark of two source trees alternately, and compare what they reach.

A machine is not equally fast all day, so a figure of the morning and one of the evening say little
about the code between them. Here each repeat of a setting runs in one tree and then in the other,
which of them first changes from repeat to repeat, and the ratio is taken within each pair. Each
tree runs its own servers and its own clients: the two need not speak the same protocol.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

from testbed import ROOT, revision

# The figures that are compared.
_COMPARED = ("commits_s", "commits_s_dead", "cpu_ms", "p50_ms", "p99_ms", "cpu_s")
# Lines of a failed run's output to show.
_TAIL_LINES = 10

Pair = tuple[dict[str, Any], dict[str, Any]]


def alternated(
    other: Path,
    settings: Sequence[tuple[int, int]],
    repeats: int,
    options: Sequence[object],
    screen: Console,
) -> list[dict[str, Any]]:
    """Measure all settings `repeats` times in this tree and the other; return their comparisons."""
    pairs: dict[tuple[int, int], list[Pair]] = {setting: [] for setting in settings}
    for repeat in range(repeats):
        for number, clients in settings:
            screen.print(
                f"pair {repeat + 1} of {repeats}: {number} servers, {clients} clients",
                highlight=False,
            )
            setting = ["--servers", number, "--clients", clients, *options]
            pairs[number, clients].append(
                _measure_pair(other, setting, other_first=repeat % 2 == 1)
            )
    return [compared(*setting, measured) for setting, measured in pairs.items()]


def _measure_pair(other: Path, options: Sequence[object], *, other_first: bool) -> Pair:
    if other_first:
        theirs = measured_in(other, options)
        return measured_in(ROOT, options), theirs
    ours = measured_in(ROOT, options)
    return ours, measured_in(other, options)


def measured_in(tree: Path, options: Sequence[object]) -> dict[str, Any]:
    """Run the benchmark of a tree for one repeat of one setting, and return its figures."""
    with TemporaryDirectory(prefix="fedrfq-") as folder:
        out = Path(folder) / "speed.json"
        command = [sys.executable, "bench/network.py", *options, "--repeats", 1, "--out", out]
        cpu_before = _children_cpu_s()
        done = subprocess.run(
            [str(argument) for argument in command],
            cwd=tree,
            # It comes before what is installed.
            env={**os.environ, "PYTHONPATH": str(tree / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            last_lines = "\n".join(done.stdout.splitlines()[-_TAIL_LINES:])
            raise RuntimeError(f"the benchmark of {tree} failed:\n{last_lines}")
        (row,) = json.loads(out.read_text(encoding="utf-8"))["rows"]
    (figures,) = row["repeats"]
    return {**figures, "cpu_s": _children_cpu_s() - cpu_before}


def _children_cpu_s() -> float:
    """Return the CPU time of all child processes that have ended, and of their children."""
    times = os.times()
    return times.children_user + times.children_system


def compared(number: int, clients: int, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return both trees' medians, and of each figure the ratios of this tree to the other."""
    ours = [pair[0] for pair in pairs]
    theirs = [pair[1] for pair in pairs]
    ratios = {}
    for name in _COMPARED:
        values = [own[name] / other[name] for own, other in pairs]
        ratios[name] = {"median": median(values), "least": min(values), "most": max(values)}
    return {
        "servers": number,
        "clients": clients,
        "this": _medians(ours),
        "other": _medians(theirs),
        "ratios": ratios,
        "repeats": {"this": ours, "other": theirs},
    }


def _medians(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    return {name: median(row[name] for row in rows) for name in _COMPARED}


def check_tree(path: Path) -> Path:
    """Return the full path of a source tree that has this benchmark."""
    tree = path.resolve()
    if not (tree / "bench" / "network.py").is_file() or not (tree / "src" / "fedrfq").is_dir():
        raise SystemExit(
            f"--against {path}: found no bench/network.py and src/fedrfq there; "
            "give the root of a source tree, such as one made by `git worktree add`"
        )
    return tree


def comparison_record(other: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what is recorded besides this tree's revision."""
    return {"other_revision": revision(other), "rows": rows}


def shown(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a line for each setting and figure."""
    table = Table("n", "clients", "figure", "other tree", "this tree", "ratio", "of the pairs")
    for row in rows:
        for name in _COMPARED:
            ratio = row["ratios"][name]
            table.add_row(
                str(row["servers"]),
                str(row["clients"]),
                name,
                f"{row['other'][name]:.1f}",
                f"{row['this'][name]:.1f}",
                f"{ratio['median']:.2f}",
                f"{ratio['least']:.2f} to {ratio['most']:.2f}",
            )
        table.add_section()
    table.caption = (
        "medians of the repeats; a ratio is this tree's figure divided by the other's in the same "
        "pair; commits_s_dead: with f servers dead; cpu_ms: CPU time of all processes a commit; "
        "cpu_s: CPU time of the whole run"
    )
    return table
