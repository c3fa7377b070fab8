"""A small residual network: a first convolution, two residual blocks, the mean over all pixels.

All clients are computed at once: every parameter carries them in front, and the layers are those of
`fedrfq.models.stacked`. There is no BatchNorm, so a client's model is its parameters alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Generator, Tensor

import fedrfq
from fedrfq.files.options import option
from fedrfq.models.model import Model, start_conv, start_linear
from fedrfq.models.stacked import Layout, Params, TrainingStep, mean_pixels


@fedrfq.register("model", "small-resnet")
@dataclass(frozen=True)
class SmallResNet(Model):
    """Two residual blocks of 3×3 convolutions, at half the image's size."""

    width: int = option(16, "Channels, and values of an unpooled prototype", "1 or more")

    def features(self) -> int:
        return self.width

    def head(self, name: str) -> bool:
        return name.startswith("fc.")

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        params = start_conv("stem", shape[0], self.width, 3, generator)
        for name in ("block1.a", "block1.b", "block2.a", "block2.b"):
            params |= start_conv(name, self.width, self.width, 3, generator)
        return params | start_linear("fc", self.width, classes, generator)

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        h = F.relu(_conv(layout, layout.enter(x_KBCHW), params, "stem", 2))
        for block in ("block1", "block2"):
            inner = F.relu(_conv(layout, h, params, f"{block}.a", 1))
            h = F.relu(h + _conv(layout, inner, params, f"{block}.b", 1))
        c_KBD = mean_pixels(layout, h, x_KBCHW.shape[0])
        return c_KBD, layout.linear(c_KBD, params["fc.weight"], params["fc.bias"])


def _conv(layout: Layout, h: Tensor, params: Params, name: str, stride: int) -> Tensor:
    return layout.conv(h, params[f"{name}.weight"], params[f"{name}.bias"], stride, 1)
