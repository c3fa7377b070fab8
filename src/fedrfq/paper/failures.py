"""Kind `failures`: k-means clusters of all clients' test prototypes, compared with their classes.

This shows why prototypes fail. The models are those after the last round of each run, and the
prototypes are of the kind that is exchanged: pooled, if the method pools. A dataset is left out,
and the table says so, if its samples or the weights to start from have not been downloaded.

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
from fedrfq.experiment import Experiment, check_keys
from fedrfq.learning.evaluation import side_by_side
from fedrfq.learning.round_loop import RoundLoop, tested
from fedrfq.models.resnet18 import ResNet18
from fedrfq.paper import failures_tables
from fedrfq.paper.clusters import Clustered, clustered
from fedrfq.studies.axes import KEYS, Axes, Labels
from fedrfq.studies.recipe import Progress, Recipe, StudyResult

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

_AXES = ["dataset", "method"]
_MAX_PAIRS = 3  # of confused classes that a row names


@dataclass(frozen=True)
class Failure:
    """How far the clusters of one run's prototypes agree with their classes."""

    dataset: str
    method: str
    seed: int
    samples: int
    classes: int
    purity: float
    adjusted_rand: float
    prototype_failure: float | None  # in percent
    prototype_accuracy: float | None
    confused: str  # the most confused pairs of classes, with the share of their samples

    @staticmethod
    def of(
        labels: Labels, seed: int, ended: EndedRun, clusters: Clustered, names: Sequence[str]
    ) -> Failure:
        """Summarise a run; `names` are those of the dataset's classes."""
        last = ended.records()[-1]
        failure = last.prototype_failure
        if failure is not None:
            failure *= 100
        dataset, method = labels  # `of` of the plan has checked that these are the axes
        pairs = [
            f"{names[pair.first]}/{names[pair.second]} {100 * pair.share:.0f} %"
            for pair in clusters.confused(_MAX_PAIRS)
        ]
        return Failure(
            dataset=dataset,
            method=method,
            seed=seed,
            samples=len(clusters.y_N),
            classes=len(clusters.classes),
            purity=100 * clusters.purity(),
            adjusted_rand=clusters.adjusted_rand(),
            prototype_failure=failure,
            prototype_accuracy=last.prototype_accuracy_mean,
            confused=", ".join(pairs),
        )


@dataclass(frozen=True)
class FailuresPlan:
    """The runs whose prototypes are clustered."""

    recipe: Recipe
    runs: Mapping[tuple[Labels, int], Experiment]
    missing: Mapping[str, str]  # datasets that are left out, and the command that gets each
    keep: bool = True

    @staticmethod
    def of(recipe: Recipe) -> FailuresPlan:
        """Read and check a recipe of this kind."""
        check_keys(recipe.table, KEYS, "")
        axes = Axes.of(recipe)
        if list(axes.labels) != _AXES:
            raise UserError(
                f"{recipe.name}: the axes must be dataset and method, in this order, "
                f"not {', '.join(axes.labels)}"
            )
        needs = {
            labels[0]: needed(experiment) for (labels, _), experiment in axes.experiments.items()
        }
        missing = {dataset: command for dataset, command in needs.items() if command}
        if len(missing) == len(needs):
            commands = "; ".join(sorted(set(missing.values())))
            raise UserError(f"none of the datasets has been downloaded: {commands}")
        runs = {
            (labels, seed): experiment
            for (labels, seed), experiment in axes.experiments.items()
            if labels[0] not in missing
        }
        return FailuresPlan(recipe, runs, missing)

    @property
    def experiments(self) -> Sequence[Experiment]:
        """The runs of the grid, without those of missing datasets."""
        return list(self.runs.values())

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Cluster each run's prototypes, and draw a picture for each dataset."""
        failures: list[Failure] = []
        first_seeds: dict[Labels, Clustered] = {}  # only these are drawn
        for i, ((labels, seed), experiment) in enumerate(self.runs.items()):
            tell(i / len(self.runs), ", ".join(labels))
            run = ended[experiment.hash()]
            if run.diverged is None:
                clusters = prototypes(run, seed, device)
                names = _load(experiment.data.name).classes
                failures.append(Failure.of(labels, seed, run, clusters, names))
                first_seeds.setdefault(labels, clusters)
        if not failures:
            raise UserError(
                f"{self.recipe.name}: every run diverged, so there is nothing to show; lower "
                "train.lr or method.lam"
            )
        rows = [asdict(failure) for failure in failures]
        whole = {
            "title": self.recipe.title,
            "failures": rows,
            "left_out": dict(self.missing),
            "clusters": _counts(first_seeds),
        }
        left_out = self._left_out(len(self.runs) - len(failures))
        sheets = failures_tables.sheets(self.recipe.title, failures, left_out)
        return StudyResult(sheets, whole, rows, failures_tables.drawn(folder, first_seeds))

    def _left_out(self, diverged: int) -> str:
        sentences = [
            f"{dataset} is left out: {command}." for dataset, command in self.missing.items()
        ]
        if diverged:
            sentences.append(f"Runs that diverged and do not count: {diverged}.")
        return " ".join(sentences)


def needed(experiment: Experiment) -> str:
    """Say which download the experiment needs before it can run; empty if none."""
    name = experiment.data.name
    source = data.DATASETS.get(name)
    if source is not None and not source.built_in and not cached_dataset.path(name).is_file():
        return f"`fedrfq data get {name}` downloads its samples"
    model = experiment.model
    if (
        isinstance(model, ResNet18)
        and model.weights != "none"
        and not weights.path("resnet18").is_file()
    ):
        return "`fedrfq data get resnet18` downloads the weights that training starts from"
    return ""


def prototypes(ended: EndedRun, seed: int, device: torch.device) -> Clustered:
    """Cluster the test prototypes of all clients, made with the models of the last round."""
    experiment = ended.run.experiment()
    state = ended.run.last(device)
    loop = RoundLoop([experiment], _load(experiment.data.name), device)
    per_engine = [
        tested(engine, params) for engine, params in zip(loop.engines, state.params, strict=True)
    ]
    p_NV, _, y_N = side_by_side(per_engine, 1).vectors()
    return clustered(p_NV.double().cpu().numpy(), y_N.cpu().numpy(), seed)


# One is enough: runs come dataset by dataset.
@lru_cache(1)
def _load(name: str) -> data.Dataset:
    return data.load(name)


def _counts(first_seeds: Mapping[Labels, Clustered]) -> list[dict[str, Any]]:
    """Return the samples in clusters × classes, of each first seed."""
    return [
        {
            "dataset": dataset,
            "method": method,
            "classes": clusters.classes.tolist(),
            "counts": clusters.counts().tolist(),
        }
        for (dataset, method), clusters in first_seeds.items()
    ]
