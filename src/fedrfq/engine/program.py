"""What the clients of one program have in common: model, method, pooling and training options."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrfq.files.options import check_ranges, option
from fedrfq.methods.method import Batch, Method
from fedrfq.models.fused.layout import ENGINE_LAYOUTS
from fedrfq.models.model import Model
from fedrfq.models.stacked import Params, TrainingStep
from fedrfq.prototypes.pooling import Pool

# float32 holds it.
_MAX_RATE = 1e38
# The least and the largest noise, and clipping, of DP-SGD.
_NOISES = (0.05, 1e6)
_CLIPS = (1e-6, 1e6)
_LEAST_DP_RATE = 1e-4


@dataclass(frozen=True)
class TrainingOptions:
    """Local SGD with momentum, reset every round."""

    epochs: int = option(1, "Passes of a client over its data in a round", "1 or more")
    batch_size: int = option(4, "Samples in a step of SGD", "1 or more")
    lr: float = option(0.01, "Learning rate of SGD", f"above 0, at most {_MAX_RATE:g}")
    momentum: float = option(
        0.5, "Momentum of SGD, which starts at 0 in every round", "0 to below 1"
    )
    alone: bool = option(
        False, "Train each client by itself on one thread: slower, the same bytes in any company"
    )

    dp_noise: float = option(
        0.0,
        "Noise in a step's gradients (DP-SGD), in units of train.dp_clip; 0 trains without",
        f"0, or {_NOISES[0]:g} to {_NOISES[1]:g}",
    )
    dp_clip: float = option(
        1.0,
        "Norm to which each sample's gradient is clipped, with train.dp_noise",
        f"{_CLIPS[0]:g} to {_CLIPS[1]:g}",
    )
    dp_rate: float = option(
        0.1,
        "Chance of each sample to be in a step, with train.dp_noise; a pass has 1/dp_rate steps",
        f"{_LEAST_DP_RATE:g} to 1",
    )

    def __post_init__(self) -> None:
        check_ranges("train", self)

    @property
    def private(self) -> bool:
        """Whether clients train by DP-SGD."""
        return self.dp_noise > 0

    def steps(self, epochs: int) -> int:
        """Return the steps of so many passes by DP-SGD, the same for every client."""
        return epochs * math.ceil(1 / self.dp_rate)

    def cores(self) -> int:
        """Return the cores of this process that a CPU may train on: one for clients alone."""
        if self.alone:
            return 1
        return torch.get_num_threads()


@dataclass(frozen=True)
class Program:
    """What is computed for every sample: clients of one program differ in numbers, not in code."""

    model: Model
    method: Method
    pool: Pool
    train: TrainingOptions

    def batch(self, params: Params, x: Tensor, y_KB: Tensor, step: TrainingStep) -> Batch:
        """Return a step's samples with what the clients' models make of them."""
        c_KBD, logits_KBJ = self.model.forward(ENGINE_LAYOUTS[x.device.type], params, x, step)
        head = tuple(name for name in params if self.model.head(name))
        return Batch(logits_KBJ, c_KBD, self.pool(c_KBD), y_KB, step.weight_KB, params, head)

    def epochs(self) -> int:
        """Return the passes over the data in a round, in all its phases."""
        return self.method.epochs(self.train.epochs)

    def phases(self) -> list[list[float]] | None:
        """Return two flags for each pass, 1 or 0: the layers below the head train, and it does.

        None if everything trains in every pass.
        """
        phases = [
            [float(self.method.trains(epoch, head)) for head in (False, True)]
            for epoch in range(self.epochs())
        ]
        if any(0.0 in phase for phase in phases):
            return phases
        return None
