"""Tables and heat maps of attacks against detectors, in one setting with one number of attackers.

They are made of cells: the figures of an attack against a detector over all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.studies.intervals import mean
from fedrfq.studies.pictures import Panel
from fedrfq.studies.sheets import NOTHING, Cell, Columns, Sheet, number, plus_minus

Labels = Mapping[str, Sequence[str]]  # by axis


@dataclass(frozen=True)
class Accuracy:
    """An accuracy of honest clients: its column in clients.csv, and what it is called."""

    column: str
    short: str
    words: str


# On all classes it is the final prediction's, and that of the public classifier where there is one.
ACCURACIES = {
    "own": Accuracy("accuracy", "own head", "by their own heads"),
    "prototype": Accuracy("prototype_accuracy", "prototype", "by the nearest prototype"),
    "all_classes": Accuracy(
        "accuracy_all", "all classes", "on all classes by their final prediction"
    ),
    "public": Accuracy(
        "public_accuracy_all", "public map", "on all classes by the public map alone"
    ),
}
# Detectors with a memory need some rounds to learn; late recall counts from this round on.
LATE = 5
# Points: if less is lost without a detector, the share that one wins back is mostly noise.
MIN_LOSS = 0.5
# Points: the least share won back is that of attacks which cost more than this without a detector.
COSTLY = 1.0
_SEEDS_NOTE = "Mean over seeds ± standard deviation over seeds."
_LOSS_NOTE = (
    "Points lost against the run without attack and detector, over the same clients and seeds. In "
    "brackets: the share of the undefended loss that the detector wins back, given if that loss is "
    f"at least {MIN_LOSS} points."
)
_DETECTION_NOTE = (
    "Precision: share of the dropped uploads that were attackers'. Recall: share of the attackers' "
    f"uploads that were dropped. Late recall: the same from round {LATE} on."
)
_COST_NOTE = (
    "The share of honest uploads' weight that the detector took, a mean over rounds and seeds; and "
    "the most rounds in a row in which any honest client took part and had no weight."
)
_WORST_NOTE = (
    "Points that honest clients lose against the run without attack and detector, over the same "
    "clients and seeds: where nobody attacks, and under the attack that costs most. Least won "
    "back: the smallest share of the undefended loss that the detector saves, of attacks that cost "
    f"more than {COSTLY:g} points undefended. Weight lost and time out are the most of all attacks."
)


def measured_accuracies(cells: Iterable[Cell]) -> list[str]:
    """Return the accuracies that any run has; of a method without prototypes, none by them."""
    return [name for name in ACCURACIES if any(cell[name] is not None for cell in cells)]


def sheets(title: str, cells: Sequence[Cell], labels: Labels) -> list[Sheet]:
    """Return the table of detectors over all attacks, then tables of attacks × detectors."""
    matrices: list[tuple[str, Callable[[Cell], str], str]] = []
    for name in measured_accuracies(cells):
        words = ACCURACIES[name].words
        accuracy = partial(_accuracy_text, name=name)
        loss = partial(_loss_text, name=name)
        matrices += [
            (f"honest clients' accuracy {words}, %", accuracy, _SEEDS_NOTE),
            (f"points that honest clients lose {words}", loss, _LOSS_NOTE),
        ]
    matrices += [
        ("precision / recall / late recall", _detection, _DETECTION_NOTE),
        ("honest uploads dropped, %", lambda cell: _percent(cell["honest_dropped"]), ""),
        ("honest weight lost, % / longest time out, rounds", _cost, _COST_NOTE),
    ]
    down, across = [(axis, labels[axis]) for axis in ("attack", "detector")]
    return [
        _detectors(f"{title}: detectors over all attacks", cells),
        *(
            Sheet.matrix(f"{title}: {what}", down, across, cells, text, note)
            for what, text, note in matrices
        ),
    ]


def _detectors(title: str, cells: Sequence[Cell]) -> Sheet:
    """Return a table of each detector's mean over all attacks, and of its worst attack."""
    columns: dict[str, Callable[[Cell], str]] = {"detector": lambda row: str(row["detector"])}
    for name in measured_accuracies(cells):
        for what in ("mean", "worst"):
            columns[f"{ACCURACIES[name].short}, {what}"] = _figure(f"{name}_{what}", ".2f")
    columns["precision"] = _figure("precision", ".2f")
    columns["recall"] = _figure("recall", ".2f")
    columns["honest dropped, %"] = lambda row: _percent(row["honest_dropped"])
    rows = []
    for detector, own in _by_detector(cells).items():
        # Only where there are attackers is there a recall: the attack "none" is left out.
        attacked = [cell for cell in own.values() if cell["recall"] is not None]
        row: dict[str, Any] = {"detector": detector}
        for name in ("precision", "recall", "honest_dropped"):
            row[name] = mean([cell[name] for cell in attacked])
        for name in ACCURACIES:
            values = [cell[name].mean for cell in attacked if cell[name]]
            row |= {f"{name}_mean": mean(values), f"{name}_worst": min(values, default=None)}
        rows.append(row)
    note = "Accuracies are those of honest clients, in percent; means and worst are over attacks."
    return Sheet.of(title, columns, rows, note)


def _by_detector(cells: Iterable[Cell]) -> dict[str, dict[str, Cell]]:
    """Return each detector's cells by attack."""
    found: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        found.setdefault(cell["detector"], {})[cell["attack"]] = cell
    return found


