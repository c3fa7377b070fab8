"""Kind `failures`: k-means clusters of all clients' test prototypes, compared with their classes.

This shows why prototypes fail. The models are those after the last round of each run, and the
prototypes are of the kind that is exchanged: pooled, if the method pools. A dataset is left out,
and the table says so, if its samples or the weights to start from have not been downloaded.

    [axes.dataset.mnist]       datasets, and what each changes of the experiment …
    [axes.method.fedrfq]       … and methods, as in other grids
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fedrfq import data
from fedrfq.data import cached_dataset, weights
from fedrfq.errors import UserError
from fedrfq.experiment import Data, Experiment
from fedrfq.learning.evaluation import side_by_side
from fedrfq.learning.round_loop import RoundLoop, tested
from fedrfq.models.resnet18 import ResNet18
from fedrfq.paper import failures_tables
from fedrfq.paper.clusters import Clustered, clustered
from fedrfq.studies.axes import KEYS, Axes, Labels, Place
from fedrfq.studies.measures import MEASURES, Figures, MeasuredRuns
from fedrfq.studies.plan import Progress, RunsPlan, StudyResult
from fedrfq.studies.study import Study, section

if TYPE_CHECKING:
    import torch

    from fedrfq.studies.grid import EndedRun

# Of the records, beside what the clusters show.
_MEASURES = {
    "prototype_failure": MEASURES["failure"],
    "prototype_accuracy": MEASURES["prototype"],
}
_AXES = ["dataset", "method"]
_MAX_PAIRS = 3  # of confused classes that a row names


@dataclass(frozen=True)
class FailuresPlan(RunsPlan):
    """The runs whose prototypes are clustered."""

    missing: Mapping[str, str]  # datasets that are left out, and the command that gets each

    keep: ClassVar[bool] = True  # the prototypes are made with the trained models

    @staticmethod
    def of(study: Study) -> FailuresPlan:
        """Read and check a study of this kind."""
        study.check_keys(KEYS)
        axes = Axes.of(study)
        if list(axes.labels) != _AXES:
            raise UserError(
                f"{study.name}: the axes must be dataset and method, in this order, "
                f"not {', '.join(axes.labels)}"
            )
        needs = {
            labels[0]: needed(experiment) for (labels, _), experiment in axes.experiments.items()
        }
        missing = {dataset: command for dataset, command in needs.items() if command}
        there = [dataset for dataset in needs if dataset not in missing]
        if not there:
            commands = "; ".join(sorted(set(missing.values())))
            raise UserError(f"none of the datasets has been downloaded: {commands}")
        only = {**section(study.table, "only"), "dataset": there}
        axes = Axes.of(replace(study, table={**study.table, "only": only}))
        return FailuresPlan(study, axes, missing)

    def show(
        self, ended: Mapping[str, EndedRun], folder: Path, device: torch.device, tell: Progress
    ) -> StudyResult:
        """Cluster each run's prototypes, and draw a picture for each dataset."""
        found = MeasuredRuns.of(self.axes, ended, _MEASURES)
        figures: dict[Place, Figures] = {}
        first_seeds: dict[Labels, Clustered] = {}  # only these are drawn
        for i, ((labels, seed), experiment) in enumerate(self.axes.experiments.items()):
            tell(i / len(self.axes.experiments), ", ".join(labels))
            if (labels, seed) in found.figures:
                clusters = prototypes(ended[experiment.hash()], seed, device)
                own = _figures(clusters, _load(experiment.data).classes)
                figures[labels, seed] = {**own, **found.figures[labels, seed]}
                first_seeds.setdefault(labels, clusters)
        if not figures:
            raise UserError(
                f"{self.study.name}: every run diverged, so there is nothing to show; lower "
                "train.lr or method.lam"
            )
        measured = replace(found, figures=figures)
        rows = [row for row in measured.rows() if not row["diverged"]]
        whole = {
            "title": self.study.title,
            "failures": rows,
            "left_out": dict(self.missing),
            "clusters": _counts(first_seeds),
        }
        sheets = failures_tables.sheets(self.study.title, measured, self._left_out(measured))
        pictures = failures_tables.drawn(folder, first_seeds)
        return self.with_reruns(StudyResult(sheets, whole, rows, pictures), ended)

    def _left_out(self, measured: MeasuredRuns) -> str:
        sentences = [
            f"{dataset} is left out: {command}." for dataset, command in self.missing.items()
        ]
        if measured.diverged:
            sentences.append(f"Runs that diverged and do not count: {len(measured.diverged)}.")
        return " ".join(sentences)


def _figures(clusters: Clustered, names: Sequence[str]) -> dict[str, Any]:
    """Return how far clusters agree with classes; `names` are those of the dataset's classes."""
    # The most confused pairs of classes, with the share of their samples.
    pairs = [
        f"{names[pair.first]}/{names[pair.second]} {100 * pair.share:.0f} %"
        for pair in clusters.confused(_MAX_PAIRS)
    ]
    return {
        "samples": len(clusters.y_N),
        "classes": len(clusters.classes),
        "purity": 100 * clusters.purity(),
        "adjusted_rand": clusters.adjusted_rand(),
        "confused": ", ".join(pairs),
    }


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
    loop = RoundLoop([experiment], _load(experiment.data), device)
    state = ended.run.last(loop.device)
    per_engine = [
        tested(engine, params) for engine, params in zip(loop.engines, state.params, strict=True)
    ]
    p_NV, _, y_N = side_by_side(per_engine, 1).vectors()
    return clustered(p_NV.double().cpu().numpy(), y_N.cpu().numpy(), seed)


# One is enough: runs come dataset by dataset.
@lru_cache(1)
def _load(wanted: Data) -> data.Dataset:
    return wanted.load()


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
