"""Kind `robustness`: attacks against detectors, with several numbers of malicious clients.

against = ["none"]              optional: the detectors from which differences are printed
[axes]
attackers = [2, 4]              how many clients are malicious
attack = ["none", "noise"]      attacks and detectors: lists of names, or sections with options,
detector = ["none", "bft"]      as for any axis
[axes.setting."5 ± 2"]          optional: any other axes make up the settings
partition = {ways = 5}

The other keys are `only`, `where` and `experiment` of a grid (axes.py) and those of claims
(claims.py). The attack "none" is run once with each detector, not once for each number of
attackers. The clean run, without attack and detector, is always included in every setting: losses
are measured against it, over the same honest clients and seeds.
"""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files import regular
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import attackers as malicious
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.runs.run_directory import CLIENT_COLUMNS, MAX_ROW_BYTES
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes, Labels, check_named, read_labels
from fedrfq.studies.claims import ALL, claims
from fedrfq.studies.differences import difference_sheets, pairs, read_against
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread
from fedrfq.studies.measures import MEASURES, Measure, MeasuredRuns, total
from fedrfq.studies.pictures import heat_maps, slug
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.robustness_tables import (
    ACCURACIES,
    LATE,
    MIN_LOSS,
    measured_accuracies,
    panels,
    sheets,
    worst_attacks,
    worst_attacks_sheet,
)
from fedrfq.studies.sheets import Cell, Sheet
from fedrfq.studies.study import Study, section, whole_numbers

LastAccuracies = Mapping[int, Mapping[str, float]]  # by client; nan where it has none
KEYS = ("against", "claims", *grids.KEYS)
# These come last, in this order; the others make up the settings.
AXES = ("attack", "detector", "attackers")


def _dropped(record: RoundRecord) -> int:
    return len(record.filtered) + len(record.refused)


# Counts of uploads, of which shares are taken over all seeds together.
COUNTS: dict[str, Measure] = {
    f"uploads_{name}": Measure(f"uploads: {name.replace('_', ' ')}", 0, count, over=total)
    for name, count in {
        "dropped": _dropped,
        "dropped_attackers": lambda r: r.attackers_filtered,
        "dropped_honest": lambda r: _dropped(r) - r.attackers_filtered,
        "attackers": lambda r: r.attackers,
        "honest": lambda r: r.participants - r.attackers,
        "late_attackers": lambda r: r.attackers if r.round >= LATE else None,
        "late_dropped_attackers": lambda r: r.attackers_filtered if r.round >= LATE else None,
    }.items()
}
SHARES = {
    "precision": ("uploads_dropped_attackers", "uploads_dropped"),
    "recall": ("uploads_dropped_attackers", "uploads_attackers"),
    "recall_late": ("uploads_late_dropped_attackers", "uploads_late_attackers"),
    "honest_dropped": ("uploads_dropped_honest", "uploads_honest"),
}


