"""What noise for privacy costs the public classifier, and how its constants were chosen.

Clients upload class statistics on a public map once, with the noise of an ε (sample-level, unless
`--samples` says how many samples of a client count) at δ = 10⁻⁵, through the mechanism and the
aggregation of a run. No model is trained: accuracies are of the public classifier alone, in %, on
all classes, on those a client holds and on the others; means over clients, then over seeds, with
half of a 95 % interval. The noise comes from a seeded generator here, so that figures can be had
again; a run takes it from the operating system.

- `--choose` tries the classifier's constants, on samples that clients hold back.
- Otherwise every map, classifier and ε is measured on test samples.
- `--picture` draws accuracies against ε from recorded files.

Example:

    python bench/private_map.py --data cifar10 --map resnet18 --out results/privacy/cifar10.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.files.pictures import subplots
from fedrfq.learning.public import denoised_means
from fedrfq.learning.public.classifier import CertifiedStatistics, classifier
from fedrfq.learning.public.exchange import public_task
from fedrfq.models.public_maps import PUBLIC_MAPS, PublicMap
from fedrfq.privacy.accountant import noise_for
from fedrfq.privacy.mechanism import noisy_statistics
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import combine
from fedrfq.studies.intervals import spread
from public_map import Split, split
from testbed import record

DELTA = 1e-5
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
# How a client may classify: with today's classifier, or with one that takes noise out first.
CLASSIFIERS: dict[str, tuple[bool, dict[str, Any]]] = {
    "nearest mean": (False, {"classifier": "nearest"}),
    "LDA": (False, {}),
    "nearest mean, denoised": (True, {"classifier": "nearest"}),
    "LDA, denoised": (True, {}),
}
# What is tried for the best classifier without noise, besides those.
NOISELESS_SHRINKAGES = (0.5, 0.7, 0.9)
# The maps that are tried, by what differs from the first.
MAPS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "centred": {"centred": True},
    "centred, 256 values": {"centred": True, "projection": 256},
    "centred, 128 values": {"centred": True, "projection": 128},
    "centred, 6 bits": {"centred": True, "bits": 6},
    "centred, 4 bits": {"centred": True, "bits": 4},
}
COUNT_SHARES = (0.02, 0.05, 0.2, 0.4)
QUIETS = (0.25, 0.5, 0.75, 0.9)
FLATNESSES = (0.03, 0.1, 0.3, 0.5, 0.8)


def remember_directions() -> None:
    """Decompose each client's covariance once, however often it is classified with."""
    found: dict[bytes, tuple[Tensor, Tensor]] = {}
    decompose = denoised_means.principal_directions

    def remembered(covariance_VV: Tensor) -> tuple[Tensor, Tensor]:
        key = hashlib.sha256(covariance_VV.numpy().tobytes()).digest()
        if key not in found:
            found[key] = decompose(covariance_VV)
        return found[key]

    denoised_means.principal_directions = remembered


def uploads(found: Split, privacy: Privacy, seed: int) -> Uploads:
    """Return what clients upload, with noise if the settings ask for it."""
    exchange = found.exchange
    clients = range(len(found.held_KJ))
    task = public_task(exchange.map_, exchange.classes, privacy)
    assert task is not None
    if task.noise is None:
        return exchange.uploads(clients)
    source = np.random.default_rng(seed).bytes
    rows = [
        noisy_statistics(
            exchange.vectors[k].numpy(),
            exchange.labels[k].numpy(),
            found.held_KJ[k].numpy(),
            task.noise,
            task.precision,
            most=privacy.samples,
            source=source,
        )
        for k in clients
    ]
    return Uploads(
        clients=tuple(clients),
        counts_KJ=np.stack([row.counts_J for row in rows]),
        values_KJV=np.stack([row.values_JV for row in rows]),
        precision=task.precision,
        noise=task.noise,
    )


def figures(found: Split, sent: Uploads, noisy: bool, options: dict[str, Any]) -> dict[str, float]:
    """Return the accuracies of a way to classify, and a client's mean bytes."""
    map_ = replace(found.exchange.map_, **options)
    before = Globals.none(*sent.values_KJV.shape[1:])
    known = CertifiedStatistics.of(
        combine(before, sent, "weighted"), found.exchange.classes, torch.device("cpu"), noisy
    )
    guesses = [
        classifier(map_, known, z_NV, y_N).log_probabilities(found.test_NV).argmax(1)
        for z_NV, y_N in zip(found.exchange.vectors, found.exchange.labels, strict=True)
    ]
    return {
        **found.figures(torch.stack(guesses)),
        "bytes_up": sent.length() / len(sent.clients),
    }


