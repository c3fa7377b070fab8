"""The committees by name: who turns a round's uploads into the next global prototypes."""

from fedrfq.committee.alone import Alone
from fedrfq.committee.committee import (
    AgreedRound,
    AgreementReport,
    Committee,
    CommitteeSettings,
    PreviousRound,
)
from fedrfq.committee.direct import Direct
from fedrfq.committee.simulated import Simulated

COMMITTEES: dict[str, type[Committee]] = {"direct": Direct, "simulated": Simulated, "alone": Alone}

__all__ = [
    "COMMITTEES",
    "AgreedRound",
    "AgreementReport",
    "Alone",
    "Committee",
    "CommitteeSettings",
    "Direct",
    "PreviousRound",
    "Simulated",
]
