"""What a client's decision layer makes of the prototypes themselves."""

from __future__ import annotations

from torch import Tensor

from fedrfq.methods.method import Batch, Guide
from fedrfq.models.stacked import linear


def decision_losses(batch: Batch, guide: Guide) -> Tensor:
    """Return the cross-entropy of each client's decision layer on the prototypes of all classes.

    The layer is linear in all models: a weight and a bias.
    """
    layer = {name.rpartition(".")[2]: batch.params[name] for name in batch.head}
    values_KJV = guide["values_KJV"].to(layer["weight"].dtype)
    chance_KJJ = linear(values_KJV, layer["weight"], layer["bias"]).log_softmax(-1)
    own_KJ = chance_KJJ.diagonal(dim1=1, dim2=2)
    return -(own_KJ * guide["present_KJ"]).sum(1) / guide["present_KJ"].sum(1).clamp_min(1)