def over_seeds(rows: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the means, half a 95 % interval of that on all classes, and its single figures."""
    row: dict[str, Any] = {key: round(fmean(one[key] for one in rows), 2) for key in rows[0]}
    every = [one["all"] for one in rows]
    found = spread(every)
    if found is not None and found.half is not None:
        row["all_half"] = round(found.half, 2)
    row["all_of_seeds"] = [round(one, 2) for one in every]
    return row


def measured(
    splits: Sequence[Split], privacy: Privacy, ways: dict[str, tuple[bool, dict[str, Any]]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each way to classify what was uploaded once, by its name."""
    sent = [uploads(found, privacy, seed) for seed, found in enumerate(splits)]
    for name, (noisy, options) in ways.items():
        rows = [figures(f, s, noisy, options) for f, s in zip(splits, sent, strict=True)]
        yield name, over_seeds(rows)


def with_noise(epsilon: float, samples: int, **options: Any) -> Privacy:
    """Return the settings of one upload that costs ε, for a sample or a client of so many."""
    unit = "client" if samples else "sample"
    noise = noise_for(epsilon, 1, DELTA)
    return Privacy(noise=noise, delta=DELTA, unit=unit, samples=samples, **options)


def tabled(
    kind: type[PublicMap], dataset: Dataset, settings: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Return the figures of all maps, ways to classify and ε."""
    table: dict[str, Any] = {}
    for name, options in MAPS.items():
        if args.maps and name not in args.maps:
            continue
        map_ = kind(**options)
        splits = [split(map_, dataset, seed, settings) for seed in args.seeds]
        ways = dict(CLASSIFIERS)
        for shrinkage in NOISELESS_SHRINKAGES:
            ways[f"LDA, shrinkage {shrinkage}"] = (False, {"shrinkage": shrinkage})
        table[name] = {"without noise": shown(name, measured(splits, Privacy(), ways))}
        for epsilon in args.epsilons:
            privacy = with_noise(epsilon, args.samples)
            found = shown(f"{name}, ε = {epsilon:g}", measured(splits, privacy, CLASSIFIERS))
            table[name][f"{epsilon:g}"] = found
        if name == "centred" and args.shares:
            table[name]["count share, ε = 1"] = shares(splits, args.samples)
    return table


def shares(splits: Sequence[Split], samples: int) -> dict[str, Any]:
    """Return figures by how much of the protection the numbers of samples take, at ε = 1."""
    only = {"LDA, denoised": CLASSIFIERS["LDA, denoised"]}
    table = {}
    for share in COUNT_SHARES:
        privacy = with_noise(1.0, samples, count_share=share)
        found = shown(f"count share {share:g}", measured(splits, privacy, only))
        table[f"{share:g}"] = found["LDA, denoised"]
    return table


def chosen(
    kind: type[PublicMap], dataset: Dataset, settings: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """Return figures on samples held back, by the constants of the classifier."""
    held_back = {**settings, "validation": 0.2}
    splits = [split(kind(centred=True), dataset, seed, held_back) for seed in args.seeds]
    only = {"LDA, denoised": CLASSIFIERS["LDA, denoised"]}
    table: dict[str, Any] = {}
    usual = (denoised_means._QUIET, denoised_means._FLATNESS)
    tried = [(quiet, usual[1]) for quiet in QUIETS] + [(usual[0], flat) for flat in FLATNESSES]
    for quiet, flatness in dict.fromkeys(tried):
        denoised_means._QUIET = quiet
        denoised_means._FLATNESS = flatness
        name = f"quiet {quiet:g}, flatness {flatness:g}"
        for epsilon in args.epsilons:
            found = shown(name, measured(splits, with_noise(epsilon, args.samples), only))
            table.setdefault(name, {})[f"{epsilon:g}"] = found["LDA, denoised"]
    denoised_means._QUIET, denoised_means._FLATNESS = usual
    return table


def shown(title: str, rows: Iterator[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the rows, after printing each."""
    found = {}
    for name, row in rows:
        print(f"{title}: {name}: {row}", flush=True)
        found[name] = row
    return found


def picture(paths: Sequence[Path], out: Path) -> None:
    """Draw accuracies against ε from recorded files."""
    figure, [axes] = subplots((4.4 * len(paths), 3.2), 1, len(paths))
    for axis, path in zip(axes, paths, strict=True):
        recorded = json.loads(path.read_text())
        rows = recorded["maps"]["centred"]
        for way in ("nearest mean", "LDA", "LDA, denoised"):
            epsilons = sorted((float(key) for key in rows if _number(key)), reverse=True)
            values = [rows[f"{epsilon:g}"][way] for epsilon in epsilons]
            axis.errorbar(
                [str(f"{epsilon:g}") for epsilon in epsilons],
                [row["all"] for row in values],
                [row.get("all_half", 0) for row in values],
                marker="o",
                markersize=3,
                capsize=2,
                label=way,
            )
        best = max(row["all"] for row in recorded["maps"]["centred"]["without noise"].values())
        axis.axhline(best, linestyle=":", color="grey", label="best without noise")
        axis.set_title(recorded["data"]["name"])
        axis.set_xlabel("ε (δ = 10⁻⁵)")
        axis.set_ylabel("accuracy on all classes, %")
        axis.set_ylim(0, 100)
    axes[0].legend(fontsize=8)
    figure.savefig(out, dpi=90)


def _number(key: str) -> bool:
    return key.replace(".", "", 1).isdigit()


def main() -> None:
    """Measure, or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist5k")
    parser.add_argument("--map", default="random", choices=("random", "resnet18"))
    parser.add_argument("--maps", nargs="*", default=[], help="names of MAPS; by default all")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--ways", type=int, default=3)
    parser.add_argument("--spread", type=int, default=1)
    parser.add_argument("--shots", type=int, default=100)
    parser.add_argument("--samples", type=int, default=0, help="protects clients of so many")
    parser.add_argument("--shares", action="store_true", help="try shares of the count, too")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--picture", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    if args.picture:
        picture(args.picture, args.out)
        return
    remember_directions()
    dataset = data.load(args.data)
    partition = {"ways": args.ways, "spread": args.spread, "shots": args.shots}
    settings = {"data": {"name": args.data}, "clients": args.clients, "partition": partition}
    kind = PUBLIC_MAPS[args.map]
    key = "choices" if args.choose else "maps"
    table = (chosen if args.choose else tabled)(kind, dataset, settings, args)
    described = {"data": args.data, "map": args.map, "seeds": args.seeds, **settings}
    record(args.out, {**described, "client_samples": args.samples, key: table})


if __name__ == "__main__":
    main()
