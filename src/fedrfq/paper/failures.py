"""Kind `failures`: why prototypes fail: k-means clusters of all clients' test prototypes beside their classes.

Of each run the models after the last round are taken. The prototypes are of the kind that is exchanged: pooled, where a
method pools. A dataset whose samples, or whose weights to start from, are not there is left out, and the sheet says so.

    [axes.dataset.mnist]       datasets, and what each changes of the experiment …
    [axes.method.fedrfq]       … and methods, as in other grids
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrfq import data
from fedrfq.data import cached_dataset, weights
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, known
from fedrfq.learning.evaluation import side_by_side
from fedrfq.learning.round_loop import RoundLoop, tested
from fedrfq.models.resnet18 import ResNet18
from fedrfq.paper import failures_tables
from fedrfq.paper.clusters import Clustered, clustered
from fedrfq.studies.axes import KEYS, Axes, Labels
from fedrfq.studies.recipe import Recipe, Shown, Tell

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_AXES = ["dataset", "method"]
_PAIRS = 3


@dataclass(frozen=True)
class Failure:
    """What became of one run's prototypes."""

    dataset: str
    method: str
    seed: int
    samples: int
    classes: int
    purity: float
    adjusted_rand: float
    prototype_failure: float | None  # in percent
    prototype_accuracy: float | None
    confused: str  # the pairs of classes most confused, with the share of their samples

    @staticmethod
    def of(
        labels: Labels, seed: int, ended: EndedRun, found: Clustered, names: Sequence[str]
    ) -> Failure:
        last = ended.records()[-1]
        failed = last.prototype_failure
        pairs = [
            f"{names[pair.first]}/{names[pair.second]} {100 * pair.share:.0f} %"
            for pair in found.confused(_PAIRS)
        ]
        return Failure(
            dataset=labels[0],
            method=labels[1],
            seed=seed,
            samples=len(found.y_N),
            classes=len(found.classes),
            purity=100 * found.purity(),
            adjusted_rand=found.adjusted_rand(),
            prototype_failure=None if failed is None else 100 * failed,
            prototype_accuracy=last.prototype_accuracy_mean,
            confused=", ".join(pairs),
        )


@dataclass(frozen=True)
class FailuresPlan:
    recipe: Recipe
    runs: Mapping[tuple[Labels, int], Experiment]
    missing: Mapping[str, str]  # datasets that are left out, and what gets them
    keep: bool = True

    @staticmethod
    def of(recipe: Recipe) -> FailuresPlan:
        known(recipe.table, KEYS, "")
        axes = Axes.of(recipe)
        if list(axes.labels) != _AXES:
            raise UserError(
                f"{recipe.name}: the axes are dataset and method, in this order, not {', '.join(axes.labels)}"
            )
        needs = {
            labels[0]: needed(experiment) for (labels, _), experiment in axes.experiments.items()
        }
        missing = {dataset: command for dataset, command in needs.items() if command}
        if len(missing) == len(needs):
            raise UserError(
                f"none of the datasets is there: {'; '.join(sorted(set(missing.values())))}"
            )
        runs = {
            key: experiment
            for key, experiment in axes.experiments.items()
            if key[0][0] not in missing
        }
        return FailuresPlan(recipe, runs, missing)

    @property
    def experiments(self) -> Sequence[Experiment]:
        return list(self.runs.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Tell
    ) -> Shown:
        failures: list[Failure] = []
        first: dict[Labels, Clustered] = {}
        for i, ((labels, seed), experiment) in enumerate(self.runs.items()):
            tell(i / len(self.runs), ", ".join(labels))
            run = ended[experiment.hash()]
            if run.diverged is None:
                found = prototypes(run, seed, device)
                failures.append(
                    Failure.of(labels, seed, run, found, _load(experiment.data.name).classes)
                )
                first.setdefault(labels, found)
        if not failures:
            raise UserError(
                f"{self.recipe.name}: every run diverged, so there is nothing to show: lower train.lr or method.lam"
            )
        rows = [asdict(failure) for failure in failures]
        whole = {
            "title": self.recipe.title,
            "failures": rows,
            "left_out": dict(self.missing),
            "clusters": _counts(first),
        }
        sheets = failures_tables.sheets(
            self.recipe.title, failures, self._left_out(len(self.runs) - len(failures))
        )
        return Shown(sheets, whole, rows, failures_tables.drawn(folder, first))

    def _left_out(self, diverged: int) -> str:
        gone = [f"{dataset} is left out: {command}." for dataset, command in self.missing.items()]
        return " ".join(
            [*gone, *([f"{diverged} runs diverged and do not count."] if diverged else [])]
        )


def needed(experiment: Experiment) -> str:
    """What has to be done before it can be run; nothing if all is there."""
    name = experiment.data.name
    model = experiment.model
    source = data.DATASETS.get(name)
    if source is not None and not source.built_in and not cached_dataset.path(name).is_file():
        return f"`fedrfq data get {name}` gets its samples"
    if (
        isinstance(model, ResNet18)
        and model.weights != "none"
        and not weights.path("resnet18").is_file()
    ):
        return "`fedrfq data get resnet18` gets the weights it starts from"
    return ""


def prototypes(ended: EndedRun, seed: int, device: torch.device) -> Clustered:
    """The test prototypes of all clients with the models of the last round, in clusters."""
    experiment = ended.run.experiment()
    state = ended.run.last(device)
    loop = RoundLoop([experiment], _load(experiment.data.name), device)
    found = [
        tested(engine, params) for engine, params in zip(loop.engines, state.params, strict=True)
    ]
    p_NV, _, y_N = side_by_side(found, 1).vectors()
    return clustered(p_NV.double().cpu().numpy(), y_N.cpu().numpy(), seed)


@lru_cache(1)
def _load(name: str) -> data.Dataset:
    return data.load(name)


def _counts(first: Mapping[Labels, Clustered]) -> list[dict[str, Any]]:
    """The first seed's clusters × classes."""
    return [
        {
            "dataset": labels[0],
            "method": labels[1],
            "classes": found.classes.tolist(),
            "counts": found.counts().tolist(),
        }
        for labels, found in first.items()
    ]
