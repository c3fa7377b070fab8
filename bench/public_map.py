"""What statistics on a public feature map teach, against fair controls on the same map.

For each map, number of bits and kind of statistics: accuracy on all classes, on those that a client
holds and on those that it does not, of the public classifier alone (no model is trained), with the
bytes that a client sends and gets. The controls have the same frozen map: a linear head trained by
FedAvg, and a linear probe on everybody's samples pooled. Means over clients and seeds.

Example: python bench/public_map.py --data mnist5k --seeds 5 --out results/public/mnist5k.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.experiment import from_table
from fedrfq.learning.draws import believed_labels, common_test, deal
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors
from fedrfq.models.public_maps import PublicMap, RandomMap, ResNet18Map
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.aggregation import combine
from fedrfq.runs.environment import here

_ROUNDS = (1, 10, 40)


@dataclass(frozen=True)
class Split:
    """One seed's clients on a map, and the samples that all of them are tested on."""

    exchange: PublicExchange
    test_NV: Tensor
    test_y_N: Tensor
    held_KJ: Tensor

    def figures(self, guess_KN: Tensor) -> dict[str, float]:
        """Return accuracies on all, held and other classes: means over clients, in percent."""
        right_KN = (guess_KN == self.test_y_N).double()
        held_KN = self.held_KJ[:, self.test_y_N].double()
        shares = {
            "all": right_KN.mean(1),
            "held": (right_KN * held_KN).sum(1) / held_KN.sum(1),
            "unheld": (right_KN * (1 - held_KN)).sum(1) / (1 - held_KN).sum(1),
        }
        return {name: 100 * float(share.nanmean()) for name, share in shares.items()}


def split(map_: PublicMap, dataset: Dataset, seed: int, settings: dict[str, Any]) -> Split:
    """Return one seed's split."""
    experiment = from_table({**settings, "seed": seed})
    partition = deal(experiment, dataset)
    labels = believed_labels(experiment, partition, [], dataset)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    exchange = PublicExchange.of(map_, partition, labels, dataset, device)
    common = common_test(experiment, partition, dataset)
    classes = np.arange(len(dataset.classes))
    held = np.stack([np.isin(classes, own) for own in partition.classes])
    part = "train" if common.held_out else "test"
    test_y = getattr(dataset, f"{part}_y")[common.test[0]]
    return Split(
        exchange,
        vectors(map_, dataset, part, common.test[0], device),
        torch.from_numpy(test_y).to(device),
        torch.from_numpy(held).to(device),
    )


def exchanged(found: Split, dataset: Dataset) -> dict[str, float]:
    """Return what one exchange of statistics gives, and its bytes for one client."""
    map_ = found.exchange.map_
    task = public_task(map_, len(dataset.classes))
    assert task is not None
    clients = range(len(found.held_KJ))
    uploads = found.exchange.uploads(clients)
    known = combine(Globals.none(task.rows, task.values), uploads, "weighted")
    guesses = [
        made.log_probabilities(found.test_NV).argmax(1)
        for made in found.exchange.classifiers(known)
    ]
    return {
        **found.figures(torch.stack(guesses)),
        "bytes_up": uploads.length() / len(clients),
        "bytes_down": known.length(task.precision),
    }


def fedavg_head(found: Split, rounds: tuple[int, ...]) -> dict[str, dict[str, float]]:
    """Return what a linear head trained by FedAvg on the map reaches after some rounds."""
    values = found.test_NV.shape[1]
    classes = found.held_KJ.shape[1]
    device = found.test_NV.device
    head = torch.zeros(values + 1, classes, device=device)
    rng = torch.Generator().manual_seed(0)
    figures = {}
    for number in range(1, max(rounds) + 1):
        total = torch.zeros_like(head)
        samples = 0
        for z_NV, y_N in zip(found.exchange.vectors, found.exchange.labels, strict=True):
            total += len(y_N) * _epoch(head, z_NV, y_N, rng)
            samples += len(y_N)
        head = total / samples
        if number in rounds:
            guess_N = _scores(head, found.test_NV).argmax(1)
            sent = 4 * head.numel() * number
            measured = found.figures(guess_N.expand(len(found.held_KJ), -1))
            figures[str(number)] = {**measured, "bytes_up": sent, "bytes_down": sent}
    return figures


def _epoch(head: Tensor, z_NV: Tensor, y_N: Tensor, rng: torch.Generator) -> Tensor:
    """Return the head after one pass of SGD with momentum, in batches of 10."""
    own = head.clone().requires_grad_()
    optimiser = torch.optim.SGD([own], lr=0.01, momentum=0.5)
    for batch in torch.randperm(len(y_N), generator=rng).split(10):
        rows = batch.to(z_NV.device)
        optimiser.zero_grad()
        F.cross_entropy(_scores(own, z_NV[rows]), y_N[rows]).backward()
        optimiser.step()
    return own.detach()


def _scores(head: Tensor, z_NV: Tensor) -> Tensor:
    return z_NV @ head[:-1] + head[-1]


