"""example-method: FedProto that pulls by the absolute distance instead of the squared one."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

import fedrfq
from fedrfq.files.options import option
from fedrfq.methods.fedproto import FedProto


@fedrfq.register("method", "example-method")
@dataclass(frozen=True)  # below register: its fields are the method's options
class ExampleMethod(FedProto):
    """Cross-entropy plus λ times the absolute distance to the class's global prototype."""

    # An option: `--set method.lam=0.5` sets it. FedProto's are here as well.
    lam: float = option(0.5, "Weight of the prototype loss (λ)", "0 or more")

    # Names carry their shapes: K clients, B samples of a batch, V values of a prototype. All
    # clients are computed at once, so there is no loop over them.
    def distance(self, difference_KBV: Tensor) -> Tensor:
        """Return each sample's distance from the global prototype of its class, K × B."""
        return difference_KBV.abs().mean(-1)
