"""How fast the engine trains, compared with what else one could run on the same machine.

    python bench/engine.py                   two cores: engine, plain loop, single model
    python bench/engine.py --data mnist5k    the same without a download: clients share samples
    python bench/engine.py --device cuda     a GPU: 100 rounds of one run, and stacked seeds

The experiment is the paper's on MNIST (run `fedrfq data get mnist` first): 20 clients, 3 ± 2
classes, 100 shots, batch 4, the CNN with its dropout, FedRFQ's loss. The engine trains with fused
stages, and with layers one after the other. The plain loop trains client after client; the single
model trains on all samples at batch 512. Candidates are alternated and the best of the repeats
counts, because machines are noisy; CPU seconds are of all cores. Only training is timed, on real
samples; padding does not count.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

from fedrfq import data, experiment
from fedrfq.data.client_data import ClientData
from fedrfq.engine.threads import one_thread, threads
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.fused.layout import ENGINE_LAYOUTS
from fedrfq.models.stacked import LAYOUTS
from fedrfq.prototypes.pooling import Pool
from testbed import arguments, console, record

# Forward and backward pass of the CNN.
FLOP_PER_SAMPLE = 2.6e6


def stacked_runs(seeds: int, device: str, name: str = "mnist") -> RoundLoop:
    """Return the experiment stacked with `seeds` seeds."""
    sets = [f"data.name={name}", "partition.shots=100"]
    if name == "mnist5k":
        sets.append("partition.share=true")
    experiments = [experiment.load(sets=sets, seed=seed) for seed in range(seeds)]
    return RoundLoop(experiments, data.load(name), torch.device(device))


class Round:
    """The training of one round by the engine, and nothing else."""

    def __init__(self, runs: RoundLoop) -> None:
        self.runs = runs
        # After round 1, so that there are global prototypes.
        self.state = runs.advance(runs.start())[0]
        self.samples = sum(sum(engine.shares.counts) for engine in runs.engines)

    @one_thread()
    def __call__(self) -> None:
        runs = self.runs
        state = self.state
        (clients,) = runs.cohorts
        (engine,) = runs.engines
        rows = range(len(engine.shares.counts))
        guide = runs.guide(state, clients, state.params[0])
        keys = runs.keys(state.round, clients)
        params, _ = engine.train(state.params[0], guide, keys, rows)
        self.state = replace(state, round=state.round + 1, params=(params,))
        if runs.device.type == "cuda":
            torch.cuda.synchronize()


class StockCNN(nn.Module):
    """The paper's CNN in stock PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.drop(self.conv2(x)), 2))
        c = F.relu(self.fc1(x.flatten(1)))
        return c, self.fc2(F.dropout(c))


def stock_epoch(
    model: nn.Module, x: Tensor, y: Tensor, batch: int, globals_JV: Tensor, pool: Pool
) -> None:
    """Train one client for one epoch, as anyone would write it."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    for rows in torch.randperm(len(x)).split(batch):
        c, logits = model(x[rows])
        distance = torch.linalg.vector_norm(pool(c) - globals_JV[y[rows]], dim=-1).mean()
        optimiser.zero_grad()
        (F.cross_entropy(logits, y[rows]) + distance).backward()
        optimiser.step()


def plain_loop(shares: ClientData) -> Callable[[], None]:
    """Return a function that trains client after client."""
    models = [StockCNN() for _ in shares.counts]
    owned = [shares.index_KN[k, :count] for k, count in enumerate(shares.counts)]
    globals_JV = torch.rand(10, 24)
    pool = Pool()

    def work() -> None:
        for model, rows in zip(models, owned, strict=True):
            stock_epoch(model, shares.x[rows], shares.y[rows], 4, globals_JV, pool)

    return work


def single_model(shares: ClientData) -> Callable[[], None]:
    """Return a function that trains one model on all samples."""
    model = StockCNN()
    globals_JV = torch.rand(10, 24)
    pool = Pool()
    rows = torch.cat([shares.index_KN[k, :count] for k, count in enumerate(shares.counts)])

    def work() -> None:
        stock_epoch(model, shares.x[rows], shares.y[rows], 512, globals_JV, pool)

    return work


def on_threads(number: int, work: Callable[[], None]) -> Callable[[], None]:
    """Return the work with so many threads."""

    def limited() -> None:
        with threads(number):
            work()

    return limited


def seconds(work: Callable[[], None]) -> float:
    """Return how long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def layer_by_layer(work: Callable[[], None]) -> Callable[[], None]:
    """Return the engine's work without fused stages."""

    def slower() -> None:
        with mock.patch.dict(ENGINE_LAYOUTS, LAYOUTS):  # type: ignore[arg-type]
            work()

    return slower