def probe(found: Split) -> dict[str, float]:
    """Return what a linear probe on all clients' samples together reaches: nobody could train it.

    Its weight decay is the best of four on a fifth of the samples.
    """
    z_NV = torch.cat(found.exchange.vectors)
    y_N = torch.cat(found.exchange.labels)
    order = torch.randperm(len(y_N), generator=torch.Generator().manual_seed(0)).to(z_NV.device)
    fifth = len(order) // 5
    tuned = {}
    for decay in (1e-4, 1e-3, 1e-2, 1e-1):
        head = _fitted(z_NV[order[fifth:]], y_N[order[fifth:]], found.held_KJ.shape[1], decay)
        guess_N = _scores(head, z_NV[order[:fifth]]).argmax(1)
        tuned[decay] = float((guess_N == y_N[order[:fifth]]).double().mean())
    head = _fitted(z_NV, y_N, found.held_KJ.shape[1], max(tuned, key=lambda decay: tuned[decay]))
    guess_N = _scores(head, found.test_NV).argmax(1)
    return found.figures(guess_N.expand(len(found.held_KJ), -1))


def _fitted(z_NV: Tensor, y_N: Tensor, classes: int, decay: float) -> Tensor:
    head = torch.zeros(z_NV.shape[1] + 1, classes, device=z_NV.device, requires_grad=True)
    optimiser = torch.optim.LBFGS([head], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(_scores(head, z_NV), y_N) + decay * head[:-1].square().sum()
        value.backward()
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    return head.detach()


def maps(
    kind: type[PublicMap], sizes: list[int], mirrored: bool
) -> Iterator[tuple[str, PublicMap]]:
    """Yield the maps and statistics that are tried, with a name each."""
    variants: dict[str, dict[str, Any]] = {}
    for bits in (4, 6, 8, 16):
        variants[f"nearest, {bits} bits"] = {"bits": bits, "classifier": "nearest"}
        variants[f"own covariance, {bits} bits"] = {"bits": bits}
    for projection in (64, 128, 256):
        variants[f"own covariance, {projection} values"] = {"projection": projection}
        variants[f"federation's covariance, {projection} values"] = {
            "projection": projection,
            "bits": 16,
            "moments": "full",
        }
    variants["federation's covariance, 12 bits"] = {"bits": 12, "moments": "full"}
    variants["federation's covariance, 16 bits"] = {"bits": 16, "moments": "full"}
    for prefix, images in image_options(sizes, mirrored).items():
        for name, options in variants.items():
            yield prefix + name, kind(**options, **images)


def image_options(sizes: list[int], mirrored: bool) -> dict[str, dict[str, Any]]:
    """Return what a map does to images, by the beginning of its name; of `random` nothing."""
    if not sizes:
        return {"": {}}
    if mirrored:
        return {f"{s}×{s} mirrored, ": {"size": s, "mirrored": True} for s in sizes}
    return {f"{s}×{s}, ": {"size": s} for s in sizes}


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the means over seeds, and with _std the deviations of those over seeds."""
    found = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
    spread = {f"{key}_std": float(np.std([row[key] for row in rows])) for key in ("all", "unheld")}
    return {**found, **spread}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--map", default="random", choices=("random", "resnet18"))
    parser.add_argument("--sizes", type=int, nargs="*", default=[])
    parser.add_argument("--mirrored", action="store_true", help="resnet18's vectors mirrored")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--set", nargs="*", default=[], help="partition.ways=3 and so on")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    settings: dict[str, Any] = {"data": {"name": args.data}, "clients": args.clients}
    for assignment in args.set:
        key, value = assignment.split("=")
        section, name = key.split(".")
        settings.setdefault(section, {})[name] = json.loads(value)
    dataset = data.load(args.data)
    kind: type[PublicMap] = {"random": RandomMap, "resnet18": ResNet18Map}[args.map]
    result: dict[str, Any] = {"settings": settings, "map": args.map, "seeds": args.seeds, **here()}
    began = time.perf_counter()
    rows: dict[str, dict[str, float]] = {}
    for name, map_ in maps(kind, args.sizes, args.mirrored):
        splits = [split(map_, dataset, seed, settings) for seed in range(args.seeds)]
        rows[name] = mean([exchanged(found, dataset) for found in splits])
        print(name, {key: round(value, 1) for key, value in rows[name].items()}, flush=True)
        if name.endswith("own covariance, 8 bits"):
            prefix = name.removesuffix("own covariance, 8 bits")
            heads = [fedavg_head(found, _ROUNDS) for found in splits]
            for number in heads[0]:
                rows[f"{prefix}FedAvg of a linear head, {number} rounds"] = mean(
                    [head[number] for head in heads]
                )
            rows[f"{prefix}probe on pooled samples"] = mean([probe(found) for found in splits])
            for label in list(rows)[-4:]:
                print(label, {key: round(v, 1) for key, v in rows[label].items()}, flush=True)
    result["rows"] = rows
    result["seconds"] = round(time.perf_counter() - began, 1)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
