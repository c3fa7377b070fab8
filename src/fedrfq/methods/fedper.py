"""FedPer averages all layers but the last.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.

Every client keeps its own decision layer, which never leaves it, and trains it together with the
shared layers below. The shared layers are averaged as in FedAvg.

Departures: there is one personal layer, the decision layer, as in FedProto's comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    """FedAvg of everything below the decision layer."""

    def shared(self, head: bool) -> bool:
        return not head
