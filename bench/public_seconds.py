"""How long the public part of a run takes on one core: map pass, exchange and classifiers.

CPU seconds of all twenty clients of mnist5k together, the median of five repeats: the vectors of
their training samples; their uploads and what one server decides; their classifiers of all classes.

Example: OMP_NUM_THREADS=1 python bench/public_seconds.py --out results/public/seconds.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.experiment import from_table
from fedrfq.learning.draws import believed_labels, deal
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import _memory
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.aggregation import decide_public
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.runs.environment import here

Result = TypeVar("Result")
_CPU = torch.device("cpu")
# By the number of values and what is exchanged.
MAPS: dict[str, dict[str, Any]] = {
    "512 values, means (the default)": {"name": "random"},
    "1,024 values, means (examples/open.toml)": {"name": "random", "second": 64},
    "512 values, second moments": {"name": "random", "moments": "full", "bits": 16},
    "1,024 values, second moments": {
        "name": "random",
        "second": 64,
        "moments": "full",
        "bits": 16,
    },
}


def timed(what: Callable[[], Result]) -> tuple[float, Result]:
    """Return the CPU seconds that a call takes, and its result."""
    began = time.process_time()
    result = what()
    return time.process_time() - began, result


def once(dataset: Dataset, public: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of each part."""
    experiment = from_table({"data": {"name": "mnist5k"}, "public": public})
    partition = deal(experiment, dataset)
    labels = believed_labels(experiment, partition, [], dataset)
    map_ = experiment.public
    task = public_task(map_, len(dataset.classes))
    assert task is not None
    # Vectors that were computed before are remembered.
    _memory.cache_clear()
    seconds = {}
    seconds["map"], exchange = timed(
        lambda: PublicExchange.of(map_, partition, labels, dataset, _CPU)
    )
    clients = range(experiment.clients)

    def exchanged() -> Globals:
        uploads = exchange.uploads(clients)
        nothing = task.nothing()
        return decide_public(NoDetection(), len(clients), task.classes, nothing, uploads)[2]

    seconds["exchange"], known = timed(exchanged)
    seconds["classifiers"], _ = timed(lambda: exchange.classifiers(known))
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = data.load("mnist5k")
    rows = {}
    for name, public in MAPS.items():
        found = [once(dataset, public) for _ in range(args.repeats)]
        rows[name] = {part: round(median(one[part] for one in found), 3) for part in found[0]}
        print(name, rows[name], flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"cpu_seconds": rows, **here()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
