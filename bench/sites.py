"""What sites that differ cost on a public map: honest weight and accuracy, with and without attack.

Five clients of twenty are a site. A site's images are changed as another scanner would: less
contrast, blur or noise, weak or strong. Clients train hardly at all and exchange class means in
both rounds, as in examples/robustness-public.toml, whose settings these are. Every client is tested
on all ten classes, on images of its own site, by the public classifier. Honest clients count.

Example: python bench/sites.py --out results/public/sites.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.data.partition import Partition
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.draws import common_test, deal
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.learning.public.features import vectors
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.runs.environment import here

Images = NDArray[Any]
_CPU = torch.device("cpu")
_CLIENTS = 20
_SITE = 5  # clients of a site
_ROUNDS = 2
# What each site's images are like, by the federation's name.
FEDERATIONS = {
    "alike": ("", "", "", ""),
    "one blurred, weak": ("", "", "", "blur 1"),
    "one blurred, strong": ("", "", "", "blur 2"),
    "one with less contrast, weak": ("", "", "", "contrast 1"),
    "one with less contrast, strong": ("", "", "", "contrast 2"),
    "one with noise, weak": ("", "", "", "noise 1"),
    "one with noise, strong": ("", "", "", "noise 2"),
    "four sites, weak": ("", "blur 1", "contrast 1", "noise 1"),
    "four sites, strong": ("", "blur 2", "contrast 2", "noise 2"),
}
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "sign-flip": {"name": "sign-flip", "clients": 4},
    "swap": {"name": "swap", "clients": 4},
}
DETECTORS: dict[str, dict[str, Any]] = {
    "none": {"name": "none"},
    "sampling": {"name": "sampling"},
    "sampling, limit 3000": {"name": "sampling", "limit": 3000},
    "adaptive": {"name": "adaptive"},
}
SETTINGS: dict[str, Any] = {
    "rounds": _ROUNDS,
    "checkpoint": _ROUNDS,
    "clients": _CLIENTS,
    "data": {"name": "mnist5k"},
    "model": {"name": "mlp", "width": 16},
    "train": {"batch_size": 50},
    "method": {"name": "local"},
    "public": {"name": "random", "first": 32, "second": 16, "every": 1},
}


def changed(images_NCHW: Images, change: str) -> Images:
    """Return images as another scanner makes them: "" leaves them, 2 is stronger than 1."""
    if not change:
        return images_NCHW
    kind, _, step = change.partition(" ")
    strength = int(step)
    pixels_NCHW = torch.from_numpy(images_NCHW).float()
    if kind == "contrast":
        # White stays white, and black becomes grey.
        grey = 40 * strength
        pixels_NCHW = grey + pixels_NCHW * (1 - grey / 255)
    elif kind == "blur":
        for _ in range(strength):
            pixels_NCHW = F.avg_pool2d(pixels_NCHW, 3, 1, 1)
    else:
        rng = torch.Generator().manual_seed(0)
        noise_NCHW = torch.randn(pixels_NCHW.shape, generator=rng)
        pixels_NCHW = pixels_NCHW + 30 * strength * noise_NCHW
    return pixels_NCHW.round().clamp(0, 255).byte().numpy()


def site(client: int) -> int:
    """Return which site a client is of."""
    return client // _SITE


def of_sites(dataset: Dataset, partition: Partition, sites: Sequence[str]) -> Dataset:
    """Return the dataset with each client's training images as its site makes them."""
    train_x = dataset.train_x.copy()
    for client, index_N in enumerate(partition.train):
        train_x[index_N] = changed(dataset.train_x[index_N], sites[site(client)])
    # The hash tells the images' vectors from those of others.
    name = f"{dataset.sha256}, sites {sites}, client by client {partition.train[0].tolist()}"
    return replace(dataset, train_x=train_x, sha256=name)


