"""Local training of all clients at once: stacked parameters, one program, no client waiting for another.

Clients are sorted by their number of steps, so those still training are always the first rows: a step computes just
these and pads nothing but the last batch of a client, whose missing samples have weight 0. On a CPU the clients are
dealt to one thread per core, each with single-threaded kernels (clients are independent, so threads have nothing to
wait for). On CUDA a step of a given width becomes a CUDA graph after its first runs.

The last bits of what a kernel computes depend on the width of the stack and on the number of threads. Clients that train
`alone` are never stacked, and their kernels have one thread: each gets the bytes it would get on a machine of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.errors import UserError
from fedrfq.files.options import option
from fedrfq.methods.method import Batch, Guide, Method
from fedrfq.models.model import Model
from fedrfq.models.stacked import LAYOUTS, Params, TrainingStep, trained
from fedrfq.prototypes.class_means import class_means
from fedrfq.prototypes.pooling import Pool

T = TypeVar("T")
_CPU_CLIENTS = (
    64  # in a shard at most: bounds the memory of a step, and is past where larger stacks gain
)
_CUDA_CLIENTS = 4096
_EVALUATED_AT_ONCE = {
    "cpu": 16,
    "cuda": 64,
}  # samples a client; on a CPU more do not stay in its cache
_GRAPHS = 24  # CUDA graphs kept at most; further widths run eagerly
_EAGER_RUNS = 3  # steps of one width before it is captured: they also warm up the libraries
_MOST_RATE = 1e38  # float32 holds it
_CROP = 4  # pixels of padding for random crops


@dataclass(frozen=True)
class TrainingOptions:
    """Local SGD with momentum, reset every round."""

    epochs: int = option(1, "Passes of a client over its data in a round", "1 or more")
    batch_size: int = option(4, "Samples in a step of SGD", "1 or more")
    lr: float = option(0.01, "Learning rate of SGD", f"above 0, at most {_MOST_RATE:g}")
    momentum: float = option(
        0.5, "Momentum of SGD, which starts at 0 in every round", "0 to below 1"
    )
    alone: bool = option(
        False,
        "Train each client by itself on one thread: slower, but bit-identical on every machine",
    )

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 1:
            raise UserError("train.epochs and train.batch_size must be at least 1")
        if not 0 < self.lr <= _MOST_RATE or not 0 <= self.momentum < 1:
            found = f"not {self.lr} and {self.momentum}"
            raise UserError(
                f"train.lr must be above 0 and at most {_MOST_RATE:g}, train.momentum in [0, 1), {found}"
            )

    @contextmanager
    def kernels(self) -> Iterator[None]:
        """Kernels have one thread in the block if clients train alone; else all there are."""
        before = torch.get_num_threads()
        if self.alone:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if self.alone:
                torch.set_num_threads(before)


@dataclass(frozen=True)
class Program:
    """What is computed for every sample: clients of one program differ in numbers, not in code."""

    model: Model
    method: Method
    pool: Pool
    train: TrainingOptions

    def batch(self, params: Params, x: Tensor, y_KB: Tensor, step: TrainingStep) -> Batch:
        c_KBD, logits_KBJ = self.model.forward(LAYOUTS[x.device.type], params, x, step)
        return Batch(logits_KBJ, c_KBD, self.pool(c_KBD), y_KB, step.weight_KB, params)

    def epochs(self) -> int:
        return self.method.epochs(self.train.epochs)

    def phases(self) -> list[list[float]] | None:
        """For each pass over the data 1 or 0: whether what is below the decision layer trains, and whether that does."""
        phases = [
            [float(self.method.trains(epoch, head)) for head in (False, True)]
            for epoch in range(self.epochs())
        ]
        if any(0.0 in phase for phase in phases):
            return phases
        return None


@dataclass
class _Plan:
    """A round's schedule for some clients: for every step and client which samples, which are real, what is dropped."""

    index_SKB: Tensor
    weight_SKB: Tensor
    keep_SKBU: Tensor | None
    crop_SKB3: Tensor | None
    phase_SK2: Tensor | None

    def tensors(self) -> list[Tensor]:
        optional = (self.keep_SKBU, self.crop_SKB3, self.phase_SK2)
        return [self.index_SKB, self.weight_SKB, *(t for t in optional if t is not None)]


