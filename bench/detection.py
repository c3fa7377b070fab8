"""How long the detectors take to judge the uploads of a round, on one core.

    python bench/detection.py --clients 1000 --classes 10 --values 255
    python bench/detection.py --clients 20 --values 24

Every client sends every class. One in ten lies by sending its prototypes with the sign flipped.
Detectors with a memory have seen three such rounds before, except in the row "first round", where
there is more to find out. The last row is all that a server does: check, clip, judge, aggregate.
Candidates are alternated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

# Before numpy is imported: it reads them once.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.detectors import DETECTORS, Detector, State
from fedrfq.robust.detectors.adaptive import AdaptiveDetector

# Rounds that detectors with a memory have seen.
_EARLIER_ROUNDS = 3
# Of a class's prototypes around its centre, as late in training.
_SPREAD = 0.15


def uploads(clients: int, classes: int, values: int) -> tuple[Globals, Uploads]:
    """Return global prototypes and a round's uploads, of which a tenth are lies."""
    rng = np.random.default_rng(0)
    centres_JV = rng.uniform(0, 1, (classes, values))
    values_KJV = centres_JV + _SPREAD * rng.standard_normal((clients, classes, values))
    values_KJV[: clients // 10] *= -1
    counts_KJ = np.full((clients, classes), 100)
    sent = Uploads(tuple(range(clients)), counts_KJ, fixed_point(values_KJV))
    return Globals(np.ones(classes, np.bool_), fixed_point(centres_JV)), sent


def fixed_point(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the values as fixed-point integers."""
    return np.rint(values * 2**FRACTION_BITS).astype(np.int64)


def judging(
    detector: Detector, rounds: int, globals_: Globals, sent: Uploads
) -> Callable[[], None]:
    """Return a function that judges the uploads after `rounds` earlier rounds."""
    state = after(detector, rounds, globals_, sent)

    def work() -> None:
        detector.judge(state, globals_, sent)

    return work


def deciding(detector: Detector, globals_: Globals, sent: Uploads) -> Callable[[], None]:
    """Return a function that makes a server's whole decision."""
    state = after(detector, _EARLIER_ROUNDS, globals_, sent)

    def work() -> None:
        decide(detector, "weighted", state, globals_, sent)

    return work


def after(detector: Detector, rounds: int, globals_: Globals, sent: Uploads) -> State:
    """Return the detector's state after it has judged the same uploads `rounds` times."""
    state = detector.start(len(sent.clients))
    for _ in range(rounds):
        state, _ = detector.judge(state, globals_, sent)
    return state


def milliseconds(work: Callable[[], None]) -> float:
    """Return how long `work` takes."""
    began = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - began)


def main() -> None:
    """Time all detectors and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clients", type=int, default=1000, help="clients of the round (default: 1000)"
    )
    parser.add_argument("--classes", type=int, default=10, help="classes (default: 10)")
    parser.add_argument(
        "--values", type=int, default=255, help="values of a prototype (default: 255)"
    )
    parser.add_argument("--repeats", type=int, default=10, help="timed repeats (default: 10)")
    args = parser.parse_args()
    round_ = uploads(args.clients, args.classes, args.values)
    candidates = {
        name: judging(detector(), _EARLIER_ROUNDS, *round_) for name, detector in DETECTORS.items()
    }
    candidates["adaptive, first round"] = judging(AdaptiveDetector(), 0, *round_)
    candidates["adaptive, the whole decision"] = deciding(AdaptiveDetector(), *round_)
    took: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(args.repeats):
        for name, work in candidates.items():
            took[name].append(milliseconds(work))
    shape = f"{args.clients} clients × {args.classes} classes × {args.values} values"
    title = f"{shape}, {args.repeats} times"
    table = Table("detector", "best, ms", "median, ms", title=title)
    for name, times in took.items():
        table.add_row(name, f"{min(times):.2f}", f"{median(times):.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
