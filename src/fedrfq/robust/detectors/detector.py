"""What a detector is: a pure function of integers that says of every upload whether it is kept, and how bad it looks.

`judge(state, globals, uploads) -> (state, verdict)`: no clock, no randomness, no floating-point rounding, so that any
two servers that saw the same uploads agree to the bit. What it remembers of earlier rounds is its state, which the
servers agree on with everything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fedrfq.errors import UserError
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads

State = Mapping[str, Ints]
LONE = ("keep", "hold")


@dataclass(frozen=True)
class Verdict:
    """Per row of the uploads: whether the client is kept, and its score: the higher the worse, in the detector's own unit."""

    kept_K: Bools
    score_K: Ints


@dataclass(frozen=True)
class Detector(ABC):
    """`lone`: a class that a single client sent cannot be judged by comparison: "keep" it, or "hold" it back.
    `clip`: a client's claimed counts, which are weights, are cut to the median of those who sent the class."""

    lone: str = option(
        "keep",
        "What happens to a class that only one client sent: keep it, or hold it back",
        one_of(LONE),
    )
    clip: bool = option(
        True, "Whether claimed sample counts are cut to the median of the class's holders"
    )

    def __post_init__(self) -> None:
        if self.lone not in LONE:
            raise UserError(f"detector.lone is one of {', '.join(LONE)}, not '{self.lone}'")

    def start(self, clients: int) -> State:
        """What is remembered before the first round, of so many clients."""
        return {}

    @abstractmethod
    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        """The verdict on a round's uploads, given the global prototypes of the round before."""

    def admitted(self, uploads: Uploads) -> Uploads:
        """The uploads with what their senders may claim: counts clipped, lone classes held back."""
        if self.clip:
            counts_KJ = clipped(uploads.counts_KJ)
        else:
            counts_KJ = uploads.counts_KJ
        if self.lone == "hold":
            counts_KJ = np.where(uploads.held_KJ.sum(0) == 1, 0, counts_KJ)
        return replace(uploads, counts_KJ=counts_KJ)


def clipped(counts_KJ: Ints) -> Ints:
    """Counts cut to the (lower) median of the class's holders."""
    ordered = np.sort(np.where(counts_KJ > 0, counts_KJ, np.iinfo(np.int64).max), axis=0)
    middle_J = np.maximum((counts_KJ > 0).sum(0) - 1, 0) // 2
    if len(ordered):
        most_J = ordered[middle_J, np.arange(counts_KJ.shape[1])]
    else:
        most_J = np.zeros(counts_KJ.shape[1], np.int64)
    cut: Ints = np.minimum(counts_KJ, most_J)
    return cut
