"""The detectors by name. A new detector is a file beside these and a line here."""

from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.detectors.bft import BFT
from fedrfq.robust.detectors.bft_mean import BFTMean
from fedrfq.robust.detectors.detector import FULL, Detector, Reason, State, Verdict
from fedrfq.robust.detectors.median import Median
from fedrfq.robust.detectors.medoid import Medoid
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.detectors.sampling import Sampling
from fedrfq.robust.detectors.trimmed import Trimmed

DETECTORS: dict[str, type[Detector]] = {
    "none": NoDetection,
    "bft": BFT,
    "bft-mean": BFTMean,
    "median": Median,
    "trimmed": Trimmed,
    "medoid": Medoid,
    "adaptive": AdaptiveDetector,
    "sampling": Sampling,
}

__all__ = ["DETECTORS", "FULL", "Detector", "Reason", "State", "Verdict"]
