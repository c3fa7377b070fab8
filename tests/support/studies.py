"""Studies written by a test, and their results where nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedrfq.studies.plan import Plan, StudyResult
from fedrfq.studies.study import Study


def study_of(kind: str, table: dict[str, Any], seeds: int = 1) -> Study:
    """Return a study of a kind with this table."""
    return Study("test", "a title", "a claim", kind, tuple(range(seeds)), table, "reproduced")


def shown(plan: Plan, folder: Path) -> StudyResult:
    """Show a plan without runs, and check its progress, its pictures and its rows' columns."""
    shares: list[float] = []
    result = plan.show({}, folder, torch.device("cpu"), lambda share, words: shares.append(share))
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    for path in result.pictures:
        assert path.parent == folder
        assert path.read_bytes().startswith(b"\x89PNG")
    assert len({tuple(row) for row in result.rows}) == 1
    return result
