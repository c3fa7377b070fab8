"""Tables and pictures of a comparison."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrfq.studies import plots
from fedrfq.studies.compare import CONTROLS, ComparedCell, Comparison, ComparisonFindings
from fedrfq.studies.intervals import Difference, Spread
from fedrfq.studies.sheets import NOTHING, Sheet, interval, plus_minus

# For each panel of a picture, the field of a round's record and that of a cell.
_CURVES = {"own head": "accuracy_mean", "nearest global prototype": "prototype_accuracy_mean"}
_FINALS = {
    "own head": "own",
    "nearest global prototype": "prototype",
    "final prediction, all classes": "all_classes",
}


def sheets(findings: ComparisonFindings) -> list[Sheet]:
    """Return a table for each setting, one of differences for each `against`, and one of λ."""
    comparison = findings.comparison
    settings = [_setting(findings, setting) for setting in comparison.settings]
    differences = [_differences(findings, other) for other in comparison.against]
    tuning = []
    if comparison.chosen:
        tuning.append(_tuning(comparison))
    return [*settings, *(sheet for sheet in differences if sheet.rows), *tuning]


def _title(comparison: Comparison, setting: str) -> str:
    if setting:
        return f"{comparison.name}: {setting}"
    return comparison.name


def _setting(findings: ComparisonFindings, setting: str) -> Sheet:
    comparison = findings.comparison
    header = ["method", "λ", "own head, %", "nearest prototype, %", "all classes, %"]
    if comparison.target is not None:
        header.append(f"rounds to {comparison.target:g} %")
    header += ["values per round", "bytes per round", "seconds"]
    rows = [_row(cell, comparison.target) for cell in findings.cells if cell.setting == setting]
    note = (
        f"Accuracies are means over {len(comparison.seeds)} seeds ± standard deviation over "
        "clients (± standard deviation over seeds), on the classes that a client holds; on all "
        "classes ± standard deviation over seeds. Values and bytes are those that all clients "
        "together upload."
    )
    if comparison.target is not None:
        note += " Rounds to the target: mean over the runs that reach it (how many do / all runs)."
    controls = [method for method in comparison.methods if method in CONTROLS]
    if controls:
        note += f" Controls, which send no prototypes and no models: {', '.join(controls)}."
    if comparison.left_out:
        note += f" Controls left out: {'; '.join(comparison.left_out)}."
    return Sheet(_title(comparison, setting), tuple(header), tuple(rows), note)


def _row(cell: ComparedCell, target: float | None) -> tuple[str, ...]:
    label = cell.method
    if cell.diverged:
        label += f" ({cell.diverged} of {cell.runs} diverged)"
    own = _accuracy(cell.own, cell.own_std)
    if cell.own is None:
        own = "diverged"
    lam = NOTHING
    if cell.lam is not None:
        lam = f"{cell.lam:g}"
    prototype = _accuracy(cell.prototype, cell.prototype_std)
    row = [label, lam, own, prototype, plus_minus(cell.all_classes)]
    if target is not None:
        row.append(f"{_number(cell.rounds_to_target, 1)} ({cell.reached}/{cell.runs})")
    return (*row, _number(cell.parameters), _number(cell.bytes), _number(cell.seconds, 1))


def _accuracy(accuracy: Spread | None, std_over_clients: float | None) -> str:
    if accuracy is None or std_over_clients is None:
        return NOTHING
    text = f"{accuracy.mean:.2f} ± {std_over_clients:.2f}"
    if accuracy.std is not None:
        text += f" (± {accuracy.std:.2f})"
    return text


def _number(value: float | None, digits: int = 0) -> str:
    if value is None:
        return NOTHING
    return f"{value:,.{digits}f}"


def _differences(findings: ComparisonFindings, other: str) -> Sheet:
    """Return the table of differences from one method, setting by setting."""
    header = ["method"]
    for title in ("own head", "nearest prototype", "all classes"):
        header += [f"{title}, points", "verdict"]
    rows = []
    several_settings = len(findings.comparison.settings) > 1
    for pair in findings.pairs:
        if pair.other == other:
            row = [pair.method]
            for accuracy in (pair.own, pair.prototype, pair.all_classes):
                row += _with_verdict(accuracy)
            if several_settings:
                row.insert(0, pair.setting)
            rows.append(tuple(row))
    if several_settings:
        header.insert(0, "setting")
    note = (
        f"Accuracy of the method minus that of {other}, paired over the same seeds, ± half of the "
        "95 % interval by Student's t. Each pair is judged by itself, without a correction for the "
        "number of pairs."
    )
    return Sheet(
        f"Differences from {other}", tuple(header), tuple(rows), note, 1 + several_settings
    )


def _with_verdict(difference: Difference | None) -> tuple[str, str]:
    if difference is None:
        return (NOTHING, "")
    return (interval(difference), difference.verdict)


def _tuning(comparison: Comparison) -> Sheet:
    """Return the accuracies on held-back samples from which λ was chosen."""
    lams = sorted({one.lam for choice in comparison.chosen for one in choice.tried})
    header = ["method", "chosen λ", *(f"λ = {lam:g}, %" for lam in lams)]
    several_settings = len(comparison.settings) > 1
    if several_settings:
        header.insert(0, "setting")
    rows = []
    for choice in comparison.chosen:
        accuracies = {one.lam: one.own for one in choice.tried}
        row = [choice.method, f"{choice.lam:g}"]
        row += [_number(accuracies.get(lam), 2) for lam in lams]
        if several_settings:
            row.insert(0, choice.setting)
        rows.append(tuple(row))
    shares = dict.fromkeys(f"{100 * choice.held_back:g} %" for choice in comparison.chosen)
    seeds = ", ".join(map(str, comparison.tuning.seeds))
    note = (
        f"Accuracies of the clients' own heads on {' or '.join(shares)} of their training samples, "
        f"which are held back, with seeds {seeds}; {NOTHING} where a run diverged or a λ was not "
        "tried. The best λ is used above; a tie goes to the method's default. Test samples take no "
        "part."
    )
    return Sheet(
        "λ chosen on held-back samples", tuple(header), tuple(rows), note, 1 + several_settings
    )


def draw(folder: Path, findings: ComparisonFindings) -> list[Path]:
    """Draw the curves of each setting, and the final accuracies of all, into a folder."""
    comparison = findings.comparison
    paths = []
    for number, setting in enumerate(comparison.settings, 1):
        panels = {title: _lines(findings, setting, field) for title, field in _CURVES.items()}
        if any(panels.values()):
            name = "curves.png"
            if setting:
                name = f"curves-{number}-{plots.slug(setting)}.png"
            paths.append(plots.curves(folder / name, _title(comparison, setting), panels))
    if paths:
        finals = {title: _finals(findings, measure) for title, measure in _FINALS.items()}
        paths.append(plots.dots(folder / "final.png", comparison.name, comparison.settings, finals))
    return paths


def _lines(
    findings: ComparisonFindings, setting: str, field: str
) -> dict[str, NDArray[np.float64]]:
    """Return each method's curve in a setting, seeds × rounds, if it has one."""
    lines = {}
    for method in findings.comparison.methods:
        runs = [
            records
            for (run_setting, run_method, _), records in findings.records.items()
            if (run_setting, run_method) == (setting, method)
        ]
        values_SR = [[getattr(record, field) for record in records] for records in runs]
        # A method that exchanges no prototypes has no accuracy by them in any round.
        if values_SR and values_SR[0][-1] is not None:
            lines[method] = np.array(values_SR, np.float64)
    return lines


def _finals(findings: ComparisonFindings, measure: str) -> dict[str, list[Spread | None]]:
    cells = {(cell.setting, cell.method): cell for cell in findings.cells}
    comparison = findings.comparison
    # A control may have no cell in some of the settings.
    return {
        method: [
            getattr(cells.get((setting, method)), measure, None) for setting in comparison.settings
        ]
        for method in comparison.methods
    }
