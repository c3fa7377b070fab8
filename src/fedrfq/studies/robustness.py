"""Attacks against detectors, with several numbers of malicious clients, over the same seeds.

    name = "mnist-robustness"       the folder under --out; the file's own name if not given
    seeds = [0, 1, 2]
    attackers = [2, 4]              how many clients are malicious
    attacks = ["none", "noise"]     names; or a section for each label, with the attack's options:
    [attacks."flip to one"]         a label that is an attack's name stands for that attack
    name = "label-flip"
    to = "one"
    detectors = ["none", "bft"]     names; or sections with the detector's options, as for attacks
    [experiment]                    shared by all runs: any keys of an experiment but name, seed,
                                    attack and detector

The attack "none" is run once with each detector, not once for each number of attackers. The clean
run, without attack and detector, is always included: losses are measured against it, over the same
honest clients and seeds.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.files.toml import Table
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.round_loop import attackers as malicious
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.runs.run_directory import CLIENT_COLUMNS
from fedrfq.studies import study_file
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import Spread, spread
from fedrfq.studies.sheets import spread_columns

KEYS = ("name", "seeds", "attackers", "attacks", "detectors", "experiment")
# Detectors with a memory need some rounds to learn; late recall counts from this round on.
LATE = 5
# Points: if less is lost without a detector, the share that one wins back is mostly noise.
MIN_LOSS = 0.5
# The accuracies of honest clients that are compared, and their columns in clients.csv. On all
# classes it is the final prediction's, and that of the public classifier alone where there is one.
ACCURACIES = {
    "own": "accuracy",
    "prototype": "prototype_accuracy",
    "all_classes": "accuracy_all",
    "public": "public_accuracy_all",
}
Place = tuple[str, str, int, int]  # attack, detector, number of attackers, seed
# By the names of ACCURACIES; None where a run has no such figure.
Accuracies = Mapping[str, float | None]


@dataclass(frozen=True)
class RobustnessStudy:
    """The grid of a robustness file.

    `experiments` has one experiment for each attack, detector, number of attackers and seed, and
    `clean` one for each seed, without attack and detector.
    """

    name: str
    seeds: tuple[int, ...]
    attackers: tuple[int, ...]
    attacks: tuple[str, ...]
    detectors: tuple[str, ...]
    experiments: Mapping[Place, Experiment]
    clean: Mapping[int, Experiment]

    @staticmethod
    def load(path: Path) -> RobustnessStudy:
        """Read and check a robustness file."""
        table = study_file.read(path, KEYS, "examples/robustness.toml")
        seeds = study_file.whole_numbers(table, "seeds", 0, "[0, 1, 2]")
        numbers = study_file.whole_numbers(table, "attackers", 1, "[2, 4]")
        attacks = _options(table, "attacks", list(ATTACKS))
        detectors = _options(table, "detectors", list(DETECTORS))
        common = _common(table)
        experiments = {
            (attack, detector, number, seed): study_file.experiment(
                f"attack '{attack}', detector '{detector}'",
                table["name"],
                seed,
                [common, _attacked(attack_options, number), {"detector": detector_options}],
            )
            for attack, attack_options in attacks.items()
            for detector, detector_options in detectors.items()
            for number in numbers
            for seed in seeds
        }
        first = next(iter(experiments.values()))
        if max(numbers) >= first.clients:
            raise UserError(
                f"attackers has {max(numbers)}, but there are only {first.clients} clients; "
                "leave at least one of them honest"
            )
        # All experiments differ only in attack, detector and seed: any of them will do here.
        clean = {
            seed: replace(first, seed=seed, attack=NoAttack(), detector=NoDetection())
            for seed in seeds
        }
        return RobustnessStudy(
            name=table["name"],
            seeds=seeds,
            attackers=numbers,
            attacks=tuple(attacks),
            detectors=tuple(detectors),
            experiments=experiments,
            clean=clean,
        )

    def undefended(self) -> str | None:
        """Return the label of the detector that drops nothing, if the study includes it."""
        detectors = {
            label: experiment.detector for (_, label, _, _), experiment in self.experiments.items()
        }
        return next(
            (label for label, detector in detectors.items() if detector == NoDetection()), None
        )


def _common(table: Mapping[str, Any]) -> Table:
    common = study_file.section(table, "experiment")
    for key in ("attack", "detector"):
        if key in common:
            raise UserError(
                f"experiment.{key} cannot be set here; list the {key}s to run under {key}s"
            )
    return common


def _options(table: Mapping[str, Any], key: str, choices: list[str]) -> dict[str, Table]:
    options = {
        label: study_file.named(label, section, choices)
        for label, section in study_file.labels(table, key, choices).items()
    }
    for label, section in options.items():
        if "clients" in section:
            raise UserError(
                f"{key}.{label}: clients cannot be set here; set attackers at the top of the file"
            )
        if "name" not in section:
            raise UserError(
                f"{key}.{label}: name is missing; it must be one of {', '.join(choices)}"
            )
    return options


def _attacked(options: Table, number: int) -> Table:
    # Without an attack the number makes no difference. Setting it to 0 makes these experiments
    # equal, so the grid runs them once.
    if options["name"] == "none":
        number = 0
    return {"attack": {**options, "clients": number}}


@dataclass(frozen=True)
class Detected:
    """Counts of uploads over some rounds: who sent them, and which of them were dropped."""

    dropped: int
    dropped_attackers: int
    attackers: int
    late_dropped_attackers: int
    late_attackers: int
    honest: int

    @staticmethod
    def of(records: Sequence[RoundRecord]) -> Detected:
        """Count the uploads of one run."""
        late = [record for record in records if record.round >= LATE]
        return Detected(
            dropped=sum(len(r.filtered) + len(r.refused) for r in records),
            dropped_attackers=sum(r.attackers_filtered for r in records),
            attackers=sum(r.attackers for r in records),
            late_dropped_attackers=sum(r.attackers_filtered for r in late),
            late_attackers=sum(r.attackers for r in late),
            honest=sum(r.participants - r.attackers for r in records),
        )

    @staticmethod
    def together(parts: Sequence[Detected]) -> Detected:
        """Add up the counts of several runs."""
        return Detected(*(sum(getattr(part, f.name) for part in parts) for f in fields(Detected)))

    def shares(self) -> dict[str, float | None]:
        """Return precision, recall, late recall, and the share of honest uploads dropped."""
        return {
            "precision": _share(self.dropped_attackers, self.dropped),
            "recall": _share(self.dropped_attackers, self.attackers),
            "recall_late": _share(self.late_dropped_attackers, self.late_attackers),
            "honest_dropped": _share(self.dropped - self.dropped_attackers, self.honest),
        }


def _share(part: int, total: int) -> float | None:
    if total:
        return part / total
    return None


@dataclass(frozen=True)
class AttackedRun:
    """One run: the honest clients' final accuracies here and in the clean run, and the counts."""

    attack: str
    detector: str
    attackers: int
    seed: int
    directory: str
    diverged: str | None
    accuracies: Accuracies
    clean: Accuracies
    detected: Detected | None

    def loss(self, name: str) -> float | None:
        """Return the points that honest clients lose in an accuracy against the clean run."""
        here = self.accuracies[name]
        clean = self.clean[name]
        if clean is None or here is None:
            return None
        return clean - here

    def row(self) -> dict[str, Any]:
        """Return everything as plain values."""
        whole = asdict(self)
        accuracies = whole.pop("accuracies")
        clean = {f"clean_{name}": value for name, value in whole.pop("clean").items()}
        detected = whole.pop("detected")
        return {**whole, **accuracies, **clean, "detected": detected}