@dataclass(frozen=True)
class Sites:
    """One federation with one seed, and the tests of its sites."""

    loop: RoundLoop
    tests: tuple[Tensor, ...]  # N × V for each site: the same samples on all
    labels_N: Tensor

    @staticmethod
    def of(experiments: Sequence[Experiment], dataset: Dataset, sites: Sequence[str]) -> Sites:
        """Return the federation; the experiments share a seed, and differ in attack or detector."""
        first = experiments[0]
        partition = deal(first, dataset)
        index_N = common_test(first, partition, dataset).test[0]
        tests = []
        for change in sites:
            shown = replace(
                dataset,
                test_x=changed(dataset.test_x, change),
                sha256=f"{dataset.sha256}, tests with {change}",
            )
            tests.append(vectors(first.public, shown, "test", index_N, _CPU))
        own = of_sites(dataset, partition, sites)
        loop = RoundLoop(experiments, own, _CPU, [partition] * len(experiments))
        return Sites(loop, tuple(tests), torch.from_numpy(dataset.test_y[index_N]))

    def figures(self) -> list[dict[str, Any]]:
        """Return each experiment's figures after all rounds."""
        state = self.loop.start()
        records: list[list[RoundRecord]] = []
        for _ in range(_ROUNDS):
            state, outcomes = self.loop.advance(state)
            records.append([outcome.record for outcome in outcomes])
        return [self._figures(r, state, run) for r, run in enumerate(zip(*records, strict=True))]

    def _figures(self, r: int, state: LoopState, run: Sequence[RoundRecord]) -> dict[str, Any]:
        accuracy_K = self._accuracies(r, state)
        malicious = self.loop.malicious[r]
        honest = [k for k in range(_CLIENTS) if k not in malicious]
        dropped = [k for record in run for k in record.filtered if k in honest]
        by_site = [[accuracy_K[k] for k in honest if site(k) == s] for s in range(len(self.tests))]
        lost = fmean(record.honest_weight_lost or 0.0 for record in run)
        return {
            "accuracy": round(fmean(accuracy_K[k] for k in honest), 2),
            # A site may have none but malicious clients.
            "by_site": [round(fmean(own), 2) if own else None for own in by_site],
            "honest_weight_lost": round(lost, 2),
            "dropped_by_site": [sum(site(k) == s for k in dropped) for s in range(len(by_site))],
        }

    def _accuracies(self, r: int, state: LoopState) -> list[float]:
        """Return each client's accuracy on all classes by the public classifier, in percent."""
        known = state.public[r]
        assert known is not None
        made = self.loop.public.exchanges[r].classifiers(known)
        found = []
        for client, one in enumerate(made):
            guess_N = one.log_probabilities(self.tests[site(client)]).argmax(1)
            found.append(100 * float((guess_N == self.labels_N).double().mean()))
        return found


def row(seeds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all seeds, and their means; of the last site, which differs, too."""
    names = ("accuracy", "honest_weight_lost")
    means = {name: round(fmean(one[name] for one in seeds), 2) for name in names}
    last = [one["by_site"][-1] for one in seeds if one["by_site"][-1] is not None]
    return {**means, "last_site": round(fmean(last), 2), "seeds": seeds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=list(FEDERATIONS), choices=list(FEDERATIONS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    began = time.process_time()
    dataset = data.load(SETTINGS["data"]["name"])
    cells = [(attack, detector) for attack in ATTACKS for detector in DETECTORS]
    rows: dict[str, Any] = {}
    for name in args.only:
        found = []
        for seed in range(args.seeds):
            settings = {**SETTINGS, "seed": seed}
            experiments = [
                from_table({**settings, "attack": ATTACKS[a], "detector": DETECTORS[d]})
                for a, d in cells
            ]
            found.append(Sites.of(experiments, dataset, FEDERATIONS[name]).figures())
        rows[name] = {
            f"{attack} / {detector}": row(seeds)
            for (attack, detector), seeds in zip(cells, zip(*found, strict=True), strict=True)
        }
        for cell, figures in rows[name].items():
            shown = {key: value for key, value in figures.items() if key != "seeds"}
            print(f"{name}: {cell}: {shown}", flush=True)
    seconds = round(time.process_time() - began, 1)
    result = {"settings": SETTINGS, "rows": rows, "cpu_seconds": seconds, **here()}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
