"""Random convolutions as a public map: no weights to fetch, nothing to trust but a seed.

Two layers of 5×5 convolutions with random filters, each followed by max-pooling and ReLU. The first
halves the image, the second makes it 4×4 pixels, whatever size it had. On digits of all
classes the nearest mean is right about 85 % of the time on such a map, and LDA 95 %.
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
_SIDE = 4  # pixels a side of what is left of an image
_MIN_SIDE = 14
_MAX_FILTERS = 2048  # an upload's rows have at most 65,535 values
# Images at once: more do not stay in a CPU's cache.
_BATCH = 100
# Of the numbers that `drawn` gives.
_DEVIATION = 74


@dataclass(frozen=True)
class RandomMap(PublicMap):
    """Two layers of random filters, drawn from `filter_seed`."""

    filter_seed: int = option(0, "Seed of the random filters, the same for all", "0 or more")
    first: int = option(64, "Filters of the first layer", f"1 to {_MAX_FILTERS}")
    second: int = option(32, "Filters of the second layer", f"1 to {_MAX_FILTERS}")

    source: ClassVar[str] = "drawn from public.filter_seed by SHAKE-256: anybody can draw it again"
    licence: ClassVar[str] = "none needed"

    def fingerprint(self) -> str:
        about = f"random {self.filter_seed} {self.first} {self.second} {_KERNEL} {_SIDE}"
        return f"random:{hashlib.sha256(about.encode()).hexdigest()}"

    def width(self) -> int:
        return self.second * _SIDE**2

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        side = min(pixels_NCHW.shape[2:])
        if side < _MIN_SIDE:
            raise UserError(
                f"public.name = 'random' needs images of at least {_MIN_SIDE} pixels a side, but "
                f"these have {side}: scale them up"
            )
        filters_1 = self._filters("first", self.first, pixels_NCHW.shape[1])
        filters_2 = self._filters("second", self.second, self.first)
        vectors = []
        for batch_NCHW in torch.split(pixels_NCHW, _BATCH):
            h = F.conv2d(batch_NCHW.float() / 255, filters_1)
            h = F.conv2d(F.relu(F.max_pool2d(h, 2)), filters_2)
            vectors.append(F.relu(F.adaptive_max_pool2d(h, _SIDE)).flatten(1))
        return torch.cat(vectors)

    def _filters(self, layer: str, outputs: int, inputs: int) -> Tensor:
        """Return a layer's filters, scaled so that values keep their size from layer to layer."""
        shape = (outputs, inputs, _KERNEL, _KERNEL)
        numbers = torch.from_numpy(drawn(f"{self.fingerprint()} {layer}", shape).copy())
        filters: Tensor = numbers.float() / (_DEVIATION * (inputs * _KERNEL**2) ** 0.5)
        return filters
