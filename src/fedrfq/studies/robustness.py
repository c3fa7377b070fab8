"""Kind `robustness`: attacks against detectors, with several numbers of malicious clients.

against = ["none"]              optional: the detectors from which differences are printed
[axes]
attackers = [2, 4]              how many clients are malicious
attack = ["none", "noise"]      attacks and detectors: lists of names, or sections with options,
detector = ["none", "bft"]      as for any axis

The other keys are `only` and `experiment` of a grid (axes.py) and those of claims (claims.py). The
attack "none" is run once with each detector, not once for each number of attackers. The clean run,
without attack and detector, is always included: losses are measured against it, over the same
honest clients and seeds.
"""

from __future__ import annotations

import csv
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, check_keys
from fedrfq.files import regular
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import attackers as malicious
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.runs.run_directory import CLIENT_COLUMNS, MAX_ROW_BYTES
from fedrfq.studies.axes import Axes, Labels, check_named, read_labels
from fedrfq.studies.claims import ALL, claims
from fedrfq.studies.differences import difference_sheets, pairs, read_against
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, mean, spread
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.pictures import Panel, heat_maps
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.sheets import NOTHING, Cell, Sheet, number, plus_minus
from fedrfq.studies.study import Study, section, whole_numbers

KEYS = ("only", "experiment", "axes", "against", "claims")
AXES = ("attack", "detector", "attackers")
# Detectors with a memory need some rounds to learn; late recall counts from this round on.
LATE = 5
# Points: if less is lost without a detector, the share that one wins back is mostly noise.
MIN_LOSS = 0.5


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


def detected(records: Sequence[RoundRecord]) -> dict[str, int]:
    """Count the uploads of a run: who sent them, and which of them were dropped."""
    late = [record for record in records if record.round >= LATE]
    return {
        "dropped": sum(len(r.filtered) + len(r.refused) for r in records),
        "dropped_attackers": sum(r.attackers_filtered for r in records),
        "attackers": sum(r.attackers for r in records),
        "late_dropped_attackers": sum(r.attackers_filtered for r in late),
        "late_attackers": sum(r.attackers for r in late),
        "honest": sum(r.participants - r.attackers for r in records),
    }


def shares(runs: Sequence[Mapping[str, int]]) -> dict[str, float | None]:
    """Return precision, recall, late recall, and the share of honest uploads dropped, of all runs.

    The runs are given by their counts.
    """
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run)
    parts = {
        "precision": ("dropped_attackers", "dropped"),
        "recall": ("dropped_attackers", "attackers"),
        "recall_late": ("late_dropped_attackers", "late_attackers"),
        "honest_dropped": ("dropped_honest", "honest"),
    }
    counts["dropped_honest"] = counts["dropped"] - counts["dropped_attackers"]
    found: dict[str, float | None] = dict.fromkeys(parts)
    return found | {
        name: counts[part] / counts[total] for name, (part, total) in parts.items() if counts[total]
    }


