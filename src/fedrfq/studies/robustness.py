"""Attacks against detectors, with several numbers of malicious clients, over the same seeds.

    name = "mnist-robustness"       the folder under --out; the file's own name if not given
    seeds = [0, 1, 2]
    attackers = [2, 4]              how many clients are malicious
    attacks = ["none", "noise"]     names; or sections, each with the attack's options:
    [attacks."flip to one"]         a label; where it is an attack's name, that is the attack
    name = "label-flip"
    to = "one"
    detectors = ["none", "bft"]     names; or sections, each with the detector's options, as for attacks
    [experiment]                    what all runs have in common: any keys of an experiment but name, seed, attack, detector

An attack of the name "none" is run once with each detector, whatever the number of attackers. The clean run, without
attack and detector, is always run: losses are taken from it, over the same honest clients and seeds.
"""

from __future__ import annotations

import csv
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

KEYS = ("name", "seeds", "attackers", "attacks", "detectors", "experiment")
MEASURES = ("own", "prototype")  # accuracy by the own head, and by the nearest global prototype
LATE = 5  # the round from which on detectors that learn are judged by themselves
LEAST_LOSS = 0.5  # points: with less lost undefended there is nothing to win back
Place = tuple[str, str, int, int]  # attack, detector, number of attackers, seed
Accuracies = tuple[
    float | None, float | None
]  # by the own head, and by the nearest global prototype


@dataclass(frozen=True)
class RobustnessStudy:
    """A file's grid: the experiment of each attack, detector, number of attackers and seed, and each seed's clean one."""

    name: str
    seeds: tuple[int, ...]
    attackers: tuple[int, ...]
    attacks: tuple[str, ...]
    detectors: tuple[str, ...]
    experiments: Mapping[Place, Experiment]
    clean: Mapping[int, Experiment]

    @staticmethod
    def load(path: Path) -> RobustnessStudy:
        table = study_file.read(path, KEYS, "examples/robustness.toml")
        seeds = study_file.whole_numbers(table, "seeds", 0, "[0, 1, 2]")
        numbers = study_file.whole_numbers(table, "attackers", 1, "[2, 4]")
        attacks = _options(table, "attacks", list(ATTACKS))
        detectors = _options(table, "detectors", list(DETECTORS))
        common = study_file.section(table, "experiment")
        for key in ("attack", "detector"):
            if key in common:
                raise UserError(f"experiment.{key} is not set here but by {key}s")
        experiments = {
            (attack, detector, number, seed): study_file.experiment(
                f"attack '{attack}', detector '{detector}'",
                table["name"],
                seed,
                [common, {"attack": _of_clients(own, number), "detector": against}],
            )
            for attack, own in attacks.items()
            for detector, against in detectors.items()
            for number in numbers
            for seed in seeds
        }
        first = next(iter(experiments.values()))
        if max(numbers) >= first.clients:
            raise UserError(
                f"attackers = {max(numbers)} of {first.clients} clients: leave one of them honest"
            )
        clean = {
            seed: replace(first, seed=seed, attack=NoAttack(), detector=NoDetection())
            for seed in seeds
        }
        return RobustnessStudy(
            table["name"], seeds, numbers, tuple(attacks), tuple(detectors), experiments, clean
        )

    def undefended(self) -> str | None:
        """The label of the detector that does nothing, if it is among them."""
        found = {
            detector: experiment.detector
            for (_, detector, _, _), experiment in self.experiments.items()
        }
        return next((label for label, detector in found.items() if detector == NoDetection()), None)


def _options(table: Mapping[str, Any], key: str, choices: list[str]) -> dict[str, Table]:
    found = {
        label: study_file.named(label, own, choices)
        for label, own in study_file.labels(table, key, choices).items()
    }
    for label, own in found.items():
        if "clients" in own:
            raise UserError(
                f"{key}.{label}: clients is not set here but by attackers at the top of the file"
            )
        if "name" not in own:
            raise UserError(f"{key}.{label}: name says which it is, one of {', '.join(choices)}")
    return found


def _of_clients(attack: Table, number: int) -> Table:
    return {**attack, "clients": 0 if attack["name"] == "none" else number}


@dataclass(frozen=True)
class Detected:
    """Uploads counted: of those dropped, how many were attackers'; of the attackers', how many were dropped; late ones."""

    dropped: int
    dropped_attackers: int
    attackers: int
    late_dropped_attackers: int
    late_attackers: int
    honest: int

    @staticmethod
    def of(records: Sequence[RoundRecord]) -> Detected:
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
        return Detected(*(sum(getattr(part, f.name) for part in parts) for f in fields(Detected)))

    def shares(self) -> dict[str, float | None]:
        return {
            "precision": _share(self.dropped_attackers, self.dropped),
            "recall": _share(self.dropped_attackers, self.attackers),
            "recall_late": _share(self.late_dropped_attackers, self.late_attackers),
            "honest_dropped": _share(self.dropped - self.dropped_attackers, self.honest),
        }


def _share(part: int, whole: int) -> float | None:
    if whole:
        return part / whole
    return None


@dataclass(frozen=True)
class AttackedRun:
    """One run: the honest clients' accuracies after its last round, the clean run's over the same clients; counts."""

    attack: str
    detector: str
    attackers: int
    seed: int
    directory: str
    diverged: str | None
    own: float | None
    prototype: float | None
    clean_own: float | None
    clean_prototype: float | None
    detected: Detected | None

    def loss(self, measure: str) -> float | None:
        clean: float | None = getattr(self, f"clean_{measure}")
        value: float | None = getattr(self, measure)
        if clean is None or value is None:
            return None
        return clean - value