@dataclass(frozen=True)
class RobustnessPlan(GridPlan):
    """A grid of attacks, detectors and numbers of attackers, and the clean run of each setting."""

    against: tuple[str, ...]
    peace: str  # the label of no attack, and that of no detector; "" where the study has none
    undefended: str

    spreads: ClassVar[Collection[str]] = (*ACCURACIES, *(f"{name}_loss" for name in ACCURACIES))

    @staticmethod
    def of(study: Study) -> RobustnessPlan:
        """Read and check a study of this kind."""
        study.check_keys(KEYS)
        _check(study.table)
        axes = Axes.of(replace(study, table=_in_order(study.table)))
        # Without an attack the number makes no difference: those experiments are made equal.
        axes = axes.with_experiments(
            {
                place: replace(experiment, attack=NoAttack())
                for place, experiment in axes.experiments.items()
                if isinstance(experiment.attack, NoAttack)
            }
        )
        for (labels, _), experiment in axes.experiments.items():
            if int(labels[-1]) >= experiment.clients:
                raise UserError(
                    f"attackers has {labels[-1]}, but there are only {experiment.clients} clients; "
                    "leave at least one of them honest"
                )
        against = read_against(study.table.get("against", []), axes.labels["detector"])
        return RobustnessPlan(
            study,
            axes,
            claims(study.table, axes, ACCURACIES),
            against,
            peace=_idle(axes, "attack", NoAttack()),
            undefended=_idle(axes, "detector", NoDetection()),
        )

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid, after those that all others are compared with."""
        grid = self.axes.experiments.values()
        return [*map(clean, grid), *grid]

    @property
    def measures(self) -> Mapping[str, Measure]:
        """What is taken of every run, besides honest clients' accuracies."""
        return {**MEASURES, **COUNTS}

    def measure(self, ended: Mapping[str, EndedRun]) -> MeasuredRuns:
        """Return each run's figures, and what honest clients lose against the clean run."""
        found = super().measure(ended)
        last = {key: last_accuracies(end) for key, end in ended.items()}
        figures = {}
        for place, known in found.figures.items():
            experiment = self.axes.experiments[place]
            # Where nobody attacks, too: the clients that are honest in the runs beside it.
            clients = honest(experiment, int(place[0][-1]))
            own = over(clients, last[experiment.hash()])
            before = over(clients, last[clean(experiment).hash()])
            figures[place] = {
                **known,
                **own,
                **{f"clean_{name}": value for name, value in before.items()},
                **{f"{name}_loss": lost(before[name], value) for name, value in own.items()},
            }
        return replace(found, figures=figures)

    def whole(self, measured: MeasuredRuns) -> dict[str, Any]:
        """Return everything as plain values; numbers of attackers are numbers."""
        whole = super().whole(measured)
        runs = [{**row, "attackers": int(row["attackers"])} for row in whole["runs"]]
        return {**whole, "runs": runs, "worst_attacks": self._worst_attacks(measured)}

    def cell(self, measured: MeasuredRuns, labels: Labels) -> Cell:
        """Return the figures of an attack by so many clients against a detector.

        Shares are taken over the uploads of all seeds together.
        """
        *setting, attack, _, attackers = labels
        undefended = (*setting, attack, self.undefended, attackers)
        cell: dict[str, Any] = {
            **self.axes.named(labels),
            "attackers": int(attackers),
            "runs": measured.count(labels) + measured.gone(labels),
            "diverged": measured.gone(labels),
        }
        for name in ACCURACIES:
            loss = measured.spread(f"{name}_loss", labels)
            cell[name] = measured.spread(name, labels)
            cell[f"{name}_loss"] = loss
            cell[f"{name}_won_back"] = won_back(loss, measured.spread(f"{name}_loss", undefended))
        cell |= {name: measured.share(*counts, labels) for name, counts in SHARES.items()}
        cell["honest_weight_lost"] = measured.mean("honest_weight_lost", labels)
        out = [one for one in measured.values("longest_shut_out", labels) if one is not None]
        cell["longest_shut_out"] = max(out, default=None)
        return cell

    def sheets(self, measured: MeasuredRuns) -> list[Sheet]:
        """Return the worst attacks, then for each setting and number of attackers all tables."""
        places = self._places(measured)
        names = measured_accuracies(self.cells(measured))
        found = [worst_attacks_sheet(self._worst_attacks(measured), self.axes.labels, names)]
        for title, cells in places.items():
            found += sheets(title, cells, self.axes.labels)
        if self.against:
            titles = {name: f"{ACCURACIES[name].short}, points" for name in names}
            where = ", ".join(axis for axis in self.axes.labels if axis != "detector")
            differences = pairs(measured, "detector", names, ALL)
            found += difference_sheets(differences, self.against, titles, "detector", where)
        return found

    def _worst_attacks(self, measured: MeasuredRuns) -> list[dict[str, Any]]:
        return [
            row
            for cells in self._places(measured).values()
            for row in worst_attacks(cells, self.axes.labels, self.peace, self.undefended)
        ]

    def _places(self, measured: MeasuredRuns) -> dict[str, list[Cell]]:
        """Return the cells of each setting and number of attackers, in words, attack by attack."""
        places: dict[str, list[Cell]] = {}
        for labels in self.axes.combinations():
            *setting, _, _, attackers = labels
            number = "1 attacker" if attackers == "1" else f"{attackers} attackers"
            title = ": ".join(filter(None, [", ".join(setting), number]))
            places.setdefault(title, []).append(self.cell(measured, labels))
        return places

    def draw(self, measured: MeasuredRuns, folder: Path) -> list[Path]:
        """Draw a picture of heat maps for each setting and number of attackers into a folder."""
        attacks = self.axes.labels["attack"]
        detectors = self.axes.labels["detector"]
        paths = []
        for place, cells in self._places(measured).items():
            setting = [slug(str(cells[0][axis])) for axis in self.axes.labels if axis not in AXES]
            name = "-".join(["attackers", str(cells[0]["attackers"]), *setting])
            title = f"{self.study.title}: {place}\nhonest clients' accuracies, and detection"
            maps = panels(cells, self.axes.labels)
            paths.append(heat_maps(folder / f"{name}.png", title, attacks, detectors, maps))
        return paths


