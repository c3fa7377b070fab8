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
from typing import Any, NamedTuple

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

KEYS = ("name", "seeds", "attackers", "attacks", "detectors", "experiment")
# Detectors with a memory need some rounds to learn; late recall counts from this round on.
LATE = 5
# Points: if less is lost without a detector, the share that one wins back is mostly noise.
MIN_LOSS = 0.5
Place = tuple[str, str, int, int]  # attack, detector, number of attackers, seed


class Accuracies(NamedTuple):
    """Accuracies in percent by the own head, by the nearest global prototype, and on all classes.

    The last is that of the final prediction, on the common test set.
    """

    own: float | None = None
    prototype: float | None = None
    all_classes: float | None = None


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
    own: float | None
    prototype: float | None
    all_classes: float | None
    clean_own: float | None
    clean_prototype: float | None
    clean_all_classes: float | None
    detected: Detected | None

    @property
    def own_loss(self) -> float | None:
        """Points that honest clients' own heads lose against the clean run."""
        return _loss(self.clean_own, self.own)

    @property
    def prototype_loss(self) -> float | None:
        """Points that honest clients lose by the nearest prototype against the clean run."""
        return _loss(self.clean_prototype, self.prototype)

    @property
    def all_classes_loss(self) -> float | None:
        """Points that honest clients' final predictions lose on all classes."""
        return _loss(self.clean_all_classes, self.all_classes)


def _loss(clean: float | None, attacked: float | None) -> float | None:
    if clean is None or attacked is None:
        return None
    return clean - attacked


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
    own: Spread | None
    prototype: Spread | None
    all_classes: Spread | None
    own_loss: Spread | None  # in points, against the clean run
    prototype_loss: Spread | None
    all_classes_loss: Spread | None
    own_won_back: float | None  # as a share of the loss without a detector
    prototype_won_back: float | None
    all_classes_won_back: float | None
    precision: float | None
    recall: float | None
    recall_late: float | None
    honest_dropped: float | None

    @staticmethod
    def of(runs: Sequence[AttackedRun], undefended: Sequence[AttackedRun]) -> AttackedCell:
        """Summarise the runs of one cell; `undefended` are those of its attack with no detector."""
        own_loss = spread([run.own_loss for run in runs])
        prototype_loss = spread([run.prototype_loss for run in runs])
        all_classes_loss = spread([run.all_classes_loss for run in runs])
        undefended_own_loss = spread([run.own_loss for run in undefended])
        undefended_prototype_loss = spread([run.prototype_loss for run in undefended])
        undefended_all_classes_loss = spread([run.all_classes_loss for run in undefended])
        detected = Detected.together([run.detected for run in runs if run.detected is not None])
        return AttackedCell(
            attack=runs[0].attack,
            detector=runs[0].detector,
            attackers=runs[0].attackers,
            runs=len(runs),
            diverged=sum(run.diverged is not None for run in runs),
            own=spread([run.own for run in runs]),
            prototype=spread([run.prototype for run in runs]),
            all_classes=spread([run.all_classes for run in runs]),
            own_loss=own_loss,
            prototype_loss=prototype_loss,
            all_classes_loss=all_classes_loss,
            own_won_back=won_back(own_loss, undefended_own_loss),
            prototype_won_back=won_back(prototype_loss, undefended_prototype_loss),
            all_classes_won_back=won_back(all_classes_loss, undefended_all_classes_loss),
            **detected.shares(),
        )


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
            "runs": [asdict(run) for run in self.runs],
            "cells": [asdict(cell) for cell in self.cells],
        }


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
        # Where nobody attacks, these are the clients that are honest in the attacked runs beside.
        found = accuracies(end, honest_clients[number, seed])
        if end.diverged is None:
            records = end.records()
            detected = Detected.of(records)
            if experiment.attack.clients:
                found = found._replace(
                    own=records[-1].honest_accuracy_mean,
                    prototype=records[-1].honest_prototype_accuracy_mean,
                )
        before = clean[number, seed]
        runs.append(
            AttackedRun(
                attack=attack,
                detector=detector,
                attackers=number,
                seed=seed,
                directory=end.run.path.name,
                diverged=end.diverged,
                own=found.own,
                prototype=found.prototype,
                all_classes=found.all_classes,
                clean_own=before.own,
                clean_prototype=before.prototype,
                clean_all_classes=before.all_classes,
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
        return Accuracies()
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
    # A method without prototypes leaves their column empty; an older run has no other classes.
    columns = ("accuracy", "prototype_accuracy", "accuracy_all")
    return Accuracies(*(_mean_of([rows[k][column] for k in clients]) for column in columns))


def _mean_of(texts: Sequence[str | None]) -> float | None:
    """Return the mean of a column's cells; None if some are empty."""
    present = [float(text) for text in texts if text]
    if len(present) < len(texts):
        return None
    return fmean(present)
