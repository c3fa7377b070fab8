"""The paper's CNN for MNIST and FEMNIST.

Its layers are those of FedProto's reference implementation (Tan et al., 2022): conv 5×5, max-pool
2, ReLU; conv 5×5, dropout by channel, max-pool 2, ReLU; linear to 50, ReLU; dropout; linear to the
classes. The prototype of a sample is the vector of 50 after the ReLU and before the dropout. There
are 21,840 parameters with ten classes and 28×28 grey images. Clients with different numbers of
channels in the second convolution may be mixed: their prototypes have the same length.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator, Tensor

from fedrfq.errors import UserError
from fedrfq.files.options import option
from fedrfq.models.model import Model, start_conv, start_linear
from fedrfq.models.stacked import Layout, Params, Stage, TrainingStep


@dataclass(frozen=True)
class CNN(Model):
    """Two convolutions, a hidden layer whose values are the prototype, and the decision layer."""

    channels: int = option(20, "Channels of the second convolution", "1 or more")
    hidden: int = option(
        50, "Values of an unpooled prototype: the width of the last hidden layer", "1 or more"
    )
    drop: float = option(0.5, "Dropout rate", "0 to below 1")

    def head(self, name: str) -> bool:
        return name.startswith("fc2.")

    def features(self) -> int:
        return self.hidden

    def dropout(self) -> tuple[float, int]:
        return self.drop, self.channels + self.hidden

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        colours, height, width = shape
        flat = self.channels * _side_after(height) * _side_after(width)
        return {
            **start_conv("conv1", colours, 10, 5, generator),
            **start_conv("conv2", 10, self.channels, 5, generator),
            **start_linear("fc1", flat, self.hidden, generator),
            **start_linear("fc2", self.hidden, classes, generator),
        }

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        keep_KBO = None
        keep_KBD = None
        if step is not None and step.keep_KBU is not None:
            # A sample's dropout factors: first one for each channel, then for each hidden unit.
            keep_KBO = step.keep_KBU[..., : self.channels]
            keep_KBD = step.keep_KBU[..., self.channels :]
        chain = [
            Stage(params["conv1.weight"], params["conv1.bias"], 2),
            Stage(params["conv2.weight"], params["conv2.bias"], 2, keep_KBO),
        ]
        h = layout.stages(x_KBCHW, chain)
        c_KBD = F.relu(layout.linear(h, params["fc1.weight"], params["fc1.bias"]))
        h = c_KBD
        if keep_KBD is not None:
            h = c_KBD * keep_KBD
        return c_KBD, layout.linear(h, params["fc2.weight"], params["fc2.bias"])


def _side_after(side: int) -> int:
    """Return the side of the map after two rounds of conv 5×5 and max-pool 2."""
    left = ((side - 4) // 2 - 4) // 2
    if left < 1:
        raise UserError(
            f"model 'cnn' needs images of at least 16×16 pixels, but these have a side of {side}: "
            'set model.name = "mlp"'
        )
    return left
