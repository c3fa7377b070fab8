"""The adaptive detector's page shows the figures that are recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.paths import ROOT

PAGE = (ROOT / "docs" / "concepts" / "adaptive-detector.md").read_text(encoding="utf-8")
RECORDS = ROOT / "results" / "adaptive" / "fading"
# The tables of losses, by their first line.
TABLES = {
    "| attack | 3 ± 2 | 5 ± 2 | four models | unique classes |": 4,
    "| attack | Dirichlet 0.1 | Dirichlet 0.5 | Dirichlet 1 |": 4,
    "| attack | 3 ± 2 | Dirichlet 0.1 |": 9,
}


def split(row: str) -> list[str]:
    return [cell.strip() for cell in row.strip("|").split("|")]


def rows(first: str) -> list[list[str]]:
    """Return the rows of a table, the lines below its first two."""
    below = PAGE[PAGE.index(first) :].split("\n\n")[0]
    return [split(line) for line in below.splitlines()[2:]]


def cells(setting: str, attackers: int) -> dict[tuple[str, str], dict[str, Any]]:
    """Return a study's cells by attack and detector."""
    name = f"{setting.replace('±', 'pm').replace(' ', '-')}-{attackers}-of-20"
    whole = json.loads((RECORDS / name / "table.json").read_text(encoding="utf-8"))
    return {(cell["attack"], cell["detector"]): cell for cell in whole["cells"]}


def points(loss: float) -> str:
    # Rounded first, so that there is no −0.0.
    return f"{round(loss, 1) + 0.0:.1f}".replace("-", "−")


def losses(cell: dict[str, Any]) -> str:
    own = points(cell["own_loss"]["mean"])
    return f"{own} / {points(cell['prototype_loss']['mean'])}"


def expected(attack: str, recorded: dict[tuple[str, str], dict[str, Any]]) -> str:
    """Return what the page should say of an attack in one setting."""
    if (attack, "adaptive") not in recorded:
        return "–"
    defended = f"**{losses(recorded[attack, 'adaptive'])}**"
    if attack == "none":
        return defended
    return f"{losses(recorded[attack, 'none'])} → {defended}"


@pytest.mark.parametrize("first", TABLES)
def test_losses_are_those_recorded(first: str) -> None:
    recorded = [cells(setting, TABLES[first]) for setting in split(first)[1:]]
    assert len(rows(first)) >= 9
    for title, *shown in rows(first):
        attack = title.strip("`").replace("no attack", "none")
        assert shown == [expected(attack, cells_) for cells_ in recorded], attack


def test_intervals_in_peace_are_those_recorded() -> None:
    for setting, *shown in rows("| no attack | own head | nearest prototype |"):
        cell = cells(setting, 4)["none", "adaptive"]
        both = [cell["own_loss"], cell["prototype_loss"]]
        assert shown == [f"{points(loss['mean'])} ± {loss['half']:.1f}" for loss in both], setting
