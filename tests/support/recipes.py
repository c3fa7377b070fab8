"""Recipes written by a test, and what comes of them where nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fedrfq.studies.recipe import Plan, Recipe, Shown


def recipe(kind: str, table: dict[str, Any], seeds: int = 1) -> Recipe:
    return Recipe("test", "a title", "a claim", kind, tuple(range(seeds)), table)


def shown(plan: Plan, folder: Path) -> Shown:
    """With every picture there is and no share of the work told twice or backwards."""
    told: list[float] = []
    found = plan.show({}, folder, torch.device("cpu"), lambda share, words: told.append(share))
    assert told == sorted(told)
    assert all(0 <= share <= 1 for share in told)
    assert all(
        path.read_bytes().startswith(b"\x89PNG") and path.parent == folder
        for path in found.pictures
    )
    assert len({tuple(row) for row in found.rows}) == 1
    return found
