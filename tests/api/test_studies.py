"""Studies from Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fedrfq


def test_a_comparison_is_a_table_and_is_carried_out_once(tmp_path: Path) -> None:
    study: dict[str, Any] = {
        "name": "mine",
        "controls": False,
        "tune": [],
        "experiment": {
            "clients": 3,
            "rounds": 1,
            "model": {"name": "mlp"},
            "partition": {"shots": 6, "test_shots": 4},
        },
        "axes": {"method": ["local", "fedproto"]},
    }
    found = fedrfq.compare(study, "cpu", tmp_path)
    assert list(found.table["method"]) == ["local", "fedproto"]
    assert found.table["own_mean"].between(0, 100).all()
    assert "| fedproto |" in repr(found)
    assert (found.path / "table.json").is_file()
    runs = sorted(tmp_path.glob("mine/*/result.json"))
    assert len(runs) == 2
    assert fedrfq.compare(study, "cpu", tmp_path).table.equals(found.table)
    assert sorted(tmp_path.glob("mine/*/result.json")) == runs
