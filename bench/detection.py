"""How long the detectors take to judge a round's uploads, on one core.

    python bench/detection.py --clients 1000 --classes 10 --values 255
    python bench/detection.py --clients 20 --values 24

Every client sends every class. One in ten lies, by sending its prototypes with the sign flipped; detectors that remember
have seen three such rounds before, but for the row "first round", in which there is more to find out. The last row is all
that a server does: check, clip, judge, aggregate. Candidates are alternated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

os.environ |= dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"
)  # numpy reads them once

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import DETECTORS, Detector, State
from fedrfq.robust.detectors.adaptive import AdaptiveDetector

_BEFORE = 3  # rounds
_SPREAD = 0.15  # of a class's prototypes about its centre, as late in training


def uploads(clients: int, classes: int, values: int) -> tuple[Globals, Uploads]:
    rng = np.random.default_rng(0)
    centres_JV = rng.uniform(0, 1, (classes, values))
    values_KJV = centres_JV + _SPREAD * rng.standard_normal((clients, classes, values))
    values_KJV[: clients // 10] *= -1
    whole_JV, whole_KJV = (
        np.rint(floats * 2**FRACTION_BITS).astype(np.int64) for floats in (centres_JV, values_KJV)
    )
    sent = Uploads(tuple(range(clients)), np.full((clients, classes), 100), whole_KJV)
    return Globals(np.ones(classes, np.bool_), whole_JV), sent


def judging(
    detector: Detector, rounds: int, globals_: Globals, sent: Uploads
) -> Callable[[], None]:
    state = after(detector, rounds, globals_, sent)

    def work() -> None:
        detector.judge(state, globals_, sent)

    return work


def deciding(detector: Detector, globals_: Globals, sent: Uploads) -> Callable[[], None]:
    state = after(detector, _BEFORE, globals_, sent)

    def work() -> None:
        decide(detector, "weighted", state, globals_, sent)

    return work


def after(detector: Detector, rounds: int, globals_: Globals, sent: Uploads) -> State:
    state = detector.start(len(sent.clients))
    for _ in range(rounds):
        state, _ = detector.judge(state, globals_, sent)
    return state


def milliseconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--values", type=int, default=255)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    round_ = uploads(args.clients, args.classes, args.values)
    candidates = {
        name: judging(detector(), _BEFORE, *round_) for name, detector in DETECTORS.items()
    }
    candidates["adaptive, first round"] = judging(AdaptiveDetector(), 0, *round_)
    candidates["adaptive, the whole decision"] = deciding(AdaptiveDetector(), *round_)
    took: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(args.repeats):
        for name, work in candidates.items():
            took[name].append(milliseconds(work))
    title = f"{args.clients} clients × {args.classes} classes × {args.values} values, {args.repeats} times"
    table = Table("", "best, ms", "median, ms", title=title)
    for name, times in took.items():
        table.add_row(name, f"{min(times):.2f}", f"{median(times):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
