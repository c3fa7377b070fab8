"""Random convolutions as a public map: no weights to fetch, nothing to trust but a seed.

Layers of 5×5 convolutions with random filters, each followed by max-pooling by 2 and ReLU. On
digits the nearest class mean tells about 85 % of all classes on such a map, and LDA 95 %.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.files.options import option
from fedrfq.models.public_maps.public_map import PublicMap, drawn

_KERNEL = 5
_POOL = 2
# Images at once: more do not stay in a CPU's cache.
_BATCH = 100


@dataclass(frozen=True)
class RandomMap(PublicMap):
    """Two layers of random filters, drawn from `filter_seed`."""

    filter_seed: int = option(0, "Seed of the random filters, the same for all", "0 or more")
    first: int = option(32, "Filters of the first layer", "1 or more")
    second: int = option(32, "Filters of the second layer", "1 or more")

    source: ClassVar[str] = "drawn from public.filter_seed by SHAKE-256: anybody can draw it again"
    licence: ClassVar[str] = "none needed"

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("first", "second"):
            if getattr(self, key) < 1:
                raise UserError(f"public.{key} must be at least 1, not {getattr(self, key)}")
        if self.filter_seed < 0:
            raise UserError(f"public.filter_seed must not be negative, not {self.filter_seed}")

    def fingerprint(self) -> str:
        about = f"random {self.filter_seed} {self.first} {self.second} {_KERNEL} {_POOL}"
        return f"random:{hashlib.sha256(about.encode()).hexdigest()}"

    def width(self, shape: tuple[int, int, int]) -> int:
        _, height, width = shape
        return self.second * _side_after(height) * _side_after(width)

    @torch.no_grad()
    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        parts = [self._batch(images) for images in pixels_NCHW.split(_BATCH)]
        return torch.cat(parts)

    def _batch(self, pixels_NCHW: Tensor) -> Tensor:
        h = pixels_NCHW.float() / 255
        for layer, outputs in enumerate((self.first, self.second)):
            inputs = h.shape[1]
            name = f"{self.fingerprint()} layer {layer}"
            filters = torch.from_numpy(drawn(name, (outputs, inputs, _KERNEL, _KERNEL)).copy())
            # Scaled so that values keep their size from layer to layer.
            weight = filters.to(h) / (74 * (inputs * _KERNEL**2) ** 0.5)
            h = F.relu(F.max_pool2d(F.conv2d(h, weight), _POOL))
        return h.flatten(1)


def _side_after(side: int) -> int:
    """Return the side of an image after both layers."""
    for _ in range(2):
        side = (side - _KERNEL + 1) // _POOL
    if side < 1:
        raise UserError(
            "public.name = 'random' needs images of at least 16×16 pixels: scale them up"
        )
    return side