@dataclass(frozen=True)
class AttackCost:
    """What honest clients have of one accuracy under an attack, over seeds."""

    accuracy: Spread | None
    loss: Spread | None  # in points, against the clean run
    won_back: float | None  # as a share of the loss without a detector

    @staticmethod
    def of(name: str, runs: Sequence[AttackedRun], undefended: Sequence[AttackedRun]) -> AttackCost:
        """Summarise an accuracy over runs; `undefended` are those without a detector."""
        loss = spread([run.loss(name) for run in runs])
        undefended_loss = spread([run.loss(name) for run in undefended])
        return AttackCost(
            accuracy=spread([run.accuracies[name] for run in runs]),
            loss=loss,
            won_back=won_back(loss, undefended_loss),
        )


@dataclass(frozen=True)
class AttackedCell:
    """An attack by so many clients against a detector, over its seeds.

    Precision, recall and the other shares are taken over the uploads of all seeds together.
    """

    attack: str
    detector: str
    attackers: int
    runs: int
    diverged: int
    costs: Mapping[str, AttackCost]  # by the names of ACCURACIES
    precision: float | None
    recall: float | None
    recall_late: float | None
    honest_dropped: float | None

    @staticmethod
    def of(runs: Sequence[AttackedRun], undefended: Sequence[AttackedRun]) -> AttackedCell:
        """Summarise the runs of one cell; `undefended` are those of its attack with no detector."""
        detected = Detected.together([run.detected for run in runs if run.detected is not None])
        return AttackedCell(
            attack=runs[0].attack,
            detector=runs[0].detector,
            attackers=runs[0].attackers,
            runs=len(runs),
            diverged=sum(run.diverged is not None for run in runs),
            costs={name: AttackCost.of(name, runs, undefended) for name in ACCURACIES},
            **detected.shares(),
        )

    def row(self) -> dict[str, Any]:
        """Return everything as plain values, for table.json."""
        row = asdict(self)
        for name, cost in row.pop("costs").items():
            row[name] = cost["accuracy"]
            row[f"{name}_loss"] = cost["loss"]
            row[f"{name}_won_back"] = cost["won_back"]
        return row

    def columns(self) -> dict[str, Any]:
        """Return the same as columns, for table.csv."""
        row = asdict(self)
        del row["costs"]
        for name, cost in self.costs.items():
            row |= spread_columns(name, cost.accuracy)
            row |= spread_columns(f"{name}_loss", cost.loss)
            row[f"{name}_won_back"] = cost.won_back
        return row