@dataclass(frozen=True)
class RobustnessPlan(GridPlan):
    """A grid of attacks, detectors and numbers of attackers, and the clean run of each seed."""

    clean: Mapping[int, Experiment]
    against: tuple[str, ...]

    spreads: ClassVar[Collection[str]] = (*ACCURACIES, *(f"{name}_loss" for name in ACCURACIES))

    @staticmethod
    def of(study: Study) -> RobustnessPlan:
        """Read and check a study of this kind."""
        study.check_keys(KEYS)
        check_keys(section(study.table, "axes"), AXES, "axes")
        numbers = _numbers(study.table)
        axes = Axes.of(replace(study, table=_in_order(study.table)))
        # Without an attack the number makes no difference: those experiments are made equal.
        axes = axes.with_experiments(
            {
                place: replace(experiment, attack=NoAttack())
                for place, experiment in axes.experiments.items()
                if isinstance(experiment.attack, NoAttack)
            }
        )
        first = next(iter(axes.experiments.values()))
        if max(numbers) >= first.clients:
            raise UserError(
                f"attackers has {max(numbers)}, but there are only {first.clients} clients; "
                "leave at least one of them honest"
            )
        # All experiments differ only in attack, detector and seed: any of them will do here.
        clean = {
            seed: replace(first, seed=seed, attack=NoAttack(), detector=NoDetection())
            for seed in study.seeds
        }
        against = read_against(study.table.get("against", []), axes.labels["detector"])
        return RobustnessPlan(study, axes, claims(study.table, axes, ACCURACIES), clean, against)

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid, after those that all others are compared with."""
        return [*self.clean.values(), *self.axes.experiments.values()]

    def measure(self, ended: Mapping[str, EndedRun]) -> MeasuredRuns:
        """Return each run's accuracies and counts, and the clean run's over the same clients."""
        found = MeasuredRuns.of(self.axes, ended)
        honest_clients = {
            (label, seed): honest(self.clean[seed], int(label))
            for label in self.axes.labels["attackers"]
            for seed in self.study.seeds
        }
        clean = {
            (label, seed): accuracies(ended[self.clean[seed].hash()], clients)
            for (label, seed), clients in honest_clients.items()
        }
        figures = {}
        for (labels, seed), known in found.figures.items():
            # Where nobody attacks, too: the clients that are honest in the runs beside it.
            here = (labels[-1], seed)
            run = ended[self.axes.experiments[labels, seed].hash()]
            figures[labels, seed] = {
                **known,
                **accuracies(run, honest_clients[here]),
                **{f"clean_{name}": value for name, value in clean[here].items()},
                "detected": detected(found.records[labels, seed]),
            }
        return replace(found, figures=figures)

    def whole(self, measured: MeasuredRuns) -> dict[str, Any]:
        """Return everything as plain values; numbers of attackers are numbers."""
        whole = super().whole(measured)
        runs = [{**row, "attackers": int(row["attackers"])} for row in whole["runs"]]
        return {**whole, "runs": runs}

    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return the figures of an attack by so many clients against a detector.

        Shares are taken over the uploads of all seeds together.
        """
        attack, detector, attackers = labels
        undefended = (attack, self._undefended(), attackers)
        cell: dict[str, Any] = {
            "attack": attack,
            "detector": detector,
            "attackers": int(attackers),
            "runs": measured.count(labels) + measured.gone(labels),
            "diverged": measured.gone(labels),
        }
        for name in ACCURACIES:
            loss = _lost(measured, name, labels)
            cell[name] = measured.spread(name, labels)
            cell[f"{name}_loss"] = loss
            cell[f"{name}_won_back"] = won_back(loss, _lost(measured, name, undefended))
        cell |= shares([counts for counts in measured.values("detected", labels) if counts])
        cell["honest_weight_lost"] = measured.mean("honest_weight_lost", labels)
        out = [one for one in measured.values("longest_shut_out", labels) if one is not None]
        cell["longest_shut_out"] = max(out, default=None)
        return cell

    def _undefended(self) -> str:
        """Return the label of the detector that drops nothing, if the study includes it."""
        for (labels, _), experiment in self.axes.experiments.items():
            if experiment.detector == NoDetection():
                return labels[1]
        return ""

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return for each number of attackers the detectors over all attacks, then each attack."""
        sheets = []
        for title, cells in self._by_number(measured).items():
            matrix = partial(
                Sheet.matrix,
                down=("attack", self.axes.labels["attack"]),
                across=("detector", self.axes.labels["detector"]),
                cells=cells,
            )
            sheets.append(self._detectors(cells, title))
            for name in _measured_accuracies(cells):
                words = ACCURACIES[name].words
                sheets += [
                    matrix(
                        f"{title}: honest clients' accuracy {words}, %",
                        text=partial(_accuracy_text, name=name),
                        note="Mean over seeds ± standard deviation over seeds.",
                    ),
                    matrix(
                        f"{title}: points that honest clients lose {words}",
                        text=partial(_loss_text, name=name),
                        note=_LOSS_NOTE,
                    ),
                ]
            sheets += [
                matrix(
                    f"{title}: precision / recall / late recall",
                    text=_detection,
                    note=_DETECTION_NOTE,
                ),
                matrix(
                    f"{title}: honest uploads dropped, %",
                    text=lambda cell: _percent(cell["honest_dropped"]),
                ),
                matrix(
                    f"{title}: honest weight lost, % / longest time out, rounds",
                    text=_cost,
                    note=_COST_NOTE,
                ),
            ]
        if not self.against:
            return sheets
        names = _measured_accuracies(self.cells(measured))
        titles = {name: f"{ACCURACIES[name].short}, points" for name in names}
        found = pairs(measured, "detector", names, ALL)
        return sheets + difference_sheets(
            found, self.against, titles, "detector", "attack, attackers"
        )

    def _by_number(self, measured: MeasuredRuns) -> dict[str, list[Cell]]:
        """Return the cells of each number of attackers, in words, attack by attack."""
        cells = self.cells(measured)
        by_number = {}
        for label in self.axes.labels["attackers"]:
            title = f"{label} attackers"
            if label == "1":
                title = "1 attacker"
            by_number[title] = [cell for cell in cells if cell["attackers"] == int(label)]
        return by_number

    def _detectors(self, cells: Sequence[Cell], title: str) -> Sheet:
        """Return a table of each detector's mean over all attacks, and of its worst attack."""
        columns: dict[str, Callable[[Cell], str]] = {"detector": lambda row: str(row["detector"])}
        for name in _measured_accuracies(cells):
            for what in ("mean", "worst"):
                columns[f"{ACCURACIES[name].short}, {what}"] = partial(
                    lambda row, key: number(row[key], ".2f"), key=f"{name}_{what}"
                )
        columns["precision"] = lambda row: number(row["precision"], ".2f")
        columns["recall"] = lambda row: number(row["recall"], ".2f")
        columns["honest dropped, %"] = lambda row: _percent(row["honest_dropped"])
        rows = []
        for detector in self.axes.labels["detector"]:
            # Only where there are attackers is there a recall: the attack "none" is left out.
            own = [c for c in cells if c["detector"] == detector and c["recall"] is not None]
            row: dict[str, Any] = {"detector": detector}
            for name in ("precision", "recall", "honest_dropped"):
                row[name] = mean([cell[name] for cell in own])
            for name in ACCURACIES:
                values = [cell[name].mean for cell in own if cell[name]]
                row[f"{name}_mean"] = mean(values)
                row[f"{name}_worst"] = min(values, default=None)
            rows.append(row)
        note = (
            "Accuracies are those of honest clients, in percent; means and worst are over attacks."
        )
        return Sheet.of(f"{title}: detectors over all attacks", columns, rows, note)

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw a picture of heat maps for each number of attackers into a folder."""
        attacks = self.axes.labels["attack"]
        detectors = self.axes.labels["detector"]
        paths = []
        for attackers, cells in self._by_number(measured).items():
            path = folder / f"attackers-{cells[0]['attackers']}.png"
            title = f"{self.study.title}: {attackers}\nhonest clients' accuracies, and detection"
            paths.append(heat_maps(path, title, attacks, detectors, self.panels(cells)))
        return paths

    def panels(self, cells: Sequence[Cell]) -> list[Panel]:
        """Return the heat maps of one number of attackers: attacks by detectors."""

        def values(name: str) -> NDArray[np.float64]:
            figures = [getattr(cell[name], "mean", cell[name]) for cell in cells]
            return np.array(figures, np.float64).reshape(len(self.axes.labels["attack"]), -1)

        panels = [
            _accuracy_panel(ACCURACIES[name].short, values(name))
            for name in _measured_accuracies(cells)
        ]
        return panels + [Panel(name, values(name), 0, 1, 2) for name in ("precision", "recall")]


def _numbers(table: Mapping[str, Any]) -> tuple[int, ...]:
    """Check what a robustness study says of its axes, and return the numbers of attackers."""
    common = section(table, "experiment")
    for key in ("attack", "detector"):
        if key in common:
            raise UserError(
                f"experiment.{key} cannot be set here; make the {key}s to run the axis {key}"
            )
        check_named(table, key)
    axes = section(table, "axes")
    for label, changes in read_labels(axes, "attack").items():
        if "clients" in section(changes, "attack"):
            raise UserError(f"axes.attack.{label}: clients cannot be set here; set axes.attackers")
    return whole_numbers(axes, "attackers", 1, "[2, 4]")


def _in_order(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with its axes in the order in which tables show them."""
    axes = section(table, "axes")
    return {**table, "axes": {axis: axes[axis] for axis in AXES}}


