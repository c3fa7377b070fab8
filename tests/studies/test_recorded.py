"""Recorded tables come out the same from their recorded runs, but for means over all settings."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedrfq.paper.kinds import plan
from fedrfq.studies.compare import ComparePlan
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.sheets import Sheet
from fedrfq.studies.study import Study
from fedrfq.studies.tuning import ChosenLam, TriedLam
from reruns import collect, recorded_plan, recorded_rows
from support.paths import EXAMPLES, RESULTS

TOGETHER = ("all settings", "all together")
# A column that says more today, in brackets, and what it was called in the records.
ON_ALL_CLASSES = ("all classes (held / not held), %", "all classes, %")
# Titles that were reworded, as the records have them.
REWORDED = {
    "Accuracy against samples a class": "Accuracy against samples per class",
    "Servers: one alone against a committee of four": (
        "Servers: one alone compared with a committee of four"
    ),
}
Rows = list[list[str]]


def sections(markdown: str) -> dict[str, Rows]:
    """Return the tables of a Markdown file by title, the header first."""
    tables: dict[str, Rows] = {}
    for line in markdown.splitlines():
        if line.startswith("## "):
            tables[REWORDED.get(line[3:], line[3:])] = []
        elif line.startswith("| "):
            cells = re.split(r"(?<!\\)\|", line)[1:-1]
            list(tables.values())[-1].append([cell.strip() for cell in cells])
    return tables


def unique(header: Sequence[str]) -> list[str]:
    """Return a header as records have it, whose verdicts are called by the column they judge."""
    today, recorded = ON_ALL_CLASSES
    header = [recorded if name == today else name for name in header]
    before = ["", *header[:-1]]
    return [f"{a} {b}" if b == "verdict" else b for a, b in zip(before, header, strict=True)]


def by_label(header: list[str], rows: Rows, labels: list[str]) -> dict[tuple[str, ...], list[str]]:
    at = [header.index(label) for label in labels]
    # The table of a method that diverged says so behind its label.
    return {tuple(re.sub(r" \(.* diverged\)", "", row[i]) for i in at): row for row in rows}


def same_cells(sheet: Sheet, recorded: Rows) -> int:
    """Compare the columns that both tables have, and return how many cells they are."""
    old = unique(recorded[0])
    new = unique(sheet.header)
    before = by_label(old, recorded[1:], new[: sheet.labels])
    after = by_label(new, [list(row) for row in sheet.rows], new[: sheet.labels])
    count = 0
    for place, row in before.items():
        if not set(place) & set(TOGETHER):
            for column in set(old) & set(new):
                text = after[place][new.index(column)]
                recorded_text = row[old.index(column)]
                # Older tables do not tell classes that are held from others.
                if column in ON_ALL_CLASSES and " (" not in recorded_text:
                    text = text.partition(" (")[0]
                assert recorded_text == text
                count += 1
    return count


def compared(wanted: GridPlan, folder: Path) -> int:
    """Make a recorded study's tables again from its runs, and compare those of the same titles."""
    rows = recorded_rows(folder, wanted.axes.labels)
    sheets = {
        sheet.title: sheet for sheet in wanted.tables(MeasuredRuns.recorded(wanted.axes, rows))
    }
    recorded = sections((folder / "table.md").read_text(encoding="utf-8"))
    # Claims were worded otherwise.
    titles = [title for title in recorded if title in sheets and title != "The claims"]
    return sum(same_cells(sheets[title], recorded[title]) for title in titles)


def as_chosen(whole: dict[str, Any]) -> list[ChosenLam]:
    return [
        ChosenLam(**{**one, "tried": tuple(TriedLam(**tried) for tried in one["tried"])})
        for one in whole["tuning"]
    ]


@pytest.mark.parametrize(("name", "cells"), [("peers", 88 + 80 + 80 + 60), ("variant", 1484)])
def test_comparisons_with_their_chosen_lam(name: str, cells: int) -> None:
    folder = RESULTS / name
    wanted = plan(Study.load(EXAMPLES / f"compare-{name}.toml"))
    assert isinstance(wanted, ComparePlan)
    whole = json.loads((folder / "table.json").read_text())
    assert compared(wanted.with_lams(as_chosen(whole)), folder) == cells


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("mnist-methods", 6 * 9 * 5 + 2 * 6 * 8 * 4),
        ("table1", 56 + 6 * 56),
        ("table2", 56 + 6 * 56),
        ("table3", 56 + 161),
        ("table3-stem", 50),
    ],
)
def test_methods_in_settings(name: str, cells: int) -> None:
    folder = RESULTS / name
    if not folder.is_dir():
        folder = RESULTS / "reproduce" / name
    assert compared(recorded_plan(name), folder) == cells


@pytest.mark.parametrize(
    ("folder", "example", "cells"),
    [
        ("mnist-robustness", "mnist", 604),
        ("mnist-robustness-six", "mnist-six", 98),
        ("mnist-robustness-fedproto", "fedproto", 44),
        ("mnist-robustness-fedrfq-lean", "fedrfq-lean", 44),
        ("mnist-peace", "peace", 14),
        ("weak-fedproto", "weak-fedproto", 32),
        ("weak-fedrfq", "weak-fedrfq", 32),
        ("attacks/groups", "groups", 92),
        ("attacks/remembering", "remembering", 212),
        ("attacks/sole", "sole", 94),
        ("public/robustness", "public", 3 * (40 + 8 * 65)),
        ("public/robustness-adaptive", "public", 1293),
    ],
)
def test_attacks_against_detectors(folder: str, example: str, cells: int) -> None:
    wanted = plan(Study.load(EXAMPLES / f"robustness-{example}.toml"))
    assert isinstance(wanted, GridPlan)
    assert compared(wanted, RESULTS / folder) == cells


@pytest.mark.parametrize(
    ("name", "cells"),
    [
        ("ablation", 80),
        ("lambda", 144),
        ("poisoning", 420),
        ("pooling", 108),
        ("redundancy", 336),
        ("scarce", 150),
        ("servers", 32),
        ("shortfall", 45),
        ("silhouette", 36),
    ],
)
def test_figures(name: str, cells: int) -> None:
    assert compared(recorded_plan(name), RESULTS / "reproduce" / name) == cells


def test_equal_settings_count_once_in_means_over_all() -> None:
    """3 ± 3 and 4 ± 2 are one experiment; the mean over the other five settings, by hand."""
    wanted = recorded_plan("mnist-methods")
    rows = recorded_rows(RESULTS / "mnist-methods", wanted.axes.labels)
    whole = wanted.whole(MeasuredRuns.recorded(wanted.axes, rows))
    assert whole["equal"] == {"4 ± 2": "3 ± 3"}
    own = {(row["setting"], row["method"], row["seed"]): row["own"] for row in rows}
    settings = ("3 ± 2", "3 ± 3", "4 ± 3", "5 ± 2", "5 ± 3")
    differences = [
        own[setting, "fedrfq", seed] - own[setting, "local", seed]
        for setting in settings
        for seed in range(5)
    ]
    (pair,) = (
        pair
        for pair in whole["pairs"]
        if (pair["setting"], pair["method"], pair["other"]) == ("all settings", "fedrfq", "local")
    )
    assert pair["own"]["mean"] == pytest.approx(sum(differences) / 25)


def test_the_recorded_spread_between_reruns() -> None:
    found = collect()
    assert found == json.loads((RESULTS / "reruns.json").read_text())
    means = found["fedrfq, MNIST, 3 ± 2, own head"].values()
    assert {f"{mean:.2f}" for mean in means} == {"98.44", "98.45", "98.52"}
