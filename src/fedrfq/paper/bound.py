"""Kind `bound`: estimate Theorem 1's terms along real runs, and see how often its bound holds.

iterations = 10            E: local steps in a round, each on a newly drawn minibatch
powers = 10                steps of the power iteration for the Hessian's largest eigenvalue
starts = 16                random starts of the maximisation that finds L₂′
[experiment]               must be plain SGD: train.momentum = 0 and model.drop = 0
[axes.setting."λ = 1"]     settings, and what each changes of the experiment
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.paper import bound_tables
from fedrfq.paper.descent import check, descend
from fedrfq.paper.lipschitz_estimate import steepest_l2
from fedrfq.paper.theorem import FORMS, Constants, MeasuredSetting, s8_holds, terms
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies import axes as grids
from fedrfq.studies.axes import Axes
from fedrfq.studies.plan import Plan, Progress, StudyResult
from fedrfq.studies.study import Study

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_DEFAULTS = {"iterations": 10, "powers": 10, "starts": 16}


@dataclass(frozen=True)
class BoundPlan(Plan):
    """The settings to measure, and how thoroughly.

    The settings are trained here, a client at a time, and not by a grid: so it has no runs.
    """

    settings: Mapping[str, Experiment]
    iterations: int
    powers: int
    starts: int

    @staticmethod
    def of(study: Study) -> BoundPlan:
        """Read and check a study of this kind."""
        study.check_keys([*_DEFAULTS, *grids.KEYS])
        numbers = {key: study.table.get(key, default) for key, default in _DEFAULTS.items()}
        for key, value in numbers.items():
            if type(value) is not int or value < 1:
                raise UserError(f"{key} must be an integer of at least 1, not {value!r}")
        axes = Axes.of(study)
        settings = {
            ", ".join(labels): experiment
            for (labels, seed), experiment in axes.experiments.items()
            if seed == study.seeds[0]
        }
        for experiment in settings.values():
            check(experiment)
        return BoundPlan(study, settings, **numbers)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Measure each setting and draw bound.png."""
        measured = {label: self._measure(i, label, tell) for i, label in enumerate(self.settings)}
        rows = [row for label, setting in measured.items() for row in _rows(label, setting)]
        whole = {
            "title": self.study.title,
            "constants": {label: asdict(setting.constants) for label, setting in measured.items()},
            "rows": rows,
        }
        title = self.study.title
        picture = bound_tables.drawn(folder / "bound.png", title, measured)
        return StudyResult(bound_tables.sheets(title, measured), whole, rows, [picture])

    def _measure(self, i: int, label: str, tell: Progress) -> MeasuredSetting:
        experiment = self.settings[label]
        method = experiment.method
        assert isinstance(method, FedRFQ), "check() lets no other method through"

        def tell_round(number: int) -> None:
            tell((i + (number - 1) / experiment.rounds) / len(self.settings), label)

        dataset = experiment.data.load()
        rounds = descend(experiment, dataset, self.iterations, self.powers, tell_round)
        constants = Constants.of(
            rounds,
            eta=experiment.train.lr,
            lam=method.lam,
            iterations=self.iterations,
            pooled=_pooled(experiment.pool, experiment.model.features(), self.starts),
            kernel=experiment.pool.kernel,
        )
        return MeasuredSetting(constants, rounds)


# Cached: settings usually differ in λ and η, and share their pooling.
@lru_cache
def _pooled(pool: Pool, values: int, starts: int) -> float:
    """Return L₂′, SoftPool's Lipschitz constant on the whole map in L2; without pooling, 1."""
    if pool.name == "none":
        return 1.0
    return steepest_l2(pool, values, starts, np.random.default_rng(0)).value


def _rows(label: str, setting: MeasuredSetting) -> list[dict[str, Any]]:
    """Return a row for each round of each client, with both forms of the bound."""
    rows = []
    for measured in setting.rounds:
        row = {"setting": label, **asdict(measured)}
        for form, corrected in FORMS.items():
            bound = terms(measured, setting.constants, corrected)
            row |= {f"{form}_{name}": value for name, value in asdict(bound).items()}
            row[f"{form}_bound"] = measured.loss_start + bound.change
            row[f"{form}_s8"] = s8_holds(measured, setting.constants, corrected)
        rows.append(row)
    return rows
