"""Two source trees are measured alternately, each with its own code, and compared pair by pair."""

import json
from pathlib import Path

import pytest
from rich.console import Console

import against

# Stands in for a tree's benchmark: it notes that it ran, and records the figures of its package.
BENCHMARK = """
import json, sys
from pathlib import Path
import fedrfq
with Path("../order.txt").open("a") as order:
    order.write(f"{fedrfq.NAME} {' '.join(sys.argv[1:-1])}\\n")
figures = dict.fromkeys(("commits_s_dead", "cpu_ms", "p50_ms", "p99_ms"), 1.0)
repeats = [{**figures, "commits_s": fedrfq.RATE}]
Path(sys.argv[-1]).write_text(json.dumps({"rows": [{"repeats": repeats}]}))
"""


def tree(path: Path, rate: float, benchmark: str = BENCHMARK) -> Path:
    (path / "bench").mkdir(parents=True)
    (path / "src" / "fedrfq").mkdir(parents=True)
    (path / "bench" / "network.py").write_text(benchmark)
    (path / "src" / "fedrfq" / "__init__.py").write_text(f"NAME = '{path.name}'\nRATE = {rate}\n")
    return path


def test_trees_take_turns_and_run_their_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "ROOT", tree(tmp_path / "this", 30.0))
    other = tree(tmp_path / "other", 20.0)
    (row,) = against.alternated(other, [(4, 20)], 2, ["--rounds", 7], Console(quiet=True))
    options = "--servers 4 --clients 20 --rounds 7 --repeats 1 --out"
    order = (tmp_path / "order.txt").read_text().splitlines()
    assert order == [f"{name} {options}" for name in ("this", "other", "other", "this")]
    assert row["this"]["commits_s"] == 30.0
    assert row["other"]["commits_s"] == 20.0
    assert row["ratios"]["commits_s"] == {"median": 1.5, "least": 1.5, "most": 1.5}
    assert row["ratios"]["cpu_s"]["least"] > 0
    assert against.shown([row]).row_count == 6
    json.dumps(row)


def test_ratios_are_taken_within_pairs() -> None:
    """The second pair ran while the machine was half as fast; the ratio does not change."""
    slow = dict.fromkeys(against._COMPARED, 10.0)
    fast = {name: 2 * value for name, value in slow.items()}
    faster = {name: 4 * value for name, value in slow.items()}
    row = against.compared(4, 20, [(faster, fast), (fast, slow)])
    assert row["ratios"]["commits_s"] == {"median": 2.0, "least": 2.0, "most": 2.0}
    assert row["this"]["commits_s"] == 30.0
    assert row["other"]["commits_s"] == 15.0


def test_a_benchmark_that_fails_says_why(tmp_path: Path) -> None:
    broken = tree(tmp_path / "broken", 1.0, "raise SystemExit('no servers today')")
    with pytest.raises(RuntimeError, match="no servers today"):
        against.measured_in(broken, [])


def test_a_folder_that_is_no_source_tree(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="git worktree add"):
        against.check_tree(tmp_path)
    path = tree(tmp_path / "this", 1.0)
    assert against.check_tree(path) == path.resolve()
