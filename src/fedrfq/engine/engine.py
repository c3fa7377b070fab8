"""Local training of all clients at once: one program, in which no client waits for another.

Clients are sorted by their number of steps, so those still training are always the first rows: a
step computes just these and pads nothing but the last batch of a client, whose missing samples have
weight 0. On a CPU the clients are dealt to one thread per core, each with single-threaded kernels
(clients are independent, so threads have nothing to wait for). Their caller's kernels should have
one thread, too: the others would take the cores from them. On CUDA a step of a given width
becomes a CUDA graph after its first runs.

The last bits of what a kernel computes depend on the width of the stack and on the number of
threads. Clients that train `alone` are never stacked, and their kernels have one thread: each gets
the bytes it would get on a machine of its own.

An Apple GPU knows no float64, in which everything else is computed. There only the training and the
forward pass run, and all that goes in and comes out lies on the CPU, its `home`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from functools import cached_property, partial
from threading import Event
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.engine.shard import ThreadShard
from fedrfq.engine.threads import threads
from fedrfq.errors import UserError
from fedrfq.methods.method import Guide
from fedrfq.models.fused.layout import ENGINE_LAYOUTS
from fedrfq.models.stacked import Params
from fedrfq.prototypes.class_means import class_means

__all__ = ["Engine", "Program", "TrainingOptions", "home"]

T = TypeVar("T")
# The most clients in a shard: it bounds the memory of a step, and larger stacks gain nothing.
_CPU_CLIENTS = 64
_CUDA_CLIENTS = 4096
# Samples of each client in a slice of an evaluation; on a CPU more do not stay in its cache.
_EVALUATED_AT_ONCE = {"cpu": 16, "cuda": 64, "mps": 64}


def home(device: torch.device) -> torch.device:
    """Return where the numbers of a run lie that trains on a device."""
    if device.type == "mps":
        return torch.device("cpu")
    return device


class Engine:
    """Trains and evaluates the clients of one cohort, round after round.

    The data lie where everything does that goes in and comes out; it trains on `device`, or there.
    """

    def __init__(
        self,
        program: Program,
        train: ClientData,
        test: ClientData,
        device: torch.device | None = None,
    ) -> None:
        self.program = program
        self.shares = train
        self.tests = test
        self.home = train.x.device
        self.device = device or self.home
        if program.train.private and home(self.device) != self.device:
            raise UserError(
                f"train.dp_noise is drawn in float64, which {self.device.type} does not know: "
                "use --device cpu"
            )
        # Asked now: while it is used, kernels outside of its threads should have one.
        self._cores = 1
        if self.device.type == "cpu":
            self._cores = program.train.cores()
        self._shards: list[ThreadShard] = []
        # Set when the round is interrupted: threads end with their step, not with the round.
        self._stop = Event()

    def train(
        self, params: Params, guide: Guide, keys_K: Tensor, who: Sequence[int]
    ) -> tuple[Params, Tensor]:
        """Train the clients in `who` for a round.

        Return the parameters of all clients, and the losses of those in `who`, in that order.
        """
        parts = self._dealt(who, self.shares)
        while len(self._shards) < len(parts):
            self._shards.append(ThreadShard(self.program, self.shares, self.device, self._stop))

        def work(shard: ThreadShard, part: list[int]) -> tuple[Params, Tensor]:
            rows = torch.tensor(part, device=self.home)
            own_params = {name: p[rows].to(self.device) for name, p in params.items()}
            own_guide = {name: g[rows].to(self.device) for name, g in guide.items()}
            return shard.train(own_params, own_guide, part, keys_K[rows])

        jobs = [partial(work, *pair) for pair in zip(self._shards, parts, strict=False)]
        results = self._parallel(jobs)
        trained = {name: p.clone() for name, p in params.items()}
        losses_K3 = torch.zeros(len(self.shares.counts), 3)
        for part, (new, loss_K3) in zip(parts, results, strict=True):
            for name, p in new.items():
                trained[name][part] = p.to(self.home)
            losses_K3[part] = loss_K3.cpu()
        return trained, losses_K3[list(who)]

    def interrupt(self) -> None:
        """End the training under way with a KeyboardInterrupt; to be called from another thread.

        If there is none under way, the next one may end so.
        """
        self._stop.set()

    def was_interrupted(self) -> bool:
        """Return whether an end was asked for since; then it is forgotten."""
        found = self._stop.is_set()
        self._stop.clear()
        return found

    def class_means(self, params: Params, classes: int) -> tuple[Tensor, Tensor]:
        """Return each client's mean pooled prototype of every class, and its number of samples."""
        p_KNV = self.program.pool(self.features(params, self.shares)[0])
        y_KN = self.shares.y[self.shares.index_KN]
        return class_means(p_KNV, y_KN, self.shares.weight_KN(), classes)

    @torch.no_grad()
    def pooled(self, params: Params) -> list[tuple[Tensor, Tensor]]:
        """Return each client's samples as pooled features, and their labels, without padding."""
        p_KNV = self.program.pool(self.features(params, self.shares)[0])
        y_KN = self.shares.y[self.shares.index_KN]
        real_KN = self.shares.weight_KN() > 0
        return [(p[real], y[real]) for p, y, real in zip(p_KNV, y_KN, real_KN, strict=True)]

    def features(self, params: Params, shares: ClientData) -> tuple[Tensor, Tensor]:
        """Return feature vectors C and logits of every sample each client holds, without dropout.

        Rows are padded like those of the data.
        """
        parts = self._dealt(range(len(shares.counts)), shares)
        jobs = [partial(self._forward, params, shares, part) for part in parts]
        results = self._parallel(jobs)
        # Shards hold the clients in another order: this is the way back.
        back = torch.tensor([k for part in parts for k in part], device=self.home).argsort()
        c_KND = torch.cat([c for c, _ in results])[back]
        logits_KNJ = torch.cat([logits for _, logits in results])[back]
        return c_KND, logits_KNJ

    @torch.no_grad()
    def _forward(
        self, params: Params, shares: ClientData, part: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Evaluate some clients' samples, a slice of each client at a time.

        Clients that have no samples left are not computed.
        """
        layout = ENGINE_LAYOUTS[self.device.type]
        size = _EVALUATED_AT_ONCE[self.device.type]
        own = {name: p[part].to(self.device) for name, p in params.items()}
        index_KN = shares.index_KN[part]
        slices = []
        for first in range(0, index_KN.shape[1], size):
            # Those with the most samples come first.
            width = max(1, sum(shares.counts[k] > first for k in part))
            x = shares.x[index_KN[:width, first : first + size]].to(self.device)
            still = {name: p[:width] for name, p in own.items()}
            c, logits = self.program.model.forward(layout, still, x, None)
            missing = (0, 0, 0, 0, 0, len(part) - width)
            slices.append([F.pad(rows.to(self.home), missing) for rows in (c, logits)])
        return torch.cat([c for c, _ in slices], 1), torch.cat([logits for _, logits in slices], 1)

    def _dealt(self, clients: Sequence[int], shares: ClientData) -> list[list[int]]:
        """Deal clients to shards like cards, most samples first, so that shards are alike.

        On a CPU every core has as many shards as any other.
        """
        ordered = sorted(clients, key=lambda k: -shares.counts[k])
        most = _CUDA_CLIENTS
        if self.device.type == "cpu":
            most = _CPU_CLIENTS
        shards = min(self._cores * -(-len(ordered) // (most * self._cores)), len(ordered))
        return [ordered[i::shards] for i in range(shards)]

    def _parallel(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """Return the jobs' results, in order.

        On a CPU every core runs a thread, with kernels that do not spread further. Those of a
        single job do.
        """
        try:
            if self._cores > 1 and len(jobs) > 1:
                return self._in_pool(jobs)
            with threads(self._cores):
                return [job() for job in jobs]
        finally:
            self._stop.clear()  # whoever asked for an end has it

    def _in_pool(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        futures = [self._pool.submit(job) for job in jobs]
        try:
            # The first that fails, whichever it is, ends the round.
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
            return [future.result() for future in futures]
        except BaseException:
            # Nothing may train on after the round has ended: tell the threads to end.
            self._stop.set()
            for future in futures:
                future.cancel()
            wait(futures)
            raise

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        """A thread for each core; they end with the engine."""
        return ThreadPoolExecutor(self._cores, initializer=torch.set_num_threads, initargs=(1,))
