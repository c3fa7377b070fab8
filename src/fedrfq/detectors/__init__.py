"""The detectors by name. A new one is a file beside these and a line here."""

from fedrfq.detectors.adaptive import Adaptive
from fedrfq.detectors.bft import BFT
from fedrfq.detectors.bft_mean import BFTMean
from fedrfq.detectors.detector import Detector, State, Verdict
from fedrfq.detectors.median import Median
from fedrfq.detectors.medoid import Medoid
from fedrfq.detectors.none import Nothing
from fedrfq.detectors.trimmed import Trimmed

DETECTORS: dict[str, type[Detector]] = {
    "none": Nothing,
    "bft": BFT,
    "bft-mean": BFTMean,
    "median": Median,
    "trimmed": Trimmed,
    "medoid": Medoid,
    "adaptive": Adaptive,
}

__all__ = ["DETECTORS", "Detector", "State", "Verdict"]