def _check(table: Mapping[str, Any]) -> None:
    """Check what a robustness study says of its axes."""
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
    if "attackers" not in axes:
        read_labels(axes, "attackers")  # says which axes there are
    whole_numbers(axes, "attackers", 1, "[2, 4]")


def _in_order(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table with its axes in the order in which tables show them."""
    axes = section(table, "axes")
    settings = {axis: labels for axis, labels in axes.items() if axis not in AXES}
    return {**table, "axes": {**settings, **{axis: axes[axis] for axis in AXES}}}


def _idle(axes: Axes, axis: str, nothing: NoAttack | NoDetection) -> str:
    """Return the label that stands for no attack or no detection, if the study includes it."""
    at = axes.at(axis)
    for (labels, _), experiment in axes.experiments.items():
        if getattr(experiment, axis) == nothing:
            return labels[at]
    return ""


def clean(experiment: Experiment) -> Experiment:
    """Return the run that losses are measured against."""
    return replace(experiment, attack=NoAttack(), detector=NoDetection())


def honest(experiment: Experiment, attackers: int) -> list[int]:
    """Return the clients that stay honest when the seed draws so many malicious ones."""
    drawn = malicious(replace(experiment, attack=NoAttack(clients=attackers)))
    return sorted(set(range(experiment.clients)) - set(drawn))


def last_accuracies(ended: EndedRun) -> LastAccuracies:
    """Return the accuracies after the last round, by client; none if the run diverged."""
    if ended.diverged is not None:
        return {}
    path = ended.run.path / "clients.csv"
    experiment = ended.run.experiment()
    try:
        last = deque(regular.lines(path, MAX_ROW_BYTES), maxlen=experiment.clients)
        lines = [line.decode() for line in last]
        rows = {int(row["client"]): row for row in csv.DictReader(lines, CLIENT_COLUMNS)}
        if any(int(rows[k]["round"]) != experiment.rounds for k in range(experiment.clients)):
            raise ValueError("it does not end with the last round")
        # A column is empty where a client has no such figure.
        return {
            client: {name: float(row[a.column] or "nan") for name, a in ACCURACIES.items()}
            for client, row in rows.items()
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged ({error}); remove {ended.run.path} to run it again"
        ) from error


def over(clients: Sequence[int], last: LastAccuracies) -> dict[str, float | None]:
    """Return some clients' mean accuracies; None where one of them has none."""
    found: dict[str, float | None] = dict.fromkeys(ACCURACIES)
    for name in ACCURACIES:
        values = [last[client][name] for client in clients if last]
        if values and not any(map(isnan, values)):
            found[name] = fmean(values)
    return found


def lost(before: float | None, after: float | None) -> float | None:
    """Return how many points less there are, where both are known."""
    if before is None or after is None:
        return None
    return before - after


def won_back(loss: Spread | None, undefended: Spread | None) -> float | None:
    """Return the share of the undefended loss that a detector saves, or None if that is small."""
    if loss is None or undefended is None or undefended.mean < MIN_LOSS:
        return None
    return (undefended.mean - loss.mean) / undefended.mean
