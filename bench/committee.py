"""What agreement costs, on one core.

    python bench/committee.py
    python bench/committee.py --clients 1000 --repeats 3

The first table compares a round of a simulated committee with one of a single trusted server: the
signed uploads of all clients, the agreement of the servers with real Ed25519 signatures, and the
proofs that go to the log, with all servers and clients in one process. The second table shows how
many schedules the fuzzer runs per second. Candidates are alternated; the best of the repeats
counts.
"""

from __future__ import annotations

import argparse
import gc
import os
import time
from collections.abc import Callable
from functools import partial

# Before numpy is imported: it reads them once.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import numpy as np
from rich.console import Console
from rich.table import Table

from fedrfq.committee import (
    AgreedRound,
    Committee,
    CommitteeSettings,
    Direct,
    PreviousRound,
    Simulated,
)
from fedrfq.federation.application import Task
from fedrfq.prototypes.fixed_point import FULL_PRECISION, LIMIT, Uploads
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.simulator.fuzz.schedule_run import draw, run

_CLASSES = 10
_VALUES = 24
# With four servers, in each repeat.
_SCHEDULES = 150


def deciding(
    committee: Committee, settings: CommitteeSettings, sent: Uploads
) -> Callable[[], AgreedRound]:
    """Return a function that lets the committee decide one round."""
    before = PreviousRound.start(settings.task)
    return lambda: committee.decide(settings, 1, before, sent)


def uploads(clients: int) -> Uploads:
    """Return random uploads of all clients."""
    rng = np.random.default_rng(0)
    values_KJV = rng.integers(-LIMIT // 2, LIMIT // 2, (clients, _CLASSES, _VALUES))
    return Uploads(tuple(range(clients)), np.full((clients, _CLASSES), 20), values_KJV)


def best(candidates: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the best processor time of each candidate, in seconds.

    A first repeat, which also imports modules, does not count.
    """
    for work in candidates.values():
        work()
    seconds = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, work in candidates.items():
            began = time.process_time()
            work()
            seconds[name] = min(seconds[name], time.process_time() - began)
    return seconds


def rounds(clients: int, repeats: int) -> Table:
    """Return the table of what a round costs, by committee."""
    task = Task(AdaptiveDetector(), "weighted", FULL_PRECISION, clients, _CLASSES, _VALUES)
    settings = CommitteeSettings(task, 0, "")
    sent = uploads(clients)
    committees: dict[str, Committee] = {"direct": Direct()}
    for servers, faulty in ((4, 0), (4, 1), (7, 2), (10, 3)):
        committees[f"{servers} servers, {faulty} lying"] = Simulated(servers, faulty)
    candidates = {name: deciding(each, settings, sent) for name, each in committees.items()}
    seconds = best(candidates, repeats)
    table = Table(f"a round, {clients} clients", "ms", "messages", "bytes")
    for name, decide in candidates.items():
        report = decide().report
        messages = "–"
        size = "–"
        if report is not None:
            messages = f"{report.messages:,}"
            size = f"{report.length:,}"
        table.add_row(name, f"{1000 * seconds[name]:.1f}", messages, size)
    return table


def schedules(repeats: int) -> Table:
    """Return the table of the fuzzer's speed, by number of servers."""
    events = dict.fromkeys((4, 7, 10), 0)

    def work(servers: int, number: int) -> None:
        events[servers] = sum(run(draw(seed, servers)).events for seed in range(number))

    numbers = {4: _SCHEDULES, 7: _SCHEDULES // 3, 10: _SCHEDULES // 6}
    # As the campaign's processes have it.
    gc.set_threshold(100_000, 20, 20)
    candidates = {str(n): partial(work, n, number) for n, number in numbers.items()}
    seconds = best(candidates, repeats)
    table = Table("fuzzing, one core", "schedules/s", "events/s", "events per schedule")
    for n, number in numbers.items():
        took = seconds[str(n)]
        table.add_row(
            f"{n} servers",
            f"{number / took:,.0f}",
            f"{events[n] / took:,.0f}",
            f"{events[n] / number:,.0f}",
        )
    return table


def main() -> None:
    """Measure, and print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=20, help="clients of a round (default: 20)")
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats (default: 5)")
    args = parser.parse_args()
    console = Console()
    console.print(rounds(args.clients, args.repeats))
    console.print(schedules(args.repeats))


if __name__ == "__main__":
    main()
