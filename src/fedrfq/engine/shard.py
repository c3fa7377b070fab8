"""Clients that are trained together, step by step, in one stack."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from fedrfq.data.client_data import ClientData
from fedrfq.engine.poisson_schedule import poisson_schedule
from fedrfq.engine.private_gradients import private_gradients
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.engine.schedule import BatchSchedule, ScheduledStep, augmented, schedule, widths
from fedrfq.methods.method import Guide
from fedrfq.models.stacked import Params, TrainingStep, trained

# The most CUDA graphs that are kept; further widths run eagerly.
_MAX_GRAPHS = 24
# Steps of one width before it is captured: they also warm up the libraries.
_EAGER_RUNS = 3


@dataclass(frozen=True)
class _Trainees:
    """The first clients of a stack: what each step reads and writes, in the stack's memory."""

    params: Params
    leaves: list[Tensor]  # those that are trained
    momentum: list[Tensor]
    guide: Guide


class ThreadShard:
    """Clients trained together, and on CUDA the buffers and graphs of their steps.

    Buffers and graphs live as long as the run.
    """

    def __init__(
        self, program: Program, data: ClientData, device: torch.device, stop: Event
    ) -> None:
        self.program = program
        self.data = data
        # The same samples where they are trained on.
        self.samples = data.to(device)
        self.stop = stop
        self.params: Params
        self.guide: Guide
        self.schedule: BatchSchedule
        self.loaded: list[Tensor]
        self.momentum: list[Tensor]
        self.losses_K3: Tensor
        # The first clients, by their number: many steps have the same.
        self.trainees: dict[int, _Trainees] = {}
        # The number of the step is a tensor, so that a captured graph can count it.
        self.step_1 = torch.zeros(1, dtype=torch.int64, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.runs: dict[int, int] = {}

    def train(
        self, params: Params, guide: Guide, part: list[int], keys_K: Tensor
    ) -> tuple[Params, Tensor]:
        """Train the clients in `part` for a round.

        Return their new parameters, in that order, and each one's mean losses: total, and its two
        parts.
        """
        if self.program.train.private:
            steps = poisson_schedule(self.program, self.data, part)
        else:
            steps = schedule(self.program, self.data, part, keys_K)
        self._load(params, guide, steps.to(self.step_1.device))
        for width in widths(self.program, self.data, part):
            if self.stop.is_set():
                raise KeyboardInterrupt
            self._advance(width)
        # Cloned, because the next round writes into the same memory.
        trained_params = {name: p.clone() for name, p in self.params.items()}
        # By DP-SGD it may happen that no sample was drawn.
        samples_K = self.schedule.weight_SKB.sum((0, 2)).clamp_min(1)
        return trained_params, self.losses_K3 / samples_K[:, None]

    def _load(self, params: Params, guide: Guide, steps: BatchSchedule) -> None:
        """Load the round's numbers into the buffers.

        Once graphs have recorded where the buffers lie, it is into the same memory.
        """
        params = {name: p.contiguous() for name, p in params.items()}
        new = [*params.values(), *guide.values(), *steps.tensors()]
        if self.graphs and [t.shape for t in new] == [t.shape for t in self.loaded]:
            torch._foreach_copy_(self.loaded, new)
            torch._foreach_zero_([*self.momentum, self.losses_K3, self.step_1])
            return
        self.graphs.clear()
        self.trainees.clear()
        self.params = params
        self.guide = guide
        self.schedule = steps
        self.loaded = new
        self.momentum = [torch.zeros_like(p) for name, p in params.items() if trained(name)]
        self.losses_K3 = torch.zeros(steps.index_SKB.shape[1], 3, device=self.step_1.device)
        self.step_1.zero_()

    def _advance(self, width: int) -> None:
        """Train the first `width` clients for one step."""
        if width in self.graphs:
            self.graphs[width].replay()
            return
        self._step(width)
        self.runs[width] = self.runs.get(width, 0) + 1
        warm = self.program.model.captured and self.runs[width] >= _EAGER_RUNS
        if self.program.train.private:
            warm = False  # noise is not drawn on the device
        if self.step_1.is_cuda and warm and len(self.graphs) < _MAX_GRAPHS:
            self._capture(width)

    def _capture(self, width: int) -> None:
        """Record a step of this width; recording does not run it."""
        graph = torch.cuda.CUDAGraph()
        # All graphs share their memory: nothing in it outlives a step.
        pool = next((other.pool() for other in self.graphs.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            self._step(width)
        self.graphs[width] = graph

    def _step(self, width: int) -> None:
        step = self.schedule.step(self.step_1, width)
        train = self.program.train
        x = self.samples.x[step.index_KB]
        y_KB = self.samples.y[step.index_KB]
        if step.crop_KB3 is not None and self.samples.black_C is not None:
            x = augmented(x, step.crop_KB3, self.samples.black_C)
        own = self._first(width)
        if train.private:
            grads, losses_K3 = private_gradients(self.program, own.params, x, y_KB, step, own.guide)
        else:
            grads, losses_K3 = self._gradients(own, x, y_KB, step)
        with torch.no_grad():
            if step.phase_K2 is None:
                _descend(own.leaves, grads, own.momentum, train)
            else:
                self._descend_in_phases(own.leaves, grads, own.momentum, step.phase_K2)
            self.losses_K3[:width] += losses_K3
            self.step_1 += 1

    def _first(self, width: int) -> _Trainees:
        """Return the first `width` clients."""
        if width not in self.trainees:
            params = {
                name: p[:width].detach().requires_grad_(trained(name))
                for name, p in self.params.items()
            }
            self.trainees[width] = _Trainees(
                params,
                leaves=[p for name, p in params.items() if trained(name)],
                momentum=[m[:width] for m in self.momentum],
                guide={name: g[:width] for name, g in self.guide.items()},
            )
        return self.trainees[width]

    def _gradients(
        self, own: _Trainees, x: Tensor, y_KB: Tensor, step: ScheduledStep
    ) -> tuple[list[Tensor], Tensor]:
        """Return each client's gradients, and the sums of its samples' losses."""
        batch = self.program.batch(own.params, x, y_KB, TrainingStep(step.weight_KB, step.keep_KBU))
        losses = self.program.method.losses(batch, own.guide)
        # The sum over clients: no client's loss depends on another's parameters.
        grads = torch.autograd.grad(losses[0].sum(), own.leaves)
        samples_K1 = step.weight_KB.sum(1, keepdim=True)
        return list(grads), torch.stack(losses, 1).detach() * samples_K1

    def _descend_in_phases(
        self, leaves: list[Tensor], grads: list[Tensor], momentum: list[Tensor], phase_K2: Tensor
    ) -> None:
        """Take a step in which layers that rest in the phase stay as they are."""
        train = self.program.train
        torch._foreach_mul_(momentum, train.momentum)
        torch._foreach_add_(momentum, self._masked(grads, phase_K2))
        torch._foreach_add_(leaves, self._masked(momentum, phase_K2), alpha=-train.lr)

    def _masked(self, of_leaves: list[Tensor], phase_K2: Tensor) -> list[Tensor]:
        """Return a tensor for each trained parameter, 0 for layers that rest in the phase."""
        heads = [int(self.program.model.head(name)) for name in self.params if trained(name)]
        factors = [
            phase_K2[:, head].view(-1, *[1] * (t.dim() - 1))
            for head, t in zip(heads, of_leaves, strict=True)
        ]
        return list(torch._foreach_mul(of_leaves, factors))


def _descend(
    leaves: list[Tensor], grads: list[Tensor], momentum: list[Tensor], train: TrainingOptions
) -> None:
    """Take a step of SGD with momentum; all parameters are read and written once."""
    sgd(
        leaves,
        # The kernel takes for granted that all lie in memory alike.
        [grad.contiguous() for grad in grads],
        momentum,  # type: ignore[arg-type]
        fused=True,
        weight_decay=0.0,
        momentum=train.momentum,
        lr=train.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
    )
