"""Two ways to send fewer bytes, tried on samples held back: error feedback, and sending on change.

- *Error feedback* (Seide et al., INTERSPEECH 2014): a client adds to its class means what rounding
  took from the last ones, so that errors of a coarse grid cancel out over the rounds.
- *Upload on change* (after LAG; Chen et al., NeurIPS 2018): a client sends a class again only when
  its mean is farther from the one it sent last than a share of its length. Servers go on with the
  last one, so they have to remember everybody's; or they forget it, and a class's centre is the
  mean of those who sent it.

Neither is in the package. All variants are of fedrfq-coded, on the same seeds, from 100 on. A
quarter of every client's training samples is held back, and clients are tested on these.

Example: python bench/fewer_bytes.py --data femnist --out results/variant/fewer-bytes-femnist.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrfq import data
from fedrfq.data import Dataset
from fedrfq.experiment import Experiment, from_table
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.stacked import Params
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Uploads
from fedrfq.runs.environment import here
from fedrfq.studies.intervals import difference

FIRST_SEED = 100
COLUMNS = ("accuracy_mean", "prototype_accuracy_mean")
PARTITIONS: dict[str, dict[str, Any]] = {
    "mnist5k": {},
    "femnist": {"ways": 20, "spread": 5, "shots": 24, "share": True},
}


@dataclass(frozen=True)
class Variant:
    """How a client sends its class means."""

    bits: int = 8
    feedback: bool = False
    change: float = 0.0  # the share of a mean's length by which it must have moved to be sent again
    remembered: bool = True  # by the servers


VARIANTS = {
    "8 bits": Variant(),
    "6 bits": Variant(6),
    "4 bits": Variant(4),
    "4 bits, error feedback": Variant(4, feedback=True),
    "8 bits, on a change of 0.1": Variant(change=0.1),
    "8 bits, on a change of 0.2": Variant(change=0.2),
    "8 bits, on a change of 0.4": Variant(change=0.4),
    "8 bits, on a change of 0.2, forgotten": Variant(change=0.2, remembered=False),
    "8 bits, on a change of 0.4, forgotten": Variant(change=0.4, remembered=False),
}


class SparingLoop(RoundLoop):
    """A round loop whose clients spare bytes; all of them take part in every round."""

    def __init__(self, experiments: Sequence[Experiment], dataset: Dataset, way: Variant) -> None:
        super().__init__(experiments, dataset, torch.device("cpu"))
        self.way = way
        self.lost_KJV = torch.zeros(())
        self.last_KJV: NDArray[np.int64] | None = None
        self.bytes = [0.0 for _ in experiments]

    def _prototypes(
        self, number: int, params: tuple[Params, ...], who: list[list[int]]
    ) -> list[Uploads]:
        (engine,) = self.engines
        means_KJV, counts_KJ = engine.class_means(params[0], len(self.dataset.classes))
        wanted_KJV = means_KJV + self.lost_KJV
        precision = self.experiments[0].method.precision()
        values_KJV, _, _ = quantise(wanted_KJV, precision)
        if self.way.feedback:
            self.lost_KJV = wanted_KJV - torch.from_numpy(values_KJV / 2.0**FRACTION_BITS).float()
        counts = counts_KJ.numpy()
        sent_KJ = (counts > 0) & self._moved(values_KJV)
        if self.last_KJV is not None:
            values_KJV = np.where(sent_KJ[..., None], values_KJV, self.last_KJV)
        self.last_KJV = values_KJV
        uploads = []
        for r, clients in enumerate(who):
            rows = self.rows(r, self.cohorts[0])
            known = Uploads(tuple(clients), counts[rows], values_KJV[rows], precision=precision)
            sent = replace(known, counts_KJ=counts[rows] * sent_KJ[rows])
            self.bytes[r] += sent.length() / len(clients) / self.experiments[r].rounds
            uploads.append(known if self.way.remembered else sent)
        return uploads

    def _moved(self, values_KJV: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which class means have moved far enough since they were sent."""
        if self.last_KJV is None:
            return np.ones(values_KJV.shape[:2], np.bool_)
        away_KJ = np.linalg.norm(values_KJV - self.last_KJV, axis=2)
        moved: NDArray[np.bool_] = away_KJ >= self.way.change * np.linalg.norm(values_KJV, axis=2)
        return moved


def tried(name: str, way: Variant, seeds: int, rounds: int) -> dict[str, list[float]]:
    """Return the accuracies after the last round, and a client's bytes a round, of each seed."""
    experiments = [
        from_table(
            {
                "rounds": rounds,
                "checkpoint": rounds,
                "seed": FIRST_SEED + seed,
                "validation": 0.25,
                "data": {"name": name},
                "partition": PARTITIONS[name],
                "method": {"name": "fedrfq-coded", "bits": way.bits},
            }
        )
        for seed in range(seeds)
    ]
    loop = SparingLoop(experiments, data.load(name), way)
    state = loop.start()
    for _ in range(rounds):
        state, outcomes = loop.advance(state)
    records = [asdict(outcome.record) for outcome in outcomes]
    found = {column: [record[column] for record in records] for column in COLUMNS}
    return {**found, "bytes_up": loop.bytes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist5k", choices=list(PARTITIONS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rows: dict[str, Any] = {}
    if args.out and args.out.is_file():
        rows = json.loads(args.out.read_text())["rows"]
    for label in args.only:
        found = tried(args.data, VARIANTS[label], args.seeds, args.rounds)
        first = rows.get("8 bits", found)
        rows[label] = dict(found)
        shown = [f"{fmean(found['bytes_up']):.0f} bytes"]
        for column in COLUMNS:
            apart = difference(found[column], first[column])
            assert apart is not None
            rows[label][f"{column}_less_8_bits"] = [apart.mean, apart.half]
            shown.append(f"{fmean(found[column]):.2f} ({apart.mean:+.2f} ± {apart.half or 0:.2f})")
        print(f"{label}:", ", ".join(shown), flush=True)
    about = {"data": args.data, "partition": PARTITIONS[args.data], "rounds": args.rounds}
    result = {**about, "rows": rows, **here()}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
