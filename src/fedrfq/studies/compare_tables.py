"""What a comparison found, for people: tables and pictures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrfq.studies import plots
from fedrfq.studies.compare import ComparedCell, ComparisonFindings
from fedrfq.studies.intervals import Difference, Spread
from fedrfq.studies.sheets import NOTHING, Sheet, interval

_CURVES = {"own head": "accuracy_mean", "nearest global prototype": "prototype_accuracy_mean"}
_FINALS = {"own head": "own", "nearest global prototype": "prototype"}


def sheets(findings: ComparisonFindings) -> list[Sheet]:
    """A table for each setting, and the differences from each method of `against`."""
    comparison = findings.comparison
    differences = [_differences(findings, other) for other in comparison.against]
    return [
        *(_setting(findings, setting) for setting in comparison.settings),
        *(s for s in differences if s.rows),
    ]


def _setting(findings: ComparisonFindings, setting: str) -> Sheet:
    comparison = findings.comparison
    target = comparison.target
    if target is None:
        reaching = []
    else:
        reaching = [f"rounds to {target:g} %"]
    header = (
        "method",
        "own head, %",
        "nearest prototype, %",
        *reaching,
        "values a round",
        "bytes a round",
        "seconds",
    )
    rows = [_row(cell, target) for cell in findings.cells if cell.setting == setting]
    seeds = len(comparison.seeds)
    note = f"mean over {seeds} seeds ± standard deviation over clients (± over seeds); uploads of all clients together"
    return Sheet(f"{comparison.name}{': ' + setting if setting else ''}", header, tuple(rows), note)


def _row(cell: ComparedCell, target: float | None) -> tuple[str, ...]:
    label = cell.method + (f" ({cell.diverged} of {cell.runs} diverged)" if cell.diverged else "")
    accuracies = [_accuracy(cell.own, cell.own_std), _accuracy(cell.prototype, cell.prototype_std)]
    if cell.own is None:
        accuracies[0] = "diverged"
    if cell.rounds_to_target is None:
        rounds = NOTHING
    else:
        rounds = f"{cell.rounds_to_target:.1f}"
    if target is None:
        reached = []
    else:
        reached = [f"{rounds} ({cell.reached}/{cell.runs})"]
    return (
        label,
        *accuracies,
        *reached,
        _count(cell.parameters),
        _count(cell.bytes),
        _count(cell.seconds, 1),
    )


def _accuracy(found: Spread | None, std: float | None) -> str:
    if found is None or std is None:
        return NOTHING
    return f"{found.mean:.2f} ± {std:.2f}" + ("" if found.std is None else f" (± {found.std:.2f})")


def _count(value: float | None, digits: int = 0) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.{digits}f}"


def _differences(findings: ComparisonFindings, other: str) -> Sheet:
    """The differences from one method, setting by setting."""
    pairs = [pair for pair in findings.pairs if pair.other == other]
    several = len(findings.comparison.settings) > 1
    rows = [
        (
            *([pair.setting] if several else []),
            pair.method,
            *_found(pair.own),
            *_found(pair.prototype),
        )
        for pair in pairs
    ]
    header = (
        *(["setting"] if several else []),
        "method",
        "own head, points",
        "",
        "nearest prototype, points",
        "",
    )
    note = "95 % intervals by Student's t, over the same seeds; each pair by itself, with no correction for their number"
    return Sheet(f"Differences from {other}", header, tuple(rows), note, 1 + several)


def _found(found: Difference | None) -> tuple[str, str]:
    if found is None:
        return (NOTHING, "")
    return (interval(found), found.verdict)


def draw(folder: Path, findings: ComparisonFindings) -> list[Path]:
    """Curves for each setting, and the final accuracies of all."""
    comparison = findings.comparison
    paths = []
    for i, setting in enumerate(comparison.settings):
        panels = {title: _lines(findings, setting, field) for title, field in _CURVES.items()}
        if any(panels.values()):
            path = folder / (
                f"curves-{i + 1}-{plots.slug(setting)}.png" if setting else "curves.png"
            )
            paths.append(
                plots.curves(path, f"{comparison.name}{': ' + setting if setting else ''}", panels)
            )
    finals = {title: _finals(findings, measure) for title, measure in _FINALS.items()}
    if paths:
        paths.append(plots.dots(folder / "final.png", comparison.name, comparison.settings, finals))
    return paths


def _lines(
    findings: ComparisonFindings, setting: str, field: str
) -> dict[str, NDArray[np.float64]]:
    """Each method's curve in a setting, seeds × rounds, where there is one."""
    lines = {}
    for method in findings.comparison.methods:
        runs = [
            records
            for (s, m, _), records in findings.records.items()
            if (s, m) == (setting, method)
        ]
        values = [[getattr(record, field) for record in records] for records in runs]
        if values and values[0][-1] is not None:
            lines[method] = np.array(values, np.float64)
    return lines


def _finals(findings: ComparisonFindings, measure: str) -> dict[str, list[Spread | None]]:
    methods = findings.comparison.methods
    return {
        method: [getattr(cell, measure) for cell in findings.cells if cell.method == method]
        for method in methods
    }
