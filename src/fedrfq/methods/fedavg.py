"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

All clients start a round from one model, train it on their own data, and send it back whole; the server replaces it by
their average, weighted by their numbers of samples.

Departures: the server is one, and trusted; it averages in float64. Moments of BatchNorm are averaged like parameters. A
client is tested with the model it gets back, the average, as it would use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.methods.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    centres: ClassVar[int] = 1

    def shared(self, head: bool) -> bool:
        return True
