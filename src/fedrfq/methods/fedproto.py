"""FedProto exchanges class prototypes instead of models.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

A client's loss is cross-entropy plus λ times the mean squared error between a sample's feature
vector and the global prototype of its class. Samples of classes without a global prototype (all of
them in round 1) have no second term. Clients upload the mean feature vector of each class, and the
server averages these, every client counting alike (`aggregate = "mean"`).

Departures: a client averages its features over all its data with the trained model, which is the
paper's rule. The reference code averages the features seen in the steps of the last epoch, with
dropout on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.errors import check_one_of
from fedrfq.files.options import one_of, option
from fedrfq.methods.prototype_loss import PrototypeLoss
from fedrfq.robust.rules import RULES


@dataclass(frozen=True)
class FedProto(PrototypeLoss):
    """Cross-entropy plus λ times the distance to the global prototype of the sample's class."""

    aggregate: str = option(
        "mean",
        "Rule by which uploaded prototypes become the global one",
        one_of(RULES, plugins=True),
    )

    exchanges: ClassVar[bool] = True
    predicts: ClassVar[bool] = True
    carried: ClassVar[tuple[str, ...]] = (*PrototypeLoss.carried, "aggregate")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_of("method.aggregate", self.aggregate, RULES, plugins=True)

    def rule(self) -> str:
        return self.aggregate
