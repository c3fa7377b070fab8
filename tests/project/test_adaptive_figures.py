"""The adaptive detector's page shows the figures that are recorded."""

from __future__ import annotations

import json

import adaptive_matrix
from support.paths import RESULTS, ROOT

PAGE = (ROOT / "docs" / "concepts" / "adaptive-detector.md").read_text(encoding="utf-8")


def test_tables_are_those_recorded() -> None:
    """They are printed by `python bench/adaptive_matrix.py`."""
    for lines in adaptive_matrix.tables():
        assert "\n".join(lines) in PAGE


def test_classes_of_a_single_client_cost_what_is_recorded() -> None:
    text = (RESULTS / "adaptive" / "sole" / "table.json").read_text(encoding="utf-8")
    lost: dict[str, list[str]] = {"none": [], "sole": []}
    for cell in json.loads(text)["cells"]:
        lost[cell["attack"]].append(adaptive_matrix.points(cell["prototype_loss"]["mean"]))
    for attack, title in (("none", "no attack"), ("sole", "`sole`")):
        without, apart, keep, hold = lost[attack]
        assert f"| {title} | {without} | {keep} | **{apart}** | {hold} |" in PAGE
