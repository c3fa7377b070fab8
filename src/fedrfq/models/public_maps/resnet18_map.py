"""ResNet18 with ImageNet's weights as a public map, frozen.

Images are scaled to `size` pixels a side and normalised as the weights expect; grey images become
colour ones. The vector is the 512 values before the last layer, of each the square root: it makes
the values of a class more alike a normal distribution, which LDA assumes (Tukey's ladder of powers;
Yang, Liu and Xu, "Free Lunch for Few-shot Learning: Distribution Calibration", ICLR 2021). A
mirrored map takes the mean of this and of the vector of the image's mirror image, which shows the
same things.

ImageNet has photographs of things like CIFAR-10's. The map knows about them what no client's
samples had to teach it, and accuracies on it are to be read with that in mind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.data import resnet18
from fedrfq.files.options import option
from fedrfq.models.public_maps.public_map import PublicMap
from fedrfq.models.resnet18 import ResNet18
from fedrfq.models.stacked import LAYOUTS, Params

_MEAN = (0.485, 0.456, 0.406)
_STD = (0.229, 0.224, 0.225)
_MIN_SIZE = 32
_MAX_SIZE = 512
_BATCH = {"cpu": 32, "cuda": 256}


@dataclass(frozen=True)
class ResNet18Map(PublicMap):
    """Torchvision's ResNet18, trained on ImageNet."""

    size: int = option(
        128,
        "Pixels a side to which images are scaled: more is more accurate, and slower",
        f"{_MIN_SIZE} to {_MAX_SIZE}",
    )
    mirrored: bool = option(
        False,
        "Mean of the vectors of an image and its mirror image: better on photographs, slower",
    )

    source: ClassVar[str] = (
        "torchvision's ResNet18_Weights.IMAGENET1K_V1, published by the PyTorch project"
    )
    licence: ClassVar[str] = "BSD 3-Clause (weights); ImageNet's images are for research"
    slow: ClassVar[bool] = True

    def fingerprint(self) -> str:
        name = f"resnet18-{self.size}"
        if self.mirrored:
            name += ".mirrored"
        return f"{name}:{resnet18.SHA256}"

    def width(self) -> int:
        return ResNet18().features()

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        params = _weights(pixels_NCHW.device)
        batches = torch.split(pixels_NCHW, _BATCH[pixels_NCHW.device.type])
        return torch.cat([self._batch(images, params) for images in batches])

    def _batch(self, pixels_NCHW: Tensor, params: Params) -> Tensor:
        roots_NW = self._roots(pixels_NCHW, params)
        if not self.mirrored:
            return roots_NW
        return (roots_NW + self._roots(pixels_NCHW.flip(-1), params)) / 2

    def _roots(self, pixels_NCHW: Tensor, params: Params) -> Tensor:
        x_NCHW = pixels_NCHW.float() / 255
        if x_NCHW.shape[1] == 1:
            x_NCHW = x_NCHW.expand(-1, 3, -1, -1)
        x_NCHW = F.interpolate(x_NCHW, (self.size, self.size), mode="bilinear")
        mean_C11 = torch.tensor(_MEAN, device=x_NCHW.device)[:, None, None]
        std_C11 = torch.tensor(_STD, device=x_NCHW.device)[:, None, None]
        layout = LAYOUTS[x_NCHW.device.type]
        images_1NCHW = ((x_NCHW - mean_C11) / std_C11)[None]
        c_1ND, _ = ResNet18().forward(layout, params, images_1NCHW, None)
        return c_1ND[0].clamp_min(0).sqrt()


def _weights(device: torch.device) -> Params:
    """Return the weights, checked against their hash, for one client."""
    from fedrfq.data.weights import load_weights

    return {name: tensor[None].to(device) for name, tensor in load_weights("resnet18").items()}
