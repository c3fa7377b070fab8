"""Self: FedProto's loss toward the client's own last class means, and no exchange. A control. Ours.

A client's loss is cross-entropy plus λ times the mean squared error between a sample's feature
vector and the mean of its class, which the client itself computed with its model from before the
round. There is no second term in round 1, as in FedProto. Nothing is uploaded, so there are no
common prototypes to predict by. What FedProto gains over this, it gains from the other clients'
means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.methods.prototype_loss import PrototypeLoss


@dataclass(frozen=True)
class OwnMeans(PrototypeLoss):
    """Cross-entropy plus λ times the distance to the client's own mean of the sample's class."""

    own_means: ClassVar[bool] = True
