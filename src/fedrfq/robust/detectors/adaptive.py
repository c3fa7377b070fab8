"""Adaptive: who disagrees more than honest clients can loses weight; nobody can be framed. Ours.

At most m clients are malicious (`malicious`). How far two clients disagree depends on their two
uploads alone, so m liars can give anybody at most m disagreements. A client's *proven* disagreement
is therefore its (m + 1)-th largest, and the *allowed* one is the (m + 1)-th largest of all clients'
proven ones: at least one of those m + 1 clients is honest. A client is *charged* with its
(2m + 1)-th largest: of those 2m + 1 others more than m are honest (`disagreement.py`). Liars that
agree with each other, or share a class with few, may have no such charge. So a client is charged
with a third of what is proven of it, if that is more.

A client's record is a running mean of charged / allowed. Up to 3/2 it has its full weight, from 2
on it has none, in between a part. An odd round is forgiven, a liar that pauses stays out for a
while.

Whatever m liars send, an honest client's (2m + 1)-th largest disagreement is at most what honest
clients alone prove of it, and what is proven of it at most its largest with one of them. What is
allowed is at least what it would be among them alone, since more clients can only raise an
(m + 1)-th largest value. So nobody is framed of whom they prove no more than 3/2 of what is
allowed, as of all honest clients but m, and who disagrees with none of them by more than three
times that. `docs/concepts/adaptive-detector.md` has the proof and a picture.

What disagrees less is not accused. Its influence is limited instead, by the rule that this detector
brings along (`rules/bounded.py`). That also serves where a class has too few holders to accuse
anybody: who shares a class with no more than m others is charged with nothing.

Where clients add noise for their samples' privacy, two of them may also disagree by what the noise
of both explains. That too depends on their two uploads alone, as their counts are admitted. A liar
can buy room by claiming few samples, but then it weighs little.

Limits: lies within the honest spread are only bounded, and with more than m liars nothing is
promised. Of a class that nobody else sent nothing can be proven: `lone` decides about it, by
default whether it lies on top of another class (`lone_classes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrfq.files.options import one_of, option
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.detectors.detector import (
    FULL,
    LONE,
    LONE_WORDS,
    Detector,
    Reason,
    State,
    Verdict,
)
from fedrfq.robust.detectors.disagreement import (
    allowed,
    charged,
    disagreements,
    explained,
    partners,
    proven,
)
from fedrfq.robust.distances import LEAST, isqrt
from fedrfq.robust.rules import RULES, Rule
from fedrfq.robust.rules.bounded import TOWARD, Bounded
from fedrfq.robust.rules.rule import Forgetful

# All scores are fixed-point numbers: this is 1, what is allowed.
UNIT = 1 << 10
# The highest record that costs no weight. Some honest clients have data unlike anybody else's.
SPARED = 3 * UNIT // 2
# The lowest record that costs all of it.
GONE = 2 * UNIT
# How many times as far as others an honest client may be from the one that is least like it.
CRUDE = 3
# The most that one round adds to a record: one is enough to lose all weight, if the record was 1.
WORST = 4 * UNIT
# Rounds of the running mean.
MEMORY = 3


@dataclass(frozen=True)
class AdaptiveDetector(Detector):
    """Takes weight from clients that are charged with more than the allowed disagreement.

    A score is 1024 for what is allowed; weight is lost from 1536 on.
    """

    lone: str = option("apart", LONE_WORDS, one_of(LONE))
    toward: int = option(
        TOWARD,
        "Percent of the way to another class beyond which an upload counts less",
        "1 to 100",
    )

    exact: ClassVar[bool] = True
    knows_noise: ClassVar[bool] = True

    def start(self, clients: int) -> State:
        return {"record": np.full(clients, UNIT, np.int64)}

    def rule(self, name: str) -> Rule:
        """Return the method's rule, with bounded influence."""
        rule = RULES[name]
        if isinstance(rule, Forgetful):
            return Bounded(rule.centre, self.toward)
        return rule

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        clients = np.array(uploads.clients, np.int64)
        now_K = self._now(uploads)
        before_K = state["record"][clients]
        # Who agrees best earns no credit for a lie to come.
        after_K = before_K + (np.clip(now_K, UNIT, WORST) - before_K) // MEMORY
        record = state["record"].copy()
        record[clients] = after_K
        weight_K = np.clip((GONE - after_K) * FULL // (GONE - SPARED), 0, FULL)
        reason_K = np.where(now_K > SPARED, Reason.FAR, Reason.RECORD)
        weight_KJ = np.broadcast_to(weight_K[:, None], uploads.counts_KJ.shape)
        # A class that nobody else sent shares the fate of the client's others.
        reason_KJ = np.where(uploads.held_KJ.sum(0) > 1, reason_K[:, None], Reason.OTHER_CLASS)
        return {"record": record}, Verdict.of_weights(uploads, weight_KJ, after_K, reason_KJ)

    def _now(self, uploads: Uploads) -> Ints:
        """Return what each client is charged with, in units of what is allowed."""
        liars = self.most_malicious(uploads)
        # Of those with more than 2m partners, liars must not be the half: more than m of them are
        # honest and have more than m honest partners, so that what is allowed is not nothing.
        if (partners(uploads) > 2 * liars).sum() <= 2 * liars:
            return np.zeros(len(uploads.clients), np.int64)
        disagreement_KK = disagreements(uploads)
        # Differences of a step of the grid in every value are rounding.
        rounding = uploads.precision.step * int(isqrt(np.array(uploads.values_KJV.shape[2])))
        most = max(allowed(proven(disagreement_KK, liars), liars), rounding, LEAST)
        # Noise may explain more than that, of some pairs.
        excess_KK = disagreement_KK * UNIT // np.maximum(explained(uploads), most)
        return np.maximum(charged(excess_KK, liars), proven(excess_KK, liars) // CRUDE)
