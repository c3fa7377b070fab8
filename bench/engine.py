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
import time
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from fedrfq import data, experiment
from fedrfq.data.client_data import ClientData
from fedrfq.engine.threads import one_thread
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.fused.layout import ENGINE_LAYOUTS
from fedrfq.models.stacked import LAYOUTS
from fedrfq.prototypes.pooling import Pool

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


def plain_loop(shares: ClientData, threads: int) -> Callable[[], None]:
    """Return a function that trains client after client."""
    models = [StockCNN() for _ in shares.counts]
    owned = [shares.index_KN[k, :count] for k, count in enumerate(shares.counts)]
    globals_JV = torch.rand(10, 24)
    pool = Pool()

    def work() -> None:
        torch.set_num_threads(threads)
        for model, rows in zip(models, owned, strict=True):
            stock_epoch(model, shares.x[rows], shares.y[rows], 4, globals_JV, pool)

    return work


def single_model(shares: ClientData, threads: int) -> Callable[[], None]:
    """Return a function that trains one model on all samples."""
    model = StockCNN()
    globals_JV = torch.rand(10, 24)
    pool = Pool()
    rows = torch.cat([shares.index_KN[k, :count] for k, count in enumerate(shares.counts)])

    def work() -> None:
        torch.set_num_threads(threads)
        stock_epoch(model, shares.x[rows], shares.y[rows], 512, globals_JV, pool)

    return work


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


def matrix_rate() -> float:
    """Return what a matrix product reaches on this machine, in FLOP/s."""
    a = torch.randn(1024, 1024)
    return max(2 * 1024**3 / seconds(lambda: torch.mm(a, a)) for _ in range(20))


def on_cpu(args: argparse.Namespace, console: Console) -> None:
    """Time the engine against the alternatives on the CPU, and print a table."""
    threads = torch.get_num_threads()
    ours = Round(stacked_runs(1, "cpu", args.data))
    shares = ours.runs.engines[0].shares

    candidates = {
        f"engine, {threads} threads": ours,
        f"engine, layer by layer, {threads} threads": layer_by_layer(ours),
    }
    for used in sorted({1, threads}):
        candidates[f"plain loop, {used} threads"] = plain_loop(shares, used)
        candidates[f"single model, batch 512, {used} threads"] = single_model(shares, used)
    best = {name: Best() for name in candidates}
    for _ in range(args.repeats):
        for name, work in candidates.items():
            best[name].repeat(work)
    torch.set_num_threads(threads)
    floor = FLOP_PER_SAMPLE / matrix_rate() * ours.samples
    loop = min(one.seconds for name, one in best.items() if name.startswith("plain"))
    title = f"{ours.samples:,} samples per round, best of {args.repeats}"
    columns = ("candidate", "s per round", "CPU s", "samples/s", "× plain loop")
    table = Table(*columns, title=title)
    rows = {name: (one.seconds, f"{one.cpu_seconds:.3f}") for name, one in best.items()}
    rows["floor: the layers' FLOPs at the matrix rate"] = (floor, "")
    for name, (took, cpu) in rows.items():
        rate = f"{ours.samples / took:,.0f}"
        table.add_row(name, f"{took:.3f}", cpu, rate, f"{loop / took:.2f}")
    console.print(table)


def on_cuda(args: argparse.Namespace, console: Console) -> None:
    """Time one run and several stacks of runs on the GPU, and print a table."""
    table = Table(
        "stacked runs",
        "100 rounds, s",
        "ms per round",
        "samples/s",
        "GiB",
        title="training only, after warm-up",
    )
    for runs in (1, 5, 30, 100):
        torch.cuda.reset_peak_memory_stats()
        ours = Round(stacked_runs(runs, "cuda", args.data))
        for _ in range(3):
            ours()
        rounds = 100 if runs == 1 else 5
        took = min(sum(seconds(ours) for _ in range(rounds)) / rounds for _ in range(args.repeats))
        peak = torch.cuda.max_memory_allocated() / 2**30
        table.add_row(
            str(runs),
            f"{100 * took:.2f}",
            f"{1e3 * took:.1f}",
            f"{ours.samples / took:,.0f}",
            f"{peak:.1f}",
        )
        del ours
        torch.cuda.empty_cache()
    console.print(table)


def main() -> None:
    """Measure on the chosen device."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cpu", choices=("cpu", "cuda"), help="where to train (default: cpu)"
    )
    parser.add_argument("--repeats", type=int, default=5, help="timed repeats (default: 5)")
    parser.add_argument("--data", default="mnist", help="mnist (the default) or mnist5k")
    args = parser.parse_args()
    measure = {"cpu": on_cpu, "cuda": on_cuda}[args.device]
    measure(args, Console())


if __name__ == "__main__":
    main()