@dataclass(frozen=True)
class AttackedCell:
    """An attack by so many clients against a detector, over its seeds; shares are of all seeds' rounds together."""

    attack: str
    detector: str
    attackers: int
    runs: int
    diverged: int
    own: Spread | None
    prototype: Spread | None
    own_loss: Spread | None  # in points, against the clean run
    prototype_loss: Spread | None
    own_won_back: float | None  # the share of what is lost undefended
    prototype_won_back: float | None
    precision: float | None
    recall: float | None
    recall_late: float | None
    honest_dropped: float | None

    @staticmethod
    def of(runs: Sequence[AttackedRun], undefended: Sequence[AttackedRun]) -> AttackedCell:
        own_loss, prototype_loss = (
            spread([run.loss(measure) for run in runs]) for measure in MEASURES
        )
        own_before, prototype_before = (
            spread([run.loss(measure) for run in undefended]) for measure in MEASURES
        )
        counted = Detected.together([run.detected for run in runs if run.detected is not None])
        return AttackedCell(
            attack=runs[0].attack,
            detector=runs[0].detector,
            attackers=runs[0].attackers,
            runs=len(runs),
            diverged=sum(run.diverged is not None for run in runs),
            own=spread([run.own for run in runs]),
            prototype=spread([run.prototype for run in runs]),
            own_loss=own_loss,
            prototype_loss=prototype_loss,
            own_won_back=won_back(own_loss, own_before),
            prototype_won_back=won_back(prototype_loss, prototype_before),
            **counted.shares(),
        )


def won_back(loss: Spread | None, undefended: Spread | None) -> float | None:
    """The share of the undefended loss that is not lost; unsaid where too little is lost for it to mean anything."""
    if loss is None or undefended is None or undefended.mean < LEAST_LOSS:
        return None
    return (undefended.mean - loss.mean) / undefended.mean


@dataclass(frozen=True)
class RobustnessFindings:
    trial: RobustnessStudy
    runs: tuple[AttackedRun, ...]
    cells: tuple[AttackedCell, ...]

    @staticmethod
    def of(trial: RobustnessStudy, ended: Mapping[str, EndedRun]) -> RobustnessFindings:
        runs = _runs(trial, ended)
        by_place: dict[tuple[str, str, int], list[AttackedRun]] = {}
        for run in runs:
            by_place.setdefault((run.attack, run.detector, run.attackers), []).append(run)
        undefended = trial.undefended()
        cells = [
            AttackedCell.of(together, by_place.get((attack, undefended or "", number), []))
            for (attack, _, number), together in by_place.items()
        ]
        return RobustnessFindings(trial, tuple(runs), tuple(cells))

    def cell(self, attack: str, detector: str, attackers: int) -> AttackedCell:
        wanted = (attack, detector, attackers)
        return next(
            cell for cell in self.cells if (cell.attack, cell.detector, cell.attackers) == wanted
        )

    def table(self) -> dict[str, Any]:
        """Everything, as plain values."""
        return {
            "name": self.trial.name,
            "seeds": list(self.trial.seeds),
            "runs": [asdict(run) for run in self.runs],
            "cells": [asdict(cell) for cell in self.cells],
        }


def _runs(trial: RobustnessStudy, ended: Mapping[str, EndedRun]) -> list[AttackedRun]:
    """Every place's run, with the clean one's accuracies over the clients that are honest in it."""
    drawn = {
        (number, seed): honest(trial.clean[seed], number)
        for number in trial.attackers
        for seed in trial.seeds
    }
    clean = {seed: ended[experiment.hash()] for seed, experiment in trial.clean.items()}
    before = {who: accuracies(clean[who[1]], clients) for who, clients in drawn.items()}
    runs = []
    for place, experiment in trial.experiments.items():
        end = ended[experiment.hash()]
        records: Sequence[RoundRecord] = ()
        if end.diverged is None:
            records = end.records()
        if experiment.attack.clients and records:
            found: Accuracies = (
                records[-1].honest_accuracy_mean,
                records[-1].honest_prototype_accuracy_mean,
            )
        else:
            found = accuracies(end, drawn[place[2:]])
        if records:
            counted = Detected.of(records)
        else:
            counted = None
        runs.append(
            AttackedRun(
                *place, end.run.path.name, end.diverged, *found, *before[place[2:]], counted
            )
        )
    return runs


def honest(experiment: Experiment, number: int) -> list[int]:
    """Who is honest where so many clients are not: they are drawn by the seed."""
    drawn = malicious(replace(experiment, attack=NoAttack(clients=number)))
    return sorted(set(range(experiment.clients)) - set(drawn))


def accuracies(ended: EndedRun, clients: Sequence[int]) -> Accuracies:
    """The mean accuracies of some clients after the last round; none of a run that diverged."""
    if ended.diverged is not None:
        return None, None
    run = ended.run
    try:
        lines = (
            (run.path / "clients.csv")
            .read_text(encoding="utf-8")
            .splitlines()[-run.experiment().clients :]
        )
        rows = {int(row["client"]): row for row in csv.DictReader(lines, CLIENT_COLUMNS)}
        own, prototype = (
            [rows[k][column] for k in clients] for column in ("accuracy", "prototype_accuracy")
        )
        found = fmean(map(float, own)), fmean(map(float, prototype)) if all(prototype) else None
        if any(int(row["round"]) != run.experiment().rounds for row in rows.values()):
            raise ValueError("it does not end with the last round")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{run.path / 'clients.csv'} is damaged ({error}): remove {run.path} to run it again"
        ) from error
    return found
