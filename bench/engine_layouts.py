"""Compare other ways to lay out the same round of training and to spread it over the cores.

    python bench/engine_layouts.py [--busy]   on two cores, one of them shared if busy
    python bench/engine_layouts.py --device cuda

These figures are the reason why the engine computes as it does. The experiment is that of
`bench/engine.py`. Candidates are alternated and the best of the repeats counts.
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
from fedrfq.engine.engine import Engine
from fedrfq.models.fused.layout import ENGINE_LAYOUTS
from fedrfq.models.stacked import Batched, Grouped, Layout

_GROUPS = "groups, channels last"
_PRODUCTS = "im2col and products"


class Planes(Grouped):
    """Groups of channels stored as planes, one after the other in memory."""

    def enter(self, x_KBCHW: Tensor) -> Tensor:
        """Return the batch with contiguous channels."""
        return super().enter(x_KBCHW).contiguous(memory_format=torch.contiguous_format)


def laid_out(layout: Layout, device: str, one_stack: bool = False) -> Callable[[], None]:
    """Return a round of training in that layout.

    It is one stack, whose kernels use all cores, or is dealt to one thread per core.
    """
    round_ = Round(stacked_runs(1, device))
    counts = round_.runs.engines[0].shares.counts
    everyone = sorted(range(len(counts)), key=lambda k: -counts[k])
    dealing = nullcontext()
    if one_stack:
        dealing = mock.patch.object(Engine, "_dealt", return_value=[everyone])

    def work() -> None:
        with mock.patch.dict(ENGINE_LAYOUTS, {device: layout}), dealing:  # type: ignore[arg-type]
            round_()

    return work


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Keep one core busy with another program during the block, if `busy`."""
    if not busy:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main() -> None:
    """Time all layouts and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="where to train (default: cpu)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds (default: 5)")
    parser.add_argument(
        "--busy", action="store_true", help="keep one core busy with another program"
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
        # The first round warms up; it cannot be the best.
        for _ in range(args.repeats + 1):
            for name, work in candidates.items():
                best[name] = min(best[name], seconds(work))
    # What the engine uses on this device, as the reference.
    used = {"cpu": _GROUPS, "cuda": _PRODUCTS}[args.device]
    title = f"{args.device}, best of {args.repeats + 1}"
    table = Table("layout", "s per round", f"× {used}", title=title)
    for name, took in best.items():
        table.add_row(name, f"{took:.3f}", f"{took / best[used]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
