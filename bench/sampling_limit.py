"""How the default limit of the detector `sampling` was chosen, on seeds that no study uses.

Scores of honest uploads on a public map, for several partitions: which share of them each limit
would drop in peace, and which share of swapping attackers it would catch. No model is trained.

Example: python bench/sampling_limit.py --out results/public/sampling-limit.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.experiment import from_table
from fedrfq.learning.draws import believed_labels, deal
from fedrfq.learning.public.exchange import PublicExchange
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.attacks import Scene
from fedrfq.robust.attacks.swap import Swap
from fedrfq.robust.detectors.sampling import Sampling

SEEDS = range(100, 108)
LIMITS = (300, 400, 500, 600, 700, 800, 900, 1000, 1500)
_CLIENTS = 20
_DIRICHLET = {"name": "dirichlet", "samples": 100, "test_samples": 10}
PARTITIONS: dict[str, dict[str, Any]] = {
    "3 ± 2 classes": {},
    "Dirichlet 1": {**_DIRICHLET, "alpha": 1.0},
    "Dirichlet 0.5": {**_DIRICHLET, "alpha": 0.5},
    "Dirichlet 0.1": {**_DIRICHLET, "alpha": 0.1},
}


def uploads(dataset: Dataset, partition: dict[str, Any], seed: int) -> Uploads:
    """Return what all clients upload when they are honest."""
    settings = {"data": {"name": dataset.name}, "clients": _CLIENTS, "seed": seed}
    experiment = from_table({**settings, "partition": partition, "public": {"name": "random"}})
    dealt = deal(experiment, dataset)
    labels = believed_labels(experiment, dealt, [], dataset)
    device = torch.device("cpu")
    exchange = PublicExchange.of(experiment.public, dealt, labels, dataset, device)
    return exchange.uploads(range(_CLIENTS))


def scores(sent: Uploads) -> Ints:
    """Return the detector's scores, which do not depend on its limit."""
    nothing = Globals.none(*sent.values_KJV.shape[1:])
    _, verdict = Sampling().judge({}, nothing, sent)
    return verdict.score_K


def swapped(honest: Uploads, attackers: int, seed: int) -> Ints:
    """Return the scores of attackers who swap their classes."""
    rng = np.random.default_rng(seed)
    malicious_K = np.zeros(_CLIENTS, np.bool_)
    malicious_K[rng.choice(_CLIENTS, attackers, replace=False)] = True
    nothing = Globals.none(*honest.values_KJV.shape[1:])
    scene = Scene(honest, malicious_K, nothing, Sampling(), {})
    return scores(Swap(clients=attackers).corrupt(scene, rng))[malicious_K]


def shares(found: list[Ints]) -> dict[str, float]:
    """Return which share of the scores is above each limit, in percent."""
    together = np.concatenate(found)
    return {str(limit): round(100 * float((together > limit).mean()), 2) for limit in LIMITS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    dataset = data.load(args.data)
    dropped = {}
    caught: dict[str, dict[str, float]] = {}
    for name, partition in PARTITIONS.items():
        honest = [uploads(dataset, partition, seed) for seed in SEEDS]
        dropped[name] = shares([scores(sent) for sent in honest])
        if not partition:
            for attackers in (2, 4, 6):
                pairs = zip(honest, SEEDS, strict=True)
                found = [swapped(sent, attackers, seed) for sent, seed in pairs]
                caught[f"{attackers} attackers"] = shares(found)
    result = {
        "data": args.data,
        "seeds": list(SEEDS),
        "honest uploads dropped in peace, %": dropped,
        "swapping attackers dropped, 3 ± 2 classes, %": caught,
    }
    text = json.dumps(result, indent=2, ensure_ascii=False)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