class Best:
    """The least time of several repeats, by the clock and of all cores."""

    def __init__(self) -> None:
        self.seconds = float("inf")
        self.cpu_seconds = float("inf")

    def repeat(self, work: Callable[[], None]) -> None:
        """Time it once more."""
        began = time.process_time()
        self.seconds = min(self.seconds, seconds(work))
        self.cpu_seconds = min(self.cpu_seconds, time.process_time() - began)


def alternated(works: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, Best]:
    """Time all of these in turns, so that a busy hour of the machine falls on each of them."""
    best = {name: Best() for name in works}
    for _ in range(repeats):
        for name, work in works.items():
            best[name].repeat(work)
    return best


def matrix_rate() -> float:
    """Return what a matrix product reaches on this machine, in FLOP/s."""
    a = torch.randn(1024, 1024)
    return max(2 * 1024**3 / seconds(lambda: torch.mm(a, a)) for _ in range(20))


def candidates(name: str, cores: int) -> tuple[dict[str, Callable[[], None]], int]:
    """Return what is compared, with one thread and with all, and the samples of a round."""
    found: dict[str, Callable[[], None]] = {}
    samples = 0
    for used in sorted({1, cores}):
        # An engine has as many threads as there are when it is made.
        with threads(used):
            ours = Round(stacked_runs(1, "cpu", name))
        shares = ours.runs.engines[0].shares
        samples = ours.samples
        works = {
            "engine": ours,
            "engine, layer by layer": layer_by_layer(ours),
            "plain loop": plain_loop(shares),
            "single model, batch 512": single_model(shares),
        }
        for label, work in works.items():
            found[f"{label}, {used} threads"] = on_threads(used, work)
    return found, samples


def on_cpu(args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Time the engine against the alternatives on the CPU; return a table, and what to record."""
    works, samples = candidates(args.data, torch.get_num_threads())
    best = alternated(works, args.repeats)
    loops = [one for name, one in best.items() if name.startswith("plain")]
    loop = min(one.seconds for one in loops)
    loop_cpu = min(one.cpu_seconds for one in loops)
    columns = ("candidate", "s per round", "samples/s", "× plain loop", "CPU s", "× plain loop")
    table = Table(*columns, title=f"{samples:,} samples per round, best of {args.repeats}")
    for name, one in best.items():
        rate = f"{samples / one.seconds:,.0f}"
        by_cpu = (f"{one.cpu_seconds:.3f}", f"{loop_cpu / one.cpu_seconds:.2f}")
        table.add_row(name, f"{one.seconds:.3f}", rate, f"{loop / one.seconds:.2f}", *by_cpu)
    floor = FLOP_PER_SAMPLE / matrix_rate() * samples
    table.add_row(
        "floor: the layers' FLOPs at the matrix rate",
        f"{floor:.3f}",
        f"{samples / floor:,.0f}",
        f"{loop / floor:.2f}",
    )
    rows = {name: {"s": one.seconds, "cpu_s": one.cpu_seconds} for name, one in best.items()}
    return table, {"samples": samples, "floor_s": floor, "rows": rows}


def on_cuda(args: argparse.Namespace) -> tuple[Table, dict[str, Any]]:
    """Time one run and several stacks of runs on the GPU; return a table, and what to record."""
    columns = ("stacked runs", "100 rounds, s", "ms per round", "samples/s", "GiB")
    table = Table(*columns, title="training only, after warm-up")
    rows = []
    for runs in (1, 5, 30, 100):
        torch.cuda.reset_peak_memory_stats()
        ours = Round(stacked_runs(runs, "cuda", args.data))
        for _ in range(3):
            ours()
        rounds = 100 if runs == 1 else 5
        took = min(sum(seconds(ours) for _ in range(rounds)) / rounds for _ in range(args.repeats))
        rate = ours.samples / took
        gib = torch.cuda.max_memory_allocated() / 2**30
        table.add_row(
            str(runs), f"{100 * took:.2f}", f"{1e3 * took:.1f}", f"{rate:,.0f}", f"{gib:.1f}"
        )
        rows.append({"runs": runs, "s": took, "samples": ours.samples, "gib": gib})
        del ours
        torch.cuda.empty_cache()
    return table, {"device_name": torch.cuda.get_device_name(), "rows": rows}


def main() -> None:
    """Measure on the chosen device, print a table and record it."""
    parser = arguments(__doc__, "speed/engine.json")
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="where to train (default: cpu)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats (default: 5)")
    parser.add_argument("--data", default="mnist", help="mnist (the default) or mnist5k")
    args = parser.parse_args()
    table, found = {"cpu": on_cpu, "cuda": on_cuda}[args.device](args)
    console().print(table)
    load = os.getloadavg()[0]
    record(args.out, {"torch": torch.__version__, "load": load, "repeats": args.repeats, **found})


if __name__ == "__main__":
    main()
