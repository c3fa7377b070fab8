"""FedAvg averages the clients' models.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data",
AISTATS 2017.

All clients start a round from one model, train it on their own data, and send the whole model back.
The server replaces the model by the clients' average, weighted by their numbers of samples.

Departures: there is one server, which is trusted, and it averages in float64. BatchNorm's moments
are averaged like parameters. A client is tested with the average that it gets back, because that is
the model it would use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.methods.method import Method


@dataclass(frozen=True)
class FedAvg(Method):
    """One global model, the weighted average of the clients' models."""

    centres: ClassVar[int] = 1

    def shared(self, head: bool) -> bool:
        return True
