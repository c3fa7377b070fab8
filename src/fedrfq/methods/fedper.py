"""FedPer: Arivazhagan et al., "Federated Learning with Personalization Layers", 2019.

FedAvg of all layers but the last: every client keeps a decision layer of its own, which never leaves it, and trains it
together with the shared layers below.

Departures: one personal layer, the decision layer, as FedProto's comparison has it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedrfq.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    def shared(self, head: bool) -> bool:
        return not head