def _plan(program: Program, shares: ClientData, part: list[int], keys_K: Tensor) -> _Plan:
    """The schedule of the clients in `part`: each one's epochs one after the other, each in an order of its own.

    It has as many steps as the longest client of all, whoever takes part, so that its shape is the same every round.
    What a sample meets (its turn, dropout, crop) depends on its client's key, its epoch and its slot there alone.
    """
    train = program.train
    epochs = program.epochs()
    device = keys_K.device
    batch = min(train.batch_size, max(shares.counts))
    longest = -(-max(shares.counts) // batch)
    counts_K = torch.tensor([shares.counts[k] for k in part], device=device)
    steps_K = _steps(counts_K, train)
    client_K = torch.arange(len(part), device=device)
    step_S1 = torch.arange(epochs * longest, device=device)[:, None]
    epoch_SK = (step_S1 // steps_K).clamp_max(epochs - 1)
    inner_SK = step_S1 % steps_K
    slot_SKB = inner_SK[..., None] * batch + torch.arange(batch, device=device)
    real_SKB = (slot_SKB < counts_K[:, None]) & (step_S1 < epochs * steps_K)[..., None]

    def drawn(values: int, draw: Callable[[int], Tensor]) -> Tensor:
        """What `draw` gives for each epoch, K × (slots · values), laid out by step: S × K × B × values."""
        by_epoch = torch.stack([draw(epoch) for epoch in range(epochs)])
        return by_epoch.view(epochs, len(part), longest, batch, values)[
            epoch_SK, client_K, inner_SK
        ]

    slots = longest * batch
    order_SKB = drawn(1, lambda epoch: counter_rng.order(keys_K, counts_K, slots, epoch))[..., 0]
    index_SKB = shares.index_KN[part][client_K[:, None], order_SKB.where(real_SKB, 0)]
    keep = crop = None
    rate, units = program.model.dropout()
    if rate:
        chance = drawn(
            units, lambda epoch: counter_rng.uniform(keys_K, Purpose.DROPOUT, slots * units, epoch)
        )
        keep = (chance >= rate).float() / (1 - rate)  # so that the expectation stays
    if shares.black_C is not None:
        chance = drawn(
            3, lambda epoch: counter_rng.uniform(keys_K, Purpose.AUGMENT, slots * 3, epoch)
        )
        crop = (chance * torch.tensor([2 * _CROP + 1, 2 * _CROP + 1, 2], device=device)).long()
    phases = program.phases()
    if phases is None:
        phase = None
    else:
        phase = torch.tensor(phases, device=device)[epoch_SK]
    return _Plan(index_SKB, real_SKB.float(), keep, crop, phase)


def _steps(counts: Tensor, train: TrainingOptions) -> Tensor:
    return (counts + train.batch_size - 1) // train.batch_size


def _widths(program: Program, shares: ClientData, part: list[int]) -> list[int]:
    """How many of the clients in `part`, longest first, still train at each step."""
    ends = program.epochs() * _steps(torch.tensor([shares.counts[k] for k in part]), program.train)
    return (ends[None, :] > torch.arange(int(ends[0]))[:, None]).sum(1).tolist()


def augmented(x_KBCHW: Tensor, crop_KB3: Tensor, black_C: Tensor) -> Tensor:
    """Each image padded by 4 black pixels, shifted as drawn (0 to 8 down and right), and flipped where drawn."""
    height, width = x_KBCHW.shape[-2:]
    black_C11 = black_C[:, None, None]
    padded = F.pad(x_KBCHW - black_C11, (_CROP,) * 4)
    rows = torch.arange(height, device=x_KBCHW.device) + crop_KB3[..., 0, None]
    forward = torch.arange(width, device=x_KBCHW.device)
    cols = (
        torch.where(crop_KB3[..., 2, None] == 1, width - 1 - forward, forward)
        + crop_KB3[..., 1, None]
    )
    picked = padded.gather(
        3, rows[:, :, None, :, None].expand(-1, -1, padded.shape[2], -1, padded.shape[4])
    )
    return (
        picked.gather(4, cols[:, :, None, None, :].expand(-1, -1, padded.shape[2], height, -1))
        + black_C11
    )


class _Shard:
    """Clients trained together, and on CUDA the buffers and graphs of their steps, which live as long as the run."""

    def __init__(self, program: Program, shares: ClientData, stop: Event) -> None:
        self.program = program
        self.shares = shares
        self.stop = stop
        self.params: Params
        self.guide: Guide
        self.plan: _Plan
        self.loaded: list[Tensor]
        self.momentum: list[Tensor]
        self.losses_K3: Tensor
        self.step_1 = torch.zeros(1, dtype=torch.int64, device=shares.x.device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.runs: dict[int, int] = {}

    def train(
        self, params: Params, guide: Guide, part: list[int], keys_K: Tensor
    ) -> tuple[Params, Tensor]:
        """New parameters of the clients in `part`, in that order, and each one's mean losses: total, and its two parts."""
        self._load(params, guide, _plan(self.program, self.shares, part, keys_K))
        for width in _widths(self.program, self.shares, part):
            if self.stop.is_set():
                raise KeyboardInterrupt
            self._advance(width)
        return {
            name: p.clone() for name, p in self.params.items()
        }, self.losses_K3 / self.plan.weight_SKB.sum((0, 2))[:, None]

    def _load(self, params: Params, guide: Guide, plan: _Plan) -> None:
        """The round's numbers into the buffers: into the same memory once graphs have recorded where it lies."""
        new = [*params.values(), *guide.values(), *plan.tensors()]
        if self.graphs and [t.shape for t in new] == [t.shape for t in self.loaded]:
            torch._foreach_copy_(self.loaded, new)
            torch._foreach_zero_([*self.momentum, self.losses_K3, self.step_1])
            return
        self.graphs.clear()
        self.params = params
        self.guide = guide
        self.plan = plan
        self.loaded = new
        self.momentum = [torch.zeros_like(p) for name, p in params.items() if trained(name)]
        self.losses_K3 = torch.zeros(plan.index_SKB.shape[1], 3, device=self.step_1.device)
        self.step_1.zero_()

    def _advance(self, width: int) -> None:
        """One step of the first `width` clients."""
        if width in self.graphs:
            self.graphs[width].replay()
            return
        self._step(width)
        self.runs[width] = self.runs.get(width, 0) + 1
        if self.step_1.is_cuda and self.runs[width] >= _EAGER_RUNS and len(self.graphs) < _GRAPHS:
            self._capture(width)

    def _capture(self, width: int) -> None:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(width)
        self.graphs[width] = graph

    def _step(self, width: int) -> None:
        plan = self.plan
        train = self.program.train
        now = [t.index_select(0, self.step_1)[0, :width] for t in plan.tensors()]
        index = now[0]
        weight = now[1]
        rest = iter(now[2:])
        step = TrainingStep(weight, None if plan.keep_SKBU is None else next(rest))
        x = self.shares.x[index]
        y = self.shares.y[index]
        if self.shares.black_C is not None:
            x = augmented(x, next(rest), self.shares.black_C)
        if plan.phase_SK2 is None:
            phase = None
        else:
            phase = next(rest)
        params = {n: p[:width].detach().requires_grad_(trained(n)) for n, p in self.params.items()}
        leaves = [p for name, p in params.items() if trained(name)]
        guide = {name: g[:width] for name, g in self.guide.items()}
        losses = self.program.method.losses(self.program.batch(params, x, y, step), guide)
        grads = torch.autograd.grad(losses[0].sum(), leaves)
        with torch.no_grad():
            momentum = [m[:width] for m in self.momentum]
            torch._foreach_mul_(momentum, train.momentum)
            torch._foreach_add_(momentum, self._masked(list(grads), phase))
            torch._foreach_add_(leaves, self._masked(momentum, phase), alpha=-train.lr)
            self.losses_K3[:width] += torch.stack(losses, 1).detach() * weight.sum(1, keepdim=True)
            self.step_1 += 1

    def _masked(self, of_leaves: list[Tensor], phase_K2: Tensor | None) -> list[Tensor]:
        """Tensors, one for each trained parameter, without those of layers that rest in the phase."""
        if phase_K2 is None:
            return of_leaves
        heads = [int(self.program.model.head(name)) for name in self.params if trained(name)]
        factors = [
            phase_K2[:, head].view(-1, *[1] * (t.dim() - 1))
            for head, t in zip(heads, of_leaves, strict=True)
        ]
        return list(torch._foreach_mul(of_leaves, factors))


class Engine:
    """Trains and evaluates the clients of one cohort, round after round."""

    def __init__(self, program: Program, train: ClientData, test: ClientData) -> None:
        self.program = program
        self.shares = train
        self.tests = test
        self.device = train.x.device
        self._shards: list[_Shard] = []
        self._stop = (
            Event()
        )  # set when the round is interrupted: threads end with their step, not with the round

    def train(
        self, params: Params, guide: Guide, keys_K: Tensor, who: Sequence[int]
    ) -> tuple[Params, Tensor]:
        """All clients' parameters after the clients in `who` trained, and the losses of these, in the order of `who`."""
        parts = _dealt(who, self.shares, self.device)
        self._shards += [
            _Shard(self.program, self.shares, self._stop)
            for _ in range(len(parts) - len(self._shards))
        ]

        def work(shard: _Shard, part: list[int]) -> tuple[Params, Tensor]:
            rows = torch.tensor(part, device=self.device)
            own = {name: p[rows] for name, p in params.items()}
            return shard.train(
                own, {name: g[rows] for name, g in guide.items()}, part, keys_K[rows]
            )

        jobs = [partial(work, *pair) for pair in zip(self._shards, parts, strict=False)]
        done = _parallel(jobs, self.device, self._stop)
        result = {name: p.clone() for name, p in params.items()}
        losses_K3 = torch.zeros(len(self.shares.counts), 3)
        for part, (new, loss_K3) in zip(parts, done, strict=True):
            for name, p in new.items():
                result[name][part] = p
            losses_K3[part] = loss_K3.cpu()
        return result, losses_K3[list(who)]

    def interrupt(self) -> None:
        """From another thread: the training under way ends with a KeyboardInterrupt. Without any, the next one may."""
        self._stop.set()

    def class_means(self, params: Params, classes: int) -> tuple[Tensor, Tensor]:
        """Each client's mean pooled prototype of every class, and of how many of its training samples."""
        p_KNV = self.program.pool(self.features(params, self.shares)[0])
        return class_means(
            p_KNV, self.shares.y[self.shares.index_KN], self.shares.weight_KN(), classes
        )

    def features(self, params: Params, shares: ClientData) -> tuple[Tensor, Tensor]:
        """Feature vectors C and logits of every sample each client holds, without dropout; padded like the shares."""
        parts = _dealt(range(len(shares.counts)), shares, self.device)
        done = _parallel(
            [partial(self._forward, params, shares, part) for part in parts],
            self.device,
            self._stop,
        )
        back = torch.tensor([k for part in parts for k in part], device=self.device).argsort()
        return torch.cat([c for c, _ in done])[back], torch.cat([logits for _, logits in done])[
            back
        ]

    @torch.no_grad()
    def _forward(
        self, params: Params, shares: ClientData, part: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Some clients' samples, a slice of each at a time; clients that have none left are not computed."""
        layout = LAYOUTS[self.device.type]
        model = self.program.model
        most = _EVALUATED_AT_ONCE[self.device.type]
        own = {name: p[part] for name, p in params.items()}
        index_KN = shares.index_KN[part]
        found = []
        for first in range(0, index_KN.shape[1], most):
            width = max(1, sum(shares.counts[k] > first for k in part))
            index = index_KN[:width, first : first + most]
            c, logits = model.forward(
                layout, {name: p[:width] for name, p in own.items()}, shares.x[index], None
            )
            missing = (0, 0, 0, 0, 0, len(part) - width)
            found.append((F.pad(c, missing), F.pad(logits, missing)))
        return torch.cat([c for c, _ in found], 1), torch.cat([logits for _, logits in found], 1)


def _dealt(clients: Sequence[int], shares: ClientData, device: torch.device) -> list[list[int]]:
    """Clients, those with most samples first, to shards like cards, so that shards are alike; on a CPU some a core."""
    ordered = sorted(clients, key=lambda k: -shares.counts[k])
    if device.type == "cpu":
        cores = torch.get_num_threads()
        most = _CPU_CLIENTS
    else:
        cores = 1
        most = _CUDA_CLIENTS
    shards = min(cores * -(-len(ordered) // (most * cores)), len(ordered))
    return [ordered[i::shards] for i in range(shards)]


def _parallel(jobs: Sequence[Callable[[], T]], device: torch.device, stop: Event) -> list[T]:
    """The jobs' results, in order; on a CPU a thread each on every core, with kernels that do not spread further."""
    try:
        if device.type != "cpu" or len(jobs) < 2:
            return [job() for job in jobs]
        with ThreadPoolExecutor(
            torch.get_num_threads(), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            try:
                return list(pool.map(lambda job: job(), jobs))
            except BaseException:
                stop.set()
                raise
    finally:
        stop.clear()  # whoever asked for an end has it
