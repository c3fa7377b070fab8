"""The interface of a detector: it decides which uploads are kept, and scores how bad each looks.

A detector is a pure function of integers, `judge(state, globals, uploads) -> (state, verdict)`: no
clock, no randomness, no floating-point rounding, so that any two servers that saw the same uploads
agree to the bit. What it remembers of earlier rounds is its state, on which the servers agree along
with everything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fedrfq.errors import UserError
from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads

State = Mapping[str, Ints]
LONE = ("keep", "hold")


@dataclass(frozen=True)
class Verdict:
    """What a detector decided, for each row of the uploads."""

    kept_K: Bools
    score_K: Ints  # the higher the worse, in the detector's own unit


@dataclass(frozen=True)
class Detector(ABC):
    """A detector by its settings; fields are its options in an experiment file.

    A class that a single client sent cannot be judged by comparison, so `lone` says what becomes of
    it. Claimed counts are weights, so `clip` limits them.
    """

    # Whether any two servers that saw the same uploads decide the same bytes. Each class says so
    # for itself, and it is not inherited: only then may more than one server decide by it.
    exact: ClassVar[bool] = False

    lone: str = option(
        "keep",
        "What happens to a class that only one client sent: keep it, or hold it back",
        one_of(LONE),
    )
    clip: bool = option(
        True, "Whether claimed sample counts are cut to the median of the class's holders"
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.exact = cls.__dict__.get("exact", False) is True

    def __post_init__(self) -> None:
        if self.lone not in LONE:
            raise UserError(f"detector.lone must be one of {', '.join(LONE)}, not '{self.lone}'")

    def start(self, clients: int) -> State:
        """Return the state before the first round, for that many clients."""
        return {}

    @abstractmethod
    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        """Judge a round's uploads, given the global prototypes of the round before."""

    def admitted(self, uploads: Uploads) -> Uploads:
        """Return the uploads that are judged: counts clipped, lone classes held back."""
        counts_KJ = uploads.counts_KJ
        if self.clip:
            counts_KJ = clipped(counts_KJ)
        if self.lone == "hold":
            counts_KJ = np.where(uploads.held_KJ.sum(0) == 1, 0, counts_KJ)
        return replace(uploads, counts_KJ=counts_KJ)


def clipped(counts_KJ: Ints) -> Ints:
    """Cut counts to the (lower) median of those of the class's holders."""
    if not len(counts_KJ):
        return counts_KJ
    # Clients that do not hold a class are sorted to the end, out of the median's way.
    ordered_KJ = np.sort(np.where(counts_KJ > 0, counts_KJ, np.iinfo(np.int64).max), axis=0)
    middle_J = np.maximum((counts_KJ > 0).sum(0) - 1, 0) // 2
    median_J = ordered_KJ[middle_J, np.arange(counts_KJ.shape[1])]
    cut_KJ: Ints = np.minimum(counts_KJ, median_J)
    return cut_KJ
