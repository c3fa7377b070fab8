"""BFT-detect's mean distance, measured from the coordinate-wise trimmed mean of a class's uploads.

The trimmed mean as a centre: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates", ICML 2018. A third is cut off at either end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.robust.detectors.bft_mean import BFTMean


@dataclass(frozen=True)
class Trimmed(BFTMean):
    """Drops the ψ clients with the largest mean distance from the trimmed means."""

    exact: ClassVar[bool] = True
    centre: ClassVar[str] = "trimmed"
