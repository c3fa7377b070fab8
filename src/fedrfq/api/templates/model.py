"""example-model: one hidden layer, whose values are the prototype."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch.nn.functional as F
from torch import Generator, Tensor

import fedrfq
from fedrfq.files.options import option
from fedrfq.models.model import Model, at_least_one, start_linear
from fedrfq.models.stacked import Layout, Params, TrainingStep, linear


# All clients are computed at once: every parameter carries them in front. A plain nn.Module needs
# no plugin: give it to `fedrfq.run(…, model=MyModule)` or `fedrfq run --module FILE:NAME`.
@fedrfq.register("model", "example-model")
@dataclass(frozen=True)
class ExampleModel(Model):
    """Pixels, a hidden layer, the decision layer."""

    hidden: int = option(
        50, "Values of an unpooled prototype: units of the hidden layer", "1 or more"
    )

    def __post_init__(self) -> None:
        at_least_one(self, "hidden")

    def features(self) -> int:
        """Return the length of an unpooled prototype."""
        return self.hidden

    def head(self, name: str) -> bool:
        """Return whether a parameter is the decision layer's."""
        return name.startswith("decide.")

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        """Return one client's parameters before training; random numbers from the generator."""
        return {
            **start_linear("hide", prod(shape), self.hidden, generator),
            **start_linear("decide", self.hidden, classes, generator),
        }

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        """Return the features and the logits of K clients' batches of B images."""
        hidden_KBD = linear(x_KBCHW.flatten(2), params["hide.weight"], params["hide.bias"])
        c_KBD = F.relu(hidden_KBD)
        return c_KBD, linear(c_KBD, params["decide.weight"], params["decide.bias"])