def worst_attacks(
    cells: Sequence[Cell], axes: Iterable[str], peace: str, undefended: str
) -> list[dict[str, Any]]:
    """Return a row for each detector: where it stands, and what the worst attacks on it cost.

    `peace` is the label of no attack, and `undefended` that of no detector.
    """
    by_detector = _by_detector(cells)
    before = by_detector.get(undefended, {})
    rows = []
    for own in by_detector.values():
        (first, *_) = own.values()
        row = {axis: first[axis] for axis in _places(axes)}
        for name in ("honest_weight_lost", "longest_shut_out"):
            row[name] = max(cell[name] or 0 for cell in own.values())
        rows.append(row | {name: _scored(name, own, before, peace) for name in ACCURACIES})
    return rows


def _places(axes: Iterable[str]) -> list[str]:
    """Return what tells the rows of worst attacks apart, the detector last."""
    return [*(axis for axis in axes if axis not in ("attack", "detector")), "detector"]


def _scored(
    name: str, own: Mapping[str, Cell], before: Mapping[str, Cell], peace: str
) -> dict[str, Any]:
    """Return what a detector costs in peace, its worst attack, and what it wins back at least."""
    lost = _losses(name, own)
    undefended = _losses(name, before)
    shares = {
        attack: 1 - loss / undefended[attack]
        for attack, loss in lost.items()
        if attack != peace and undefended.get(attack, 0) > COSTLY
    }
    cost = lost.pop(peace, None)
    worst = max(lost, key=lost.__getitem__, default=None)
    least = min(shares, key=shares.__getitem__, default=None)
    return {
        "peace": cost,
        "worst": worst,
        "worst_loss": lost.get(worst),
        "least_won_back": shares.get(least),
        "least_won_back_of": least,
    }


def _losses(name: str, own: Mapping[str, Cell]) -> dict[str | None, float]:
    losses = {attack: cell[f"{name}_loss"] for attack, cell in own.items()}
    return {attack: loss.mean for attack, loss in losses.items() if loss is not None}


def worst_attacks_sheet(
    rows: Sequence[Mapping[str, Any]], axes: Iterable[str], names: Iterable[str]
) -> Sheet:
    """Return the rows of `worst_attacks` as a table, with a line for each of these accuracies."""
    places = _places(axes)
    columns: Columns = {
        **{axis: _text(axis) for axis in places},
        "accuracy": _text("accuracy"),
        "lost in peace": _figure("peace", ".2f"),
        "worst attack": _text("worst"),
        "points lost": _figure("worst_loss", ".2f"),
        "least won back, %": lambda row: _percent(row["least_won_back"]),
        "of": _text("least_won_back_of"),
        "honest weight lost, %": _figure("honest_weight_lost", ".2f"),
        "longest time out, rounds": _figure("longest_shut_out", ".0f"),
    }
    lines = [
        {**row, **row[name], "accuracy": ACCURACIES[name].short} for row in rows for name in names
    ]
    return Sheet.of("The worst attack", columns, lines, _WORST_NOTE, 1 + len(places))


def _figure(key: str, form: str) -> Callable[[Cell], str]:
    return lambda row: number(row[key], form)


def _text(key: str) -> Callable[[Cell], str]:
    return lambda row: NOTHING if row[key] is None else str(row[key])


def _accuracy_text(cell: Cell, name: str) -> str:
    accuracy = cell[name]
    if accuracy is None and cell["diverged"]:
        return "diverged"
    text = plus_minus(accuracy)
    if accuracy is not None and cell["diverged"]:
        text += f" ({cell['diverged']}/{cell['runs']} diverged)"
    return text


def _loss_text(cell: Cell, name: str) -> str:
    loss = cell[f"{name}_loss"]
    share = cell[f"{name}_won_back"]
    if loss is None:
        return NOTHING
    text = f"{loss.mean:.2f}"
    if share is not None:
        text += f" ({100 * share:.0f} %)"
    return text


def _detection(cell: Cell) -> str:
    return " / ".join(number(cell[name], ".2f") for name in ("precision", "recall", "recall_late"))


def _cost(cell: Cell) -> str:
    lost = number(cell["honest_weight_lost"], ".1f")
    return f"{lost} / {number(cell['longest_shut_out'], '.0f')}"


def _percent(share: float | None) -> str:
    if share is None:
        return NOTHING
    return f"{100 * share:.1f}"


def panels(cells: Sequence[Cell], labels: Labels) -> list[Panel]:
    """Return heat maps of attacks × detectors: honest clients' accuracies, and detection."""

    def values(name: str) -> NDArray[np.float64]:
        own = {(c["attack"], c["detector"]): getattr(c[name], "mean", c[name]) for c in cells}
        rows = [[own.get((a, d)) for d in labels["detector"]] for a in labels["attack"]]
        return np.array(rows, np.float64)

    found = [
        _accuracy_panel(ACCURACIES[name].short, values(name)) for name in measured_accuracies(cells)
    ]
    return found + [Panel(name, values(name), 0, 1, 2) for name in ("precision", "recall")]


def _accuracy_panel(words: str, values: NDArray[np.float64]) -> Panel:
    low = float(np.nanmin(values))
    # At least a point between the ends, or noise would fill the scale of colours.
    high = max(float(np.nanmax(values)), low + 1)
    return Panel(f"{words}, %", values, low, high, 1)
