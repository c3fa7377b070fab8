"""BFT-detect's mean distance, measured from the coordinate-wise median of a class's uploads.

The median as a centre: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018. A minority cannot drag it far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.robust.detectors.bft_mean import BFTMean


@dataclass(frozen=True)
class Median(BFTMean):
    """Drops the ψ clients with the largest mean distance from the medians."""

    exact: ClassVar[bool] = True
    centre: ClassVar[str] = "median"
