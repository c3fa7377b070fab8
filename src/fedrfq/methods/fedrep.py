"""FedRep trains the decision layer first, then the shared layers.

Collins et al., "Exploiting Shared Representations for Personalized Federated Learning", ICML 2021.

As in FedPer, every client keeps its own decision layer and shares the rest. A round has two phases:
first the decision layer alone is trained for `head_epochs` passes over the data, then the shared
layers alone for the experiment's epochs.

Departures: one pass for the decision layer, where the paper takes ten, so that a round costs a
client at most twice what it costs with the other methods. Each phase starts its own momentum, and
BatchNorm's moments follow the data in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.files.options import option
from fedrfq.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedPer whose clients train the decision layer and the rest one after the other."""

    head_epochs: int = option(
        1,
        "Passes over the data that train the decision layer, before train.epochs for the rest",
        "1 or more",
    )

    def epochs(self, epochs: int) -> int:
        return self.head_epochs + epochs

    def trains(self, epoch: int, head: bool) -> bool:
        return head == (epoch < self.head_epochs)
