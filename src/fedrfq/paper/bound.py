"""Kind `bound`: Theorem 1's terms estimated along real runs, and how often, and by how much, the bound holds.

iterations = 10            E: local steps a round, each on a batch drawn anew
powers = 10                steps of the power iteration for the Hessian's largest eigenvalue
starts = 16                of the maximisation that finds L₂′
[experiment]               plain SGD: train.momentum = 0 and model.drop = 0
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
from fedrfq.experiment import Experiment, known
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.paper import bound_tables
from fedrfq.paper.descent import check, descend
from fedrfq.paper.lipschitz_estimate import steepest_l2
from fedrfq.paper.theorem import FORMS, Constants, MeasuredSetting, s8_holds, terms
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies import study_file
from fedrfq.studies.recipe import Recipe, Shown, Tell

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_NUMBERS = {"iterations": 10, "powers": 10, "starts": 16}


@dataclass(frozen=True)
class BoundPlan:
    recipe: Recipe
    settings: Mapping[str, Experiment]  # measured here, and not trained by a grid
    iterations: int
    powers: int
    starts: int
    experiments: Sequence[Experiment] = ()
    keep: bool = False

    @staticmethod
    def of(recipe: Recipe) -> BoundPlan:
        known(recipe.table, [*_NUMBERS, "experiment", "settings"], "")
        numbers = {
            **_NUMBERS,
            **{key: value for key, value in recipe.table.items() if key in _NUMBERS},
        }
        for key, value in numbers.items():
            if type(value) is not int or value < 1:
                raise UserError(f"{key} is a whole number from 1 on, not {value!r}")
        shared = study_file.section(recipe.table, "experiment")
        settings = {}
        for label, changes in study_file.labels(recipe.table, "settings").items():
            settings[label] = study_file.experiment(label, "reproduced", 0, [shared, changes])
            check(settings[label])
        return BoundPlan(recipe, settings, **numbers)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        found = {label: self._found(i, label, tell) for i, label in enumerate(self.settings)}
        rows = [row for label, one in found.items() for row in _rows(label, one)]
        whole = {
            "title": self.recipe.title,
            "constants": {label: asdict(one.constants) for label, one in found.items()},
            "rows": rows,
        }
        picture = bound_tables.drawn(folder / "bound.png", self.recipe.title, found)
        return Shown(bound_tables.sheets(self.recipe.title, found), whole, rows, [picture])

    def _found(self, i: int, label: str, tell: Tell) -> MeasuredSetting:
        experiment = self.settings[label]
        dataset = data.load(experiment.data.name)
        method = experiment.method
        pool = experiment.pool
        assert isinstance(method, FedRFQ)
        pooled = _pooled(pool, experiment.model.features(), self.starts)

        def told(number: int) -> None:
            tell((i + (number - 1) / experiment.rounds) / len(self.settings), label)

        measured = descend(experiment, dataset, self.iterations, self.powers, told)
        constants = Constants.of(
            measured, experiment.train.lr, method.lam, self.iterations, pooled, pool.kernel
        )
        return MeasuredSetting(constants, measured)


@lru_cache
def _pooled(pool: Pool, values: int, starts: int) -> float:
    """L₂′: SoftPool's constant on the whole map, in L2; 1 of no pooling at all."""
    if pool.name == "none":
        return 1.0
    return steepest_l2(pool, values, starts, np.random.default_rng(0)).value


def _rows(label: str, one: MeasuredSetting) -> list[dict[str, Any]]:
    rows = []
    for measured in one.rounds:
        row = {"setting": label, **asdict(measured)}
        for form, corrected in FORMS.items():
            own = terms(measured, one.constants, corrected)
            row |= {f"{form}_{name}": value for name, value in asdict(own).items()}
            row |= {f"{form}_bound": measured.loss_start + own.change}
            row |= {f"{form}_s8": s8_holds(measured, one.constants, corrected)}
        rows.append(row)
    return rows
