"""A multi-layer perceptron with two hidden layers, for small images and quick trials."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch.nn.functional as F
from torch import Generator, Tensor

from fedrfq.files.options import option
from fedrfq.models.model import Model, start_linear
from fedrfq.models.stacked import Layout, Params, TrainingStep


@dataclass(frozen=True)
class MLP(Model):
    """Two hidden layers, of which the second one's values are the prototype."""

    width: int = option(200, "Units of the first hidden layer", "1 or more")
    hidden: int = option(
        50, "Values of an unpooled prototype: the width of the last hidden layer", "1 or more"
    )

    def head(self, name: str) -> bool:
        return name.startswith("fc3.")

    def features(self) -> int:
        return self.hidden

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        return {
            **start_linear("fc1", prod(shape), self.width, generator),
            **start_linear("fc2", self.width, self.hidden, generator),
            **start_linear("fc3", self.hidden, classes, generator),
        }

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        h = F.relu(layout.linear(x_KBCHW.flatten(2), params["fc1.weight"], params["fc1.bias"]))
        c_KBD = F.relu(layout.linear(h, params["fc2.weight"], params["fc2.bias"]))
        return c_KBD, layout.linear(c_KBD, params["fc3.weight"], params["fc3.bias"])
