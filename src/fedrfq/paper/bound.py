"""Kind `bound`: estimate Theorem 1's terms along real runs, and see how often its bound holds.

iterations = 10            E: local steps in a round, each on a newly drawn minibatch
powers = 10                steps of the power iteration for the Hessian's largest eigenvalue
starts = 16                random starts of the maximisation that finds L₂′
[experiment]               must be plain SGD: train.momentum = 0 and model.drop = 0
[settings."λ = 1"]         labels, and what each changes of the experiment
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrfq import data
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, check_keys
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.paper import bound_tables
from fedrfq.paper.descent import check, descend
from fedrfq.paper.lipschitz_estimate import steepest_l2
from fedrfq.paper.theorem import FORMS, Constants, MeasuredSetting, s8_holds, terms
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies import study_file
from fedrfq.studies.recipe import Progress, Recipe, StudyResult

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_DEFAULTS = {"iterations": 10, "powers": 10, "starts": 16}


@dataclass(frozen=True)
class BoundPlan:
    """The settings to measure, and how thoroughly.

    The settings are trained here, a client at a time, and not by a grid: so `experiments` is empty.
    """

    recipe: Recipe
    settings: Mapping[str, Experiment]
    iterations: int
    powers: int
    starts: int
    experiments: Sequence[Experiment] = ()
    keep: bool = False

    @staticmethod
    def of(recipe: Recipe) -> BoundPlan:
        """Read and check a recipe of this kind."""
        check_keys(recipe.table, [*_DEFAULTS, "experiment", "settings"], "")
        numbers = {key: recipe.table.get(key, default) for key, default in _DEFAULTS.items()}
        for key, value in numbers.items():
            if type(value) is not int or value < 1:
                raise UserError(f"{key} must be an integer of at least 1, not {value!r}")
        common = study_file.section(recipe.table, "experiment")
        settings = {}
        for label, changes in study_file.labels(recipe.table, "settings").items():
            settings[label] = study_file.experiment(label, "reproduced", 0, [common, changes])
            check(settings[label])
        return BoundPlan(recipe, settings, **numbers)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Measure each setting and draw bound.png."""
        measured = {label: self._measure(i, label, tell) for i, label in enumerate(self.settings)}
        rows = [row for label, setting in measured.items() for row in _rows(label, setting)]
        whole = {
            "title": self.recipe.title,
            "constants": {label: asdict(setting.constants) for label, setting in measured.items()},
            "rows": rows,
        }
        title = self.recipe.title
        picture = bound_tables.drawn(folder / "bound.png", title, measured)
        return StudyResult(bound_tables.sheets(title, measured), whole, rows, [picture])

    def _measure(self, i: int, label: str, tell: Progress) -> MeasuredSetting:
        experiment = self.settings[label]
        method = experiment.method
        assert isinstance(method, FedRFQ), "check() lets no other method through"

        def tell_round(number: int) -> None:
            tell((i + (number - 1) / experiment.rounds) / len(self.settings), label)

        dataset = data.load(experiment.data.name)
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
