"""Tables and heat maps of a robustness study: what attacks cost, and what detectors save."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedrfq.studies import plots
from fedrfq.studies.intervals import Spread
from fedrfq.studies.plots import Panel
from fedrfq.studies.robustness import LATE, MIN_LOSS, AttackedCell, RobustnessFindings
from fedrfq.studies.sheets import NOTHING, Sheet, plus_minus

_OWN = "honest clients' accuracy by their own heads, %"
_PROTOTYPE = "honest clients' accuracy by the nearest prototype, %"
_ALL_CLASSES = "honest clients' accuracy on all classes, by their final prediction, %"
_ACCURACY_NOTE = "Mean over seeds ± standard deviation over seeds."
_LOSS_NOTE = (
    "Points lost against the run without attack and detector, over the same clients and seeds. In "
    "brackets: the share of the undefended loss that the detector wins back, given if that loss is "
    f"at least {MIN_LOSS} points."
)
_DETECTION_NOTE = (
    "Precision: share of the dropped uploads that were attackers'. Recall: share of the attackers' "
    f"uploads that were dropped. Late recall: the same from round {LATE} on."
)


def sheets(findings: RobustnessFindings) -> list[Sheet]:
    """Return, for each number of attackers, the detectors over all attacks, then each attack."""
    return [
        sheet
        for number in findings.study.attackers
        for sheet in _sheets_of_number(findings, number)
    ]


def _sheets_of_number(findings: RobustnessFindings, number: int) -> list[Sheet]:
    study = findings.study

    def matrix(title: str, text: Callable[[AttackedCell], str], note: str = "") -> Sheet:
        rows = []
        for attack in study.attacks:
            cells = [findings.cell(attack, detector, number) for detector in study.detectors]
            rows.append((attack, *map(text, cells)))
        header = ("attack", *study.detectors)
        return Sheet(f"{_attackers(number)}: {title}", header, tuple(rows), note)

    return [
        _detectors(findings, number),
        matrix(_OWN, lambda cell: _accuracy(cell, cell.own), _ACCURACY_NOTE),
        matrix(
            "points lost by own heads",
            lambda cell: _loss(cell.own_loss, cell.own_won_back),
            _LOSS_NOTE,
        ),
        matrix(_PROTOTYPE, lambda cell: _accuracy(cell, cell.prototype), _ACCURACY_NOTE),
        matrix(
            "points lost by the nearest prototype",
            lambda cell: _loss(cell.prototype_loss, cell.prototype_won_back),
            _LOSS_NOTE,
        ),
        matrix(_ALL_CLASSES, lambda cell: _accuracy(cell, cell.all_classes), _ACCURACY_NOTE),
        matrix(
            "points lost on all classes",
            lambda cell: _loss(cell.all_classes_loss, cell.all_classes_won_back),
            _LOSS_NOTE,
        ),
        matrix("precision / recall / late recall", _detection, _DETECTION_NOTE),
        matrix("honest uploads dropped, %", lambda cell: _percent(cell.honest_dropped)),
    ]


def _detectors(findings: RobustnessFindings, number: int) -> Sheet:
    """Return a table of each detector's mean over all attacks, and of its worst attack."""
    header = (
        "detector",
        "own head, mean",
        "own head, worst",
        "prototype, mean",
        "prototype, worst",
        "precision",
        "recall",
        "honest dropped, %",
    )
    rows = []
    for detector in findings.study.detectors:
        # Only where there are attackers is there a recall: the attack "none" is left out.
        cells = [
            cell
            for cell in findings.cells
            if (cell.detector, cell.attackers) == (detector, number) and cell.recall is not None
        ]
        own = [cell.own.mean for cell in cells if cell.own]
        prototype = [cell.prototype.mean for cell in cells if cell.prototype]
        row = (
            detector,
            *_mean_and_worst(own),
            *_mean_and_worst(prototype),
            _number(_mean([cell.precision for cell in cells])),
            _number(_mean([cell.recall for cell in cells])),
            _percent(_mean([cell.honest_dropped for cell in cells])),
        )
        rows.append(row)
    title = f"{_attackers(number)}: detectors over all attacks"
    note = "Accuracies are those of honest clients, in percent; means and worst are over attacks."
    return Sheet(title, header, tuple(rows), note)


def _mean(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    if present:
        return fmean(present)
    return None


def _mean_and_worst(values: Sequence[float]) -> tuple[str, str]:
    if values:
        return (f"{fmean(values):.2f}", f"{min(values):.2f}")
    return (NOTHING, NOTHING)


def _attackers(number: int) -> str:
    if number == 1:
        return "1 attacker"
    return f"{number} attackers"


def _accuracy(cell: AttackedCell, accuracy: Spread | None) -> str:
    if accuracy is None and cell.diverged:
        return "diverged"
    text = plus_minus(accuracy)
    if accuracy is not None and cell.diverged:
        text += f" ({cell.diverged}/{cell.runs} diverged)"
    return text


def _loss(loss: Spread | None, won_back: float | None) -> str:
    if loss is None:
        return NOTHING
    text = f"{loss.mean:.2f}"
    if won_back is not None:
        text += f" ({100 * won_back:.0f} %)"
    return text


def _detection(cell: AttackedCell) -> str:
    return " / ".join(_number(share) for share in (cell.precision, cell.recall, cell.recall_late))


def _number(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{share:.2f}"


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{100 * share:.1f}"


def draw(folder: Path, findings: RobustnessFindings) -> list[Path]:
    """Draw a picture of heat maps for each number of attackers into a folder."""
    study = findings.study
    paths = []
    for number in study.attackers:
        panels = [
            _accuracy_panel(findings, number, _OWN, lambda cell: cell.own),
            _accuracy_panel(findings, number, _PROTOTYPE, lambda cell: cell.prototype),
            Panel("precision", _values(findings, number, lambda cell: cell.precision), 0, 1, 2),
            Panel("recall", _values(findings, number, lambda cell: cell.recall), 0, 1, 2),
        ]
        path = folder / f"attackers-{number}.png"
        title = f"{study.name}: {_attackers(number)}; attacks by detectors"
        paths.append(plots.heat_maps(path, title, study.attacks, study.detectors, panels))
    return paths


def _accuracy_panel(
    findings: RobustnessFindings,
    number: int,
    title: str,
    accuracy: Callable[[AttackedCell], Spread | None],
) -> Panel:
    values = _values(findings, number, lambda cell: getattr(accuracy(cell), "mean", None))
    present = values[~np.isnan(values)]
    low = 0.0
    high = 100.0
    if len(present):
        low = float(present.min())
        high = float(present.max())
    # At least a point between the ends, or noise would fill the scale of colours.
    return Panel(title, values, low, max(high, low + 1), 1)


def _values(
    findings: RobustnessFindings, number: int, figure: Callable[[AttackedCell], float | None]
) -> NDArray[np.float64]:
    """Return a figure for attacks × detectors, nan where it is missing."""
    study = findings.study
    figures = [
        [figure(findings.cell(attack, detector, number)) for detector in study.detectors]
        for attack in study.attacks
    ]
    return np.array(figures, np.float64)
