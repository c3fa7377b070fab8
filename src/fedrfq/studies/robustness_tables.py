"""What attacks did and detectors saved, for people: tables and heat maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from fedrfq.studies import plots
from fedrfq.studies.intervals import Spread
from fedrfq.studies.plots import Panel
from fedrfq.studies.robustness import LATE, LEAST_LOSS, AttackedCell, RobustnessFindings
from fedrfq.studies.sheets import NOTHING, Sheet, plus_minus

_OWN = "honest clients' own heads, %"
_PROTOTYPE = "honest clients by nearest prototype, %"


def sheets(findings: RobustnessFindings) -> list[Sheet]:
    """For each number of attackers: the detectors over all attacks, and attack by attack."""
    return [sheet for number in findings.trial.attackers for sheet in _of_number(findings, number)]


def _of_number(findings: RobustnessFindings, number: int) -> list[Sheet]:
    def matrix(what: str, shown: Callable[[AttackedCell], str], note: str = "") -> Sheet:
        trial = findings.trial
        rows = [
            (a, *(shown(findings.cell(a, d, number)) for d in trial.detectors))
            for a in trial.attacks
        ]
        return Sheet(
            f"{_attackers(number)}: {what}", ("attack", *trial.detectors), tuple(rows), note
        )

    seeds = "mean over seeds ± standard deviation over them"
    lost = "points less than without attack and detector, over the same clients and seeds; in brackets the share of the "
    lost += f"undefended loss won back, where that is {LEAST_LOSS} points or more"
    late = f"of the uploads dropped, attackers' / of attackers' uploads, dropped / the same from round {LATE} on"
    return [
        _detectors(findings, number),
        matrix(_OWN, lambda cell: _accuracy(cell, cell.own), seeds),
        matrix("lost by own heads", lambda cell: _loss(cell.own_loss, cell.own_won_back), lost),
        matrix(_PROTOTYPE, lambda cell: _accuracy(cell, cell.prototype), seeds),
        matrix(
            "lost by nearest prototype",
            lambda cell: _loss(cell.prototype_loss, cell.prototype_won_back),
            lost,
        ),
        matrix("precision / recall / late recall", _detected, late),
        matrix("honest uploads dropped, %", lambda cell: _percent(cell.honest_dropped)),
    ]


def _detectors(findings: RobustnessFindings, number: int) -> Sheet:
    """Each detector over all attacks that are some: the mean, and the worst of them."""
    header = (
        "detector",
        "own head",
        "worst",
        "prototype",
        "worst",
        "precision",
        "recall",
        "honest dropped, %",
    )
    rows = []
    for detector in findings.trial.detectors:
        cells = [
            cell for cell in findings.cells if (cell.detector, cell.attackers) == (detector, number)
        ]
        own = [cell.own.mean for cell in cells if cell.own and cell.recall is not None]
        prototype = [
            cell.prototype.mean for cell in cells if cell.prototype and cell.recall is not None
        ]
        shares = (
            [
                getattr(cell, key)
                for cell in cells
                if cell.recall is not None and getattr(cell, key) is not None
            ]
            for key in ("precision", "recall", "honest_dropped")
        )
        precision, recall, dropped = (fmean(values) if values else None for values in shares)
        row = (
            *_mean_and_worst(own),
            *_mean_and_worst(prototype),
            _number(precision),
            _number(recall),
            _percent(dropped),
        )
        rows.append((detector, *row))
    return Sheet(
        f"{_attackers(number)}: detectors over all attacks",
        header,
        tuple(rows),
        "honest clients' accuracy, %",
    )


def _mean_and_worst(values: Sequence[float]) -> tuple[str, str]:
    if values:
        return (f"{fmean(values):.2f}", f"{min(values):.2f}")
    return (NOTHING, NOTHING)


def _attackers(number: int) -> str:
    return f"{number} attacker{'s' if number > 1 else ''}"


def _accuracy(cell: AttackedCell, found: Spread | None) -> str:
    if found is None:
        if cell.diverged:
            return "diverged"
        return NOTHING
    return plus_minus(found) + (f" ({cell.diverged}/{cell.runs} diverged)" if cell.diverged else "")


def _loss(loss: Spread | None, won_back: float | None) -> str:
    if loss is None:
        return NOTHING
    return f"{loss.mean:.2f}" + ("" if won_back is None else f" ({100 * won_back:.0f} %)")


def _detected(cell: AttackedCell) -> str:
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
    """A picture for each number of attackers."""
    trial = findings.trial
    paths = []
    for number in trial.attackers:
        panels = [
            _accuracies(findings, number, _OWN, lambda cell: cell.own),
            _accuracies(findings, number, _PROTOTYPE, lambda cell: cell.prototype),
            Panel("precision", _values(findings, number, lambda cell: cell.precision), 0, 1, 2),
            Panel("recall", _values(findings, number, lambda cell: cell.recall), 0, 1, 2),
        ]
        path = folder / f"attackers-{number}.png"
        title = f"{trial.name}: {_attackers(number)}; attacks by detectors"
        paths.append(plots.heat_maps(path, title, trial.attacks, trial.detectors, panels))
    return paths


def _accuracies(
    findings: RobustnessFindings,
    number: int,
    title: str,
    found: Callable[[AttackedCell], Spread | None],
) -> Panel:
    values = _values(findings, number, lambda cell: getattr(found(cell), "mean", None))
    there = values[~np.isnan(values)]
    if len(there):
        low = float(there.min())
        high = float(there.max())
    else:
        low = 0.0
        high = 100.0
    return Panel(title, values, low, max(high, low + 1), 1)


def _values(
    findings: RobustnessFindings, number: int, figure: Callable[[AttackedCell], float | None]
) -> NDArray[np.float64]:
    """Attacks × detectors, nan where there is none."""
    trial = findings.trial
    found = [[figure(findings.cell(a, d, number)) for d in trial.detectors] for a in trial.attacks]
    return np.array(found, np.float64)
