"""No public map: the default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedrfq.models.public_maps.public_map import PublicMap


@dataclass(frozen=True)
class NoMap(PublicMap):
    """Clients exchange nothing but what the method exchanges."""

    # Bits or a threshold without a map would be ignored, so nobody may set them.
    has_options: ClassVar[bool] = False

    @property
    def used(self) -> bool:
        return False

    def fingerprint(self) -> str:
        return ""

    def width(self) -> int:
        return 0

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        return pixels_NCHW.flatten(1)[:, :0]