def won_back(loss: Spread | None, undefended: Spread | None) -> float | None:
    """Return the share of the undefended loss that a detector saves, or None if that is small."""
    if loss is None or undefended is None or undefended.mean < MIN_LOSS:
        return None
    return (undefended.mean - loss.mean) / undefended.mean


@dataclass(frozen=True)
class RobustnessFindings:
    """The results of a robustness study: its runs, and its cells over seeds."""

    study: RobustnessStudy
    runs: tuple[AttackedRun, ...]
    cells: tuple[AttackedCell, ...]

    @staticmethod
    def of(study: RobustnessStudy, ended: Mapping[str, EndedRun]) -> RobustnessFindings:
        """Collect the results of the runs, which are given by experiment hash."""
        runs = _runs(study, ended)
        by_place: dict[tuple[str, str, int], list[AttackedRun]] = defaultdict(list)
        for run in runs:
            by_place[run.attack, run.detector, run.attackers].append(run)
        undefended = study.undefended() or ""
        cells = [
            AttackedCell.of(cell_runs, by_place.get((attack, undefended, number), []))
            for (attack, _, number), cell_runs in by_place.items()
        ]
        return RobustnessFindings(study, tuple(runs), tuple(cells))

    def cell(self, attack: str, detector: str, attackers: int) -> AttackedCell:
        """Return the cell of an attack, a detector and a number of attackers."""
        wanted = (attack, detector, attackers)
        return next(
            cell for cell in self.cells if (cell.attack, cell.detector, cell.attackers) == wanted
        )

    def table(self) -> dict[str, Any]:
        """Return everything as plain values, as table.json has it."""
        return {
            "name": self.study.name,
            "seeds": list(self.study.seeds),
            "runs": [run.row() for run in self.runs],
            "cells": [cell.row() for cell in self.cells],
        }

    def measured(self) -> list[str]:
        """Return the accuracies that any run has; of a method without prototypes, none by them."""
        return [
            name
            for name in ACCURACIES
            if any(run.accuracies[name] is not None for run in self.runs)
        ]


def _runs(study: RobustnessStudy, ended: Mapping[str, EndedRun]) -> list[AttackedRun]:
    """Return each run, with the clean run's accuracies over the clients that are honest in it."""
    honest_clients = {
        (number, seed): honest(study.clean[seed], number)
        for number in study.attackers
        for seed in study.seeds
    }
    clean_ends = {seed: ended[experiment.hash()] for seed, experiment in study.clean.items()}
    clean = {
        (number, seed): accuracies(clean_ends[seed], clients)
        for (number, seed), clients in honest_clients.items()
    }
    runs = []
    for (attack, detector, number, seed), experiment in study.experiments.items():
        end = ended[experiment.hash()]
        detected = None
        if end.diverged is None:
            detected = Detected.of(end.records())
        runs.append(
            AttackedRun(
                attack=attack,
                detector=detector,
                attackers=number,
                seed=seed,
                directory=end.run.path.name,
                diverged=end.diverged,
                # Where nobody attacks, too: the clients that are honest in the runs beside it.
                accuracies=accuracies(end, honest_clients[number, seed]),
                clean=clean[number, seed],
                detected=detected,
            )
        )
    return runs


def honest(experiment: Experiment, number: int) -> list[int]:
    """Return the clients that stay honest when the seed draws `number` malicious ones."""
    drawn = malicious(replace(experiment, attack=NoAttack(clients=number)))
    return sorted(set(range(experiment.clients)) - set(drawn))


def accuracies(ended: EndedRun, clients: Sequence[int]) -> Accuracies:
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


def _last_accuracies(path: Path, experiment: Experiment, clients: Sequence[int]) -> Accuracies:
    lines = path.read_text(encoding="utf-8").splitlines()[-experiment.clients :]
    rows = {int(row["client"]): row for row in csv.DictReader(lines, CLIENT_COLUMNS)}
    if any(int(row["round"]) != experiment.rounds for row in rows.values()):
        raise ValueError("it does not end with the last round")
    return {name: _mean([rows[k][column] for k in clients]) for name, column in ACCURACIES.items()}


def _mean(texts: Sequence[str]) -> float | None:
    """Return the mean of a column; None where a client has no such figure."""
    if all(texts):
        return fmean(map(float, texts))
    return None
