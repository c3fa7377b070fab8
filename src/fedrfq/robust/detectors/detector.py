"""The interface of a detector: it weighs uploads, and says why one counts for less.

A detector is a pure function of integers, `judge(state, globals, uploads) -> (state, verdict)`: no
clock, no randomness, no floating-point rounding, so that any two servers that saw the same uploads
agree to the bit. What it remembers of earlier rounds is its state, on which the servers agree along
with everything else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from fedrfq.files.options import check_ranges, one_of, option
from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads
from fedrfq.robust.centres import FULL
from fedrfq.robust.detectors.counts import capped
from fedrfq.robust.detectors.reasons import Reason, explained
from fedrfq.robust.rules import RULES, Rule
from fedrfq.robust.state import State

__all__ = ["FULL", "LONE", "LONE_WORDS", "Detector", "Reason", "State", "Verdict"]

LONE = ("keep", "apart", "hold")
LONE_WORDS = (
    "What happens to a class of a single client: keep it, keep it if apart, or hold it back"
)
CLIP = "Whether claimed sample counts are limited to what an honest client may have"
# What `malicious` is unless it is set.
A_FIFTH = -1


@dataclass(frozen=True)
class Verdict:
    """What a detector decided, for each row of the uploads.

    A class that a client did not send has neither weight nor reason. One that it sent has a reason
    if its weight is below FULL; it may have one at FULL too, which is then about its count.
    """

    weight_KJ: Ints  # 0 to FULL
    score_K: Ints  # the higher the worse, in the detector's own unit
    reason_KJ: Ints  # numbers of `reasons.py`

    @staticmethod
    def of_weights(
        uploads: Uploads, weight_KJ: Ints, score_K: Ints, reason_KJ: Ints | int
    ) -> Verdict:
        """Return a verdict; only classes that were sent count, and reasons where weight is lost."""
        weight_KJ = np.where(uploads.held_KJ, weight_KJ, 0)
        reduced_KJ = uploads.held_KJ & (weight_KJ < FULL)
        return Verdict(weight_KJ, score_K, np.where(reduced_KJ, reason_KJ, Reason.NONE))

    @staticmethod
    def of_kept(
        uploads: Uploads, kept_K: Bools, score_K: Ints, reason_KJ: Ints | int = Reason.OTHER
    ) -> Verdict:
        """Return the verdict that some clients count in full, and the others not at all."""
        weight_KJ = np.where(kept_K[:, None], FULL, 0)
        return Verdict.of_weights(uploads, weight_KJ, score_K, reason_KJ)

    @staticmethod
    def on_nobody(classes: int) -> Verdict:
        """Return the verdict on no uploads at all."""
        nothing_KJ = np.zeros((0, classes), np.int64)
        return Verdict(nothing_KJ, np.zeros(0, np.int64), nothing_KJ)

    @cached_property
    def kept_K(self) -> Bools:
        """Return who has some weight left, or sent nothing that could have lost it."""
        lost_all_K = self.sent_KJ.any(1) & ~self.weight_KJ.any(1)
        kept_K: Bools = np.logical_not(lost_all_K)
        return kept_K

    @property
    def sent_KJ(self) -> Bools:
        """Return which classes each client sent."""
        sent_KJ: Bools = (self.weight_KJ > 0) | (self.reason_KJ > 0)
        return sent_KJ

    def only(self, rows_K: Bools) -> Verdict:
        """Return the verdict on some clients."""
        return Verdict(self.weight_KJ[rows_K], self.score_K[rows_K], self.reason_KJ[rows_K])

    def share(self, row: int) -> float:
        """Return how much of its weight a client has left, over the classes it sent: 0 to 1."""
        sent = int(self.sent_KJ[row].sum())
        return int(self.weight_KJ[row].sum()) / max(FULL * sent, 1)

    def why(self, row: int, names: Sequence[str] = ()) -> str:
        """Return in words why a client counts for less; "" if it does not.

        `names` are those of the classes.
        """
        return explained(self.weight_KJ[row], self.reason_KJ[row], names)

    def fits(self, uploads: Uploads) -> bool:
        """Return whether this can be a verdict on these uploads, by what this class promises."""
        shape = uploads.counts_KJ.shape
        if not self.weight_KJ.shape == self.reason_KJ.shape == shape:
            return False
        usual_KJ = np.where(uploads.held_KJ, FULL, 0)
        reduced_KJ = (self.weight_KJ >= 0) & (self.weight_KJ < usual_KJ) & (self.reason_KJ > 0)
        as_usual_KJ = (self.weight_KJ == usual_KJ) & (self.reason_KJ == Reason.NONE)
        return len(self.score_K) == shape[0] and bool((reduced_KJ | as_usual_KJ).all())


@dataclass(frozen=True)
class Detector(ABC):
    """A detector by its settings; fields are its options in an experiment file.

    A class that a single client sent cannot be judged by comparison, so `lone` says what becomes of
    it. Claimed counts are weights, so `clip` limits them (`counts.py`). `malicious` bounds the
    number of malicious clients, for detectors that need a bound, and for the limit of counts.
    """

    # Whether any two servers that saw the same uploads decide the same bytes. Each class says so
    # for itself, and it is not inherited: only then may more than one server decide by it.
    exact: ClassVar[bool] = False
    # Whether it allows for the noise that clients add for their samples' privacy
    # (`uploads.noise`). Others would take honest noise for lies, so they are not used with it.
    knows_noise: ClassVar[bool] = False

    lone: str = option("keep", LONE_WORDS, one_of(LONE))
    clip: bool = option(True, CLIP)
    malicious: int = option(
        A_FIFTH,
        "Most clients that may be malicious; -1: a fifth of those that sent something, rounded up",
        "-1 or more",
    )

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.exact = cls.__dict__.get("exact", False) is True

    def __post_init__(self) -> None:
        check_ranges("detector", self)

    def most_malicious(self, uploads: Uploads) -> int:
        """Return how many of a round's clients may be malicious."""
        senders = int(uploads.held_KJ.any(1).sum())
        if self.malicious == A_FIFTH:
            return -(-senders // 5)
        return min(self.malicious, senders)

    def start(self, clients: int) -> State:
        """Return the state before the first round, for that many clients."""
        return {}

    def rule(self, name: str) -> Rule:
        """Return the rule by which uploads are combined: the method's, unless overridden."""
        return RULES[name]

    @abstractmethod
    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        """Judge a round's uploads, given the global prototypes of the round before.

        The uploads are those that `admitted` returns.
        """

    def admitted(self, uploads: Uploads) -> Uploads:
        """Return the uploads that are judged: counts clipped, lone classes held back."""
        counts_KJ = uploads.counts_KJ
        if self.clip:
            counts_KJ = capped(counts_KJ, self.most_malicious(uploads))
        if self.lone == "hold":
            counts_KJ = np.where(uploads.held_KJ.sum(0) == 1, 0, counts_KJ)
        return replace(uploads, counts_KJ=counts_KJ)
