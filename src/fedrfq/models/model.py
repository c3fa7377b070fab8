"""The interface of a model: initial parameters for one client, and a forward pass for many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Generator, Tensor

from fedrfq.files.options import check_ranges
from fedrfq.models.stacked import Layout, Params, TrainingStep


@dataclass(frozen=True)
class Model(ABC):
    """A model by its settings: equal settings are the same model.

    Fields are the options that an experiment may set under `model`.
    """

    # Whether a step of training can be recorded as a CUDA graph.
    captured: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_ranges("model", self)

    @abstractmethod
    def features(self) -> int:
        """Return the length of the unpooled feature vector C."""

    @abstractmethod
    def head(self, name: str) -> bool:
        """Return whether a parameter belongs to the decision layer."""

    @abstractmethod
    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        """Return one client's parameters before training, initialised as PyTorch does by default.

        `shape` is that of an image: channels, height, width.
        """

    @abstractmethod
    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        """Return the feature vectors C (K × B × features) and the logits made from them.

        Without a `step` it evaluates: no dropout, and BatchNorm uses its running moments.
        """

    def dropout(self) -> tuple[float, int]:
        """Return the dropout rate, and how many random factors a sample needs in a step."""
        return 0.0, 0

    def drops(self) -> Sequence[tuple[float, int]]:
        """Return the same for a model with several rates, in the order of the factors."""
        rate, units = self.dropout()
        if not rate:
            return ()
        return ((rate, units),)


def keep_factors(drops: Sequence[tuple[float, int]], chances: Tensor) -> Tensor:
    """Return 0 where a unit is dropped, else 1 scaled up so that the expectation stays.

    `chances` are uniform random numbers in [0, 1), of which the last dimension is the units.
    """
    rates = [rate for rate, units in drops for _ in range(units)]
    # On the CPU, as not every device knows float64.
    rate_U = torch.tensor(rates, dtype=torch.float64)
    kept_U = (1 - rate_U).float().to(chances.device)
    return (chances >= rate_U.float().to(chances.device)).float() / kept_U


def uniform(shape: tuple[int, ...], fan_in: int, generator: Generator) -> Tensor:
    """Draw PyTorch's default start of linear and convolution layers: uniform in ±1/√fan_in."""
    return torch.empty(shape).uniform_(-(fan_in**-0.5), fan_in**-0.5, generator=generator)


def start_linear(name: str, inputs: int, outputs: int, generator: Generator) -> Params:
    """Return the initial parameters of a linear layer."""
    return {
        f"{name}.weight": uniform((outputs, inputs), inputs, generator),
        f"{name}.bias": uniform((outputs,), inputs, generator),
    }


def start_conv(name: str, inputs: int, outputs: int, kernel: int, generator: Generator) -> Params:
    """Return the initial parameters of a convolution with a bias."""
    fan_in = inputs * kernel * kernel
    return {
        f"{name}.weight": uniform((outputs, inputs, kernel, kernel), fan_in, generator),
        f"{name}.bias": uniform((outputs,), fan_in, generator),
    }
