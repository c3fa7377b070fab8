"""example-map: a public map that looks at the image in 4×4 tiles: their means and deviations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

import fedrfq
from fedrfq.models.public_maps import PublicMap

_TILES = 4


@fedrfq.register("public-map", "example-map")
@dataclass(frozen=True)
class ExampleMap(PublicMap):
    """Means and deviations of grey values in 16 tiles: 32 values."""

    # Operators read this before they agree on a map.
    source: ClassVar[str] = "computed from the image alone"
    licence: ClassVar[str] = "none needed"

    def width(self) -> int:
        """Return the number of values of a vector."""
        return 2 * _TILES * _TILES

    def fingerprint(self) -> str:
        """Return the name by which members know that they use the same map: change it with raw."""
        return "example-map.1"

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        """Return the vectors of images, whose values are 0 to 255. It must never be trained."""
        grey_N1HW = pixels_NCHW.float().mean(1, keepdim=True) / 255
        means = F.adaptive_avg_pool2d(grey_N1HW, _TILES)
        squares = F.adaptive_avg_pool2d(grey_N1HW.square(), _TILES)
        deviations = (squares - means.square()).clamp_min(0).sqrt()
        return torch.cat([means, deviations], 1).flatten(1)
