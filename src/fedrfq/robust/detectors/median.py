"""BFT-detect's mean distance, from the coordinate-wise median of a class's uploads: a minority cannot drag it far.

The median as a centre: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.robust.detectors.bft_mean import BFTMean


@dataclass(frozen=True)
class Median(BFTMean):
    centre: ClassVar[str] = "median"
