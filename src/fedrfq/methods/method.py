"""What a method is: the loss a client trains with, what it uploads, and how uploads become the next round's globals."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from fedrfq.prototypes import Globals, Uploads

Guide = dict[str, Tensor]  # what a client knows of the federation while it trains; every tensor has a row per client


@dataclass(frozen=True)
class Batch:
    """One step's samples of all clients, through their models: logits, features C, pooled features P."""

    logits_KBJ: Tensor
    c_KBD: Tensor
    p_KBV: Tensor
    y_KB: Tensor
    weight_KB: Tensor  # 1 for a sample, 0 for padding

    def mean(self, values_KB: Tensor) -> Tensor:
        """Each client's mean over its real samples."""
        return (values_KB * self.weight_KB).sum(1) / self.weight_KB.sum(1)


@dataclass(frozen=True)
class Method:
    """Trains alone with cross-entropy and exchanges nothing: what a method does not override. Fields are its options."""

    pools: ClassVar[bool] = False  # whether `pool` may be anything but none
    exchanges: ClassVar[bool] = False  # whether prototypes leave the clients

    def guide(self, globals_: Globals, clients: int) -> Guide:
        """What `clients` clients of one run are told before the round."""
        return {}

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Per client: the loss to minimise, and its classification and prototype parts."""
        classification = batch.mean(cross_entropy(batch))
        return classification, classification, classification.detach() * 0

    def combine(self, globals_: Globals, uploads: Uploads) -> Globals:
        return globals_

    def program(self) -> Hashable:
        """What must be equal for two runs to train in one program: everything but what the guide carries."""
        return self


def cross_entropy(batch: Batch) -> Tensor:
    """ℓ_d for each sample."""
    flat = F.cross_entropy(batch.logits_KBJ.flatten(0, 1), batch.y_KB.flatten(), reduction="none")
    return flat.view_as(batch.y_KB)
