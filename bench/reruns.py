"""How far recorded runs of one experiment are from each other: the spread between reruns.

    python bench/reruns.py --out results/reruns.json

Several recorded tables contain the same experiments, run in other stacks, on another day or by
another revision. This finds them by their experiments and pools the standard deviation between the
runs of each. Rows that agree in every digit are one run that several tables show.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from fedrfq import experiment
from fedrfq.experiment import Experiment
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.paper.kinds import plan
from fedrfq.studies.equality import rerun_key
from fedrfq.studies.measures import MeasuredRuns
from fedrfq.studies.plan import GridPlan
from fedrfq.studies.reruns import Reruns
from fedrfq.studies.robustness import lost
from fedrfq.studies.study import Study

RESULTS = Path(__file__).parents[1] / "results"
EXAMPLES = Path(__file__).parents[1] / "examples"
# The recorded studies of `experiments/` that have a row for each run.
FIGURES = ("ablation", "lambda", "poisoning", "pooling", "redundancy", "scarce", "silhouette")
TABLES = ("table1", "table2", "table3")
OPTIONS = "mnist-options"
Row = Mapping[str, Any]


def recorded_plan(name: str) -> GridPlan:
    """Return the plan of a study of `experiments/`, or of the comparison on MNIST."""
    if name == "mnist-methods":
        # It was recorded before there were controls and tuning.
        path = EXAMPLES / "compare-mnist.toml"
        wanted = plan(Study.load(path, changes={"controls": False, "tune": []}))
    else:
        wanted = plan(Study.load(name, runs="reproduced"))
    assert isinstance(wanted, GridPlan)
    return wanted


def recorded_rows(folder: Path, labels: Mapping[str, object]) -> list[dict[str, Any]]:
    """Return the rows of a recorded study's runs, from table.json or, without them, table.csv."""
    whole = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    if "runs" in whole:
        return [_of_today(row) for row in whole["runs"]]
    with (folder / "table.csv").open(encoding="utf-8", newline="") as file:
        return [
            {key: text if key in labels else _value(text) for key, text in row.items()}
            for row in csv.DictReader(file)
        ]


def _of_today(row: Row) -> dict[str, Any]:
    """Return a run's row with the losses and the counts of uploads that today's rows have."""
    today = dict(row)
    # A run that diverged has none.
    counts = today.pop("detected", None) or {}
    if counts:
        counts = {**counts, "dropped_honest": counts["dropped"] - counts["dropped_attackers"]}
    for name in row:
        if f"clean_{name}" in row:
            today[f"{name}_loss"] = lost(row[f"clean_{name}"], row[name])
    return today | {f"uploads_{name}": count for name, count in counts.items()}


def _value(text: str) -> float | str | None:
    """Return a number, or nothing, or the text itself."""
    if not text:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def runs_of(name: str) -> Iterator[tuple[Experiment, Row]]:
    """Yield the experiment and the figures of each recorded run of a study."""
    wanted = recorded_plan(name)
    folder = RESULTS / name
    if not folder.is_dir():
        folder = RESULTS / "reproduce" / name
    measured = MeasuredRuns.recorded(wanted.axes, recorded_rows(folder, wanted.axes.labels))
    for place, figures in measured.figures.items():
        yield wanted.axes.experiments[place], figures


def runs_of_options() -> Iterator[tuple[Experiment, Row]]:
    """Yield the same of the study `options`, which was recorded as the runs' summaries."""
    recorded = json.loads((RESULTS / f"{OPTIONS}.json").read_text(encoding="utf-8"))
    experiments = recorded_plan("options").axes.experiments
    for variant, runs in recorded.items():
        for run in runs:
            figures = {"own": run["accuracy_mean"], "prototype": run["prototype_accuracy_mean"]}
            yield experiments[("MNIST", variant), run["seed"]], figures


def collect() -> dict[str, Any]:
    """Return the spread between reruns for each dataset, and each group's means by source."""
    sources = {name: list(runs_of(name)) for name in ("mnist-methods", *TABLES, *FIGURES)}
    sources[OPTIONS] = list(runs_of_options())
    # By experiment: the distinct runs' figures, and where each is recorded.
    found: dict[str, dict[tuple[Any, Any], list[str]]] = defaultdict(dict)
    experiments = {}
    for source, runs in sources.items():
        for one, figures in runs:
            key = rerun_key(one)
            experiments[key] = one
            run = (figures["own"], figures["prototype"])
            found[key].setdefault(run, []).append(source)
    again = {key: runs for key, runs in found.items() if len(runs) > 1}
    by_data = defaultdict(list)
    for key, runs in again.items():
        accuracies = [
            {"own": own, "prototype": prototype, "all_classes": None} for own, prototype in runs
        ]
        by_data[experiments[key].data.name].append(accuracies)
    return {
        "command": "python bench/reruns.py --out results/reruns.json",
        "reruns": {data: Reruns.between(runs).plain() for data, runs in by_data.items()},
        "fedrfq, MNIST, 3 ± 2, own head": _means(again),
    }


def _means(again: Mapping[str, Mapping[tuple[Any, Any], list[str]]]) -> dict[str, float]:
    """Return the mean over seeds of the default experiment in each table that has it."""
    values = defaultdict(list)
    for seed in range(5):
        key = rerun_key(experiment.load(sets=["data.name=mnist"], seed=seed))
        for (own, _), sources in again[key].items():
            for source in sources:
                values[source].append(own)
    return {source: fmean(own) for source, own in sorted(values.items())}


def main() -> None:
    """Collect, and write or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = to_json(collect(), indent=1) + "\n"
    if arguments.out is None:
        print(text)
    else:
        write_atomically(arguments.out, text.encode())


if __name__ == "__main__":
    main()
