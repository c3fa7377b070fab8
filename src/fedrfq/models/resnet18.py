"""ResNet18 (He et al., 2016), the paper's model for CIFAR-10, under torchvision's key names.

The 7×7 stem and the max-pool are kept for 32×32 images, as in FedProto's reference. The prototype
is the vector of 512 before the last layer. With `weights = "imagenet"` every client starts from
torchvision's ImageNet weights except conv1, bn1 and fc, which start at random; with "imagenet-stem"
conv1 and bn1 start from ImageNet's weights too. All layers are trained. `stem` and `pool` are the
strides of the first convolution and of the max-pool: cohorts may differ in them (2, 2 or 1, 4).

Departure: in the last block of a 32×32 image, which has one pixel, a batch of one sample has no
variance. It is normalised to 0 there, where PyTorch would refuse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedrfq.files.options import one_of, option
from fedrfq.models.model import Model, start_linear
from fedrfq.models.stacked import Layout, Params, TrainingStep, batch_norm, mean_pixels

_WIDTHS = (64, 128, 256, 512)
# By the value of `weights`, the parameters that ImageNet's weights do not replace.
_AT_RANDOM = {
    "imagenet": ("conv1.", "bn1.", "fc."),
    "imagenet-stem": ("fc.",),
}
_WEIGHTS = ("none", *_AT_RANDOM)


@dataclass(frozen=True)
class ResNet18(Model):
    """Torchvision's ResNet18, with the strides of its first layers as options."""

    weights: str = option(
        "none",
        "Where clients start: at random, or from ImageNet's weights without or with the stem",
        one_of(_WEIGHTS),
    )
    stem: int = option(2, "Stride of the first convolution, in pixels", "1 or more")
    pool: int = option(2, "Stride of the max-pool after it, in pixels", "1 or more")

    def head(self, name: str) -> bool:
        return name.startswith("fc.")

    def features(self) -> int:
        return _WIDTHS[-1]

    def start(self, shape: tuple[int, int, int], classes: int, generator: Generator) -> Params:
        params = {**_start_conv("conv1", shape[0], 64, 7, generator), **_start_norm("bn1", 64)}
        inputs = 64
        for layer, width in enumerate(_WIDTHS, start=1):
            params |= _start_block(f"layer{layer}.0", inputs, width, generator)
            params |= _start_block(f"layer{layer}.1", width, width, generator)
            inputs = width
        params |= start_linear("fc", inputs, classes, generator)
        if self.weights == "none":
            return params
        return params | _imagenet(params, _AT_RANDOM[self.weights])

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        h = layout.conv(layout.enter(x_KBCHW), params["conv1.weight"], None, self.stem, 3)
        h = F.relu(batch_norm(layout, h, params, "bn1", step))
        h = layout.max_pool(h, 3, self.pool, 1)
        for layer, stride in ((1, 1), (2, 2), (3, 2), (4, 2)):
            h = _block(layout, h, params, f"layer{layer}.0", step, stride=stride)
            h = _block(layout, h, params, f"layer{layer}.1", step, stride=1)
        c_KBD = mean_pixels(layout, h, x_KBCHW.shape[0])
        return c_KBD, layout.linear(c_KBD, params["fc.weight"], params["fc.bias"])


def _block(
    layout: Layout, h: Tensor, params: Params, name: str, step: TrainingStep | None, *, stride: int
) -> Tensor:
    """Apply two 3×3 convolutions and the shortcut around them.

    The shortcut is a 1×1 convolution where the shape changes.
    """
    out = layout.conv(h, params[f"{name}.conv1.weight"], None, stride, 1)
    out = F.relu(batch_norm(layout, out, params, f"{name}.bn1", step))
    out = layout.conv(out, params[f"{name}.conv2.weight"], None, 1, 1)
    out = batch_norm(layout, out, params, f"{name}.bn2", step)
    if f"{name}.downsample.0.weight" in params:
        h = layout.conv(h, params[f"{name}.downsample.0.weight"], None, stride, 0)
        h = batch_norm(layout, h, params, f"{name}.downsample.1", step)
    return F.relu(out + h)


def _start_block(name: str, inputs: int, outputs: int, generator: Generator) -> Params:
    params = {
        **_start_conv(f"{name}.conv1", inputs, outputs, 3, generator),
        **_start_norm(f"{name}.bn1", outputs),
        **_start_conv(f"{name}.conv2", outputs, outputs, 3, generator),
        **_start_norm(f"{name}.bn2", outputs),
    }
    if inputs != outputs:
        params |= _start_conv(f"{name}.downsample.0", inputs, outputs, 1, generator)
        params |= _start_norm(f"{name}.downsample.1", outputs)
    return params


def _start_conv(name: str, inputs: int, outputs: int, kernel: int, generator: Generator) -> Params:
    """Draw torchvision's start for ResNets: normal, scaled to the outputs (Kaiming, fan-out)."""
    spread = (2 / (outputs * kernel * kernel)) ** 0.5
    weight = torch.empty(outputs, inputs, kernel, kernel)
    return {f"{name}.weight": weight.normal_(0, spread, generator=generator)}


def _start_norm(name: str, width: int) -> Params:
    ones = torch.ones(width)
    zeros = torch.zeros(width)
    return {
        f"{name}.weight": ones,
        f"{name}.bias": zeros,
        f"{name}.running_mean": zeros.clone(),
        f"{name}.running_var": ones.clone(),
    }


def _imagenet(params: Params, at_random: tuple[str, ...]) -> Params:
    """Return ImageNet's weights of all parameters but those that start at random."""
    from fedrfq.data.weights import load_weights

    stored = load_weights("resnet18")
    return {name: stored[name] for name in params if not name.startswith(at_random)}
