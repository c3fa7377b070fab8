"""What a method is: where clients start a round, the loss they train with, what they upload, and what becomes of it.

A method exchanges pooled prototypes (`exchanges`), or parameters (`shared` says which), or nothing. Prototypes go to the
committee as integers. Parameters go to one server, which is trusted: it averages them in float64.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import WHOLE, Globals, Precision

MOST_WEIGHT = 1e38  # of a part of the loss: float32 holds it
Guide = dict[
    str, Tensor
]  # what a client knows of the federation while it trains; every tensor has a row per client


@dataclass(frozen=True)
class Batch:
    """One step's samples of all clients, through their models: logits, features C, pooled features P; and the models."""

    logits_KBJ: Tensor
    c_KBD: Tensor
    p_KBV: Tensor
    y_KB: Tensor
    weight_KB: Tensor  # 1 for a sample, 0 for padding
    params: Params

    def mean(self, values_KB: Tensor) -> Tensor:
        """Each client's mean over its real samples."""
        return (values_KB * self.weight_KB).sum(1) / self.weight_KB.sum(1)


@dataclass(frozen=True)
class Method:
    """Trains alone with cross-entropy and exchanges nothing: what a method does not override. Fields are its options."""

    pool: ClassVar[Mapping[str, Any]] = {
        "name": "none"
    }  # what the experiment's `pool` is unless it says otherwise
    pools: ClassVar[bool] = False  # whether `pool` may be anything but none
    exchanges: ClassVar[bool] = False  # whether prototypes leave the clients
    centres: ClassVar[int] = 0  # global models that the server holds

    def shared(self, head: bool) -> bool:
        """Whether parameters of the decision layer (`head`), or of all below it, are exchanged."""
        return False

    def epochs(self, epochs: int) -> int:
        """Passes over a client's data in a round, where the experiment asks for `epochs`."""
        return epochs

    def trains(self, epoch: int, head: bool) -> bool:
        """Whether the decision layer, or all below it, is trained in a pass."""
        return True

    def guide(self, number: int, globals_: Globals, own: Params) -> Guide:
        """What some clients of one run are told before round `number`; `own` has their parameters at its start."""
        return {}

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Per client: the loss to minimise, its classification part, and what is added to it before its weight."""
        classification = batch.mean(cross_entropy(batch))
        return classification, classification, classification.detach() * 0

    def rule(self) -> str:
        """How uploaded prototypes are combined: one of `centres.RULES`."""
        return "mean"

    def precision(self) -> Precision:
        """Of the prototypes exchanged."""
        return WHOLE

    def assign(self, centres: Params, sent: Params, weight_RK: Tensor, first: bool) -> Tensor:
        """The centre of each client, R × K: `centres` are R × M × …, what clients `sent` R × K × …; weight 0: absent."""
        return torch.zeros_like(weight_RK, dtype=torch.int64)

    def program(self) -> Hashable:
        """What must be equal for two runs to train in one program: everything but what the guide carries."""
        return self


def cross_entropy(batch: Batch) -> Tensor:
    """ℓ_d for each sample."""
    flat = F.cross_entropy(batch.logits_KBJ.flatten(0, 1), batch.y_KB.flatten(), reduction="none")
    return flat.view_as(batch.y_KB)
