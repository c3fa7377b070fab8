"""BFT-detect's mean distance, from the coordinate-wise trimmed mean of a class's uploads, a third off at either end.

The trimmed mean as a centre: Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates",
ICML 2018.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fedrfq.robust.detectors.bft_mean import BFTMean


@dataclass(frozen=True)
class Trimmed(BFTMean):
    centre: ClassVar[str] = "trimmed"
