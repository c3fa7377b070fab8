"""Pull: cross-entropy plus λ times the L1 distance to the global prototype."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import fedrfq
from fedrfq.methods.fedproto import FedProto


@fedrfq.register("method", "pull")
@dataclass(frozen=True)
class Pull(FedProto):
    """FedProto with an L1 distance."""

    def distance(self, difference_KBV: Tensor) -> Tensor:
        return difference_KBV.abs().mean(-1)