def honest(experiment: Experiment, attackers: int) -> list[int]:
    """Return the clients that stay honest when the seed draws so many malicious ones."""
    drawn = malicious(replace(experiment, attack=NoAttack(clients=attackers)))
    return sorted(set(range(experiment.clients)) - set(drawn))


def accuracies(ended: EndedRun, clients: Sequence[int]) -> dict[str, float | None]:
    """Return some clients' mean accuracies after the last round; none if the run diverged."""
    if ended.diverged is not None:
        return dict.fromkeys(ACCURACIES)
    path = ended.run.path / "clients.csv"
    try:
        return _last_accuracies(path, ended.run.experiment(), clients)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); remove {ended.run.path} to run it again"
        ) from error


def _last_accuracies(
    path: Path, experiment: Experiment, clients: Sequence[int]
) -> dict[str, float | None]:
    last = deque(regular.lines(path, MAX_ROW_BYTES), maxlen=experiment.clients)
    lines = [line.decode() for line in last]
    rows = {int(row["client"]): row for row in csv.DictReader(lines, CLIENT_COLUMNS)}
    if any(int(row["round"]) != experiment.rounds for row in rows.values()):
        raise ValueError("it does not end with the last round")
    found: dict[str, float | None] = {}
    for name, accuracy in ACCURACIES.items():
        texts = [rows[client][accuracy.column] for client in clients]
        # A column is empty where a client has no such figure.
        found[name] = None
        if all(texts):
            found[name] = fmean(map(float, texts))
    return found


def _lost(measured: MeasuredRuns, name: str, labels: Labels) -> Spread | None:
    """Return the points that honest clients lose in an accuracy against the clean run."""
    clean = measured.values(f"clean_{name}", labels)
    pairs = zip(clean, measured.values(name, labels), strict=True)
    return spread([one - other for one, other in pairs if None not in (one, other)])


def won_back(loss: Spread | None, undefended: Spread | None) -> float | None:
    """Return the share of the undefended loss that a detector saves, or None if that is small."""
    if loss is None or undefended is None or undefended.mean < MIN_LOSS:
        return None
    return (undefended.mean - loss.mean) / undefended.mean


def _measured_accuracies(cells: Sequence[Cell]) -> list[str]:
    """Return the accuracies that any run has; of a method without prototypes, none by them."""
    return [name for name in ACCURACIES if any(cell[name] is not None for cell in cells)]


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


def _accuracy_panel(words: str, values: NDArray[np.float64]) -> Panel:
    low = float(np.nanmin(values))
    # At least a point between the ends, or noise would fill the scale of colours.
    high = max(float(np.nanmax(values)), low + 1)
    return Panel(f"{words}, %", values, low, high, 1)
