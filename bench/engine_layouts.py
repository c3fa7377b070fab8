"""Why the engine computes as it does: the same round of training, laid out and spread over the cores in other ways.

    python bench/engine_layouts.py [--busy]          two cores, one of them shared with another program if busy
    python bench/engine_layouts.py --device cuda

The experiment is that of `bench/engine.py`. Candidates are alternated and the best of the repeats counts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from unittest import mock

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from engine import Round, seconds, stacked_runs
from fedrfq.engine import engine
from fedrfq.models import stacked
from fedrfq.models.stacked import Batched, Grouped, Layout

_GROUPS = "groups, channels last"
_PRODUCTS = "im2col and products"


class Planes(Grouped):
    """Groups of channels as planes, one after the other in memory."""

    def enter(self, x_KBCHW: Tensor) -> Tensor:
        return super().enter(x_KBCHW).contiguous(memory_format=torch.contiguous_format)


def laid_out(layout: Layout, device: str, one_stack: bool = False) -> Callable[[], None]:
    """A round in that layout; in one stack, whose kernels use all cores, or dealt to a thread a core."""
    round_ = Round(stacked_runs(1, device))
    counts = round_.runs.engines[0].shares.counts
    everyone = sorted(range(len(counts)), key=lambda k: -counts[k])
    if one_stack:
        dealt = mock.patch.object(engine, "_dealt", return_value=[everyone])
    else:
        dealt = nullcontext()

    def work() -> None:
        with mock.patch.dict(stacked.LAYOUTS, {device: layout}), dealt:  # type: ignore[arg-type]
            round_()

    return work


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Another program that keeps one core busy meanwhile."""
    if busy:
        process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    else:
        process = None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--busy", action="store_true", help="with another program on one of the cores"
    )
    args = parser.parse_args()
    layouts: dict[str, Layout] = {
        _GROUPS: Grouped(),
        "groups, planes": Planes(),
        _PRODUCTS: Batched(),
    }
    candidates = {name: laid_out(layout, args.device) for name, layout in layouts.items()}
    if args.device == "cpu":
        candidates[f"{_GROUPS}, one stack"] = laid_out(Grouped(), "cpu", one_stack=True)
    best = dict.fromkeys(candidates, float("inf"))
    with neighbour(args.busy):
        for _ in range(args.repeats + 1):  # the first warms up
            for name, work in candidates.items():
                best[name] = min(best[name], seconds(work))
    if args.device == "cuda":
        used = _PRODUCTS
    else:
        used = _GROUPS
    table = Table("", "s a round", f"× {used}", title=f"{args.device}, best of {args.repeats + 1}")
    for name, took in best.items():
        table.add_row(name, f"{took:.3f}", f"{took / best[used]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
