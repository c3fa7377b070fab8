"""Adaptive: who disagrees with everybody else is dropped, without knowing how many lie. Ours.

A class's centre is the median of what trusted clients sent, and of the last global prototype
(`observations.py`). Of every upload of a class that another trusted client sent too, the detector
asks three things:

- *far*: how far is it from the centre, in units of what is typical, the median over all classes?
  Its own vote draws the centre near, so the distance is stretched by n / (n − 1), which for a mean
  of n votes would be exact.
- *misplaced*: is it on the way to another class? This is the paper's prototype failure as a signal.
  (own² − other²) / between² is −1 at its own centre and +1 at the other; the worst of the others
  counts. All spread but that along the line between the two cancels, so swapped classes show long
  before distances tell.
- *leaning*: does it deviate straight toward another class, however little? This is the cosine of
  that angle, the worst of the others. Honest clients deviate in all directions; liars who share out
  a step they hope is small enough do not.

From the last two, what is typical in the round is subtracted, because classes are not apart yet in
the first rounds. A client's answer is the mean over its classes and one more, unremarkable class,
since few classes are little evidence; a single class that is twice too far is enough too. The
answers go into a record, a running mean for each client.

A client that is too far now or has a bad record is dropped, and all are judged again without its
votes until that changes nothing: a liar lies in all its classes, so the one where honest clients
outvote it clears the others. An odd round is forgiven, and a liar that pauses stays out for some
rounds. Nobody is judged by the last global prototypes alone: a class that liars won once would keep
its only honest client out for ever.

One typical distance serves all classes, not a median and MAD for each: a class has few holders, and
liars among them would set its own.

Limits: what stays within the honest spread and points nowhere passes. So does everything in a class
that nobody else sends, and copies that differ in a bit count as separate clients. Attackers can
also have honest clients dropped: by sending the last global prototypes, a bit changed, for every
class, which pins the centres to the past; or by claiming classes that nobody else sends and placing
them on a victim's. `docs/concepts/attacks-and-detectors.md` has figures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedrfq.prototypes.fixed_point import Bools, Globals, Ints, Uploads
from fedrfq.robust.detectors.detector import Detector, Reason, State, Verdict
from fedrfq.robust.detectors.distances import isqrt
from fedrfq.robust.detectors.observations import Observed, Sent, median
from fedrfq.robust.detectors.reasons import toward

# All scores are fixed-point numbers: this is 1.
UNIT = 1 << 10
# Too far in one round. Honest clients pass 3 in the first five rounds only, and rarely.
FAR_NOW = 7 * UNIT // 2
# The highest records that are kept; the figures are MNIST's.
LIMITS = {
    # 99 % of honest clients stay below 1.5.
    "far": 7 * UNIT // 4,
    # Honest clients stay below 0.2, in the first ten rounds below 0.3; swapped classes come to 0.7.
    "misplaced": UNIT // 4,
    # 99 % of honest clients stay below 0.12; 0.4 of the way to the next class comes to 0.4.
    "leaning": UNIT // 5,
}
# Rounds of the running mean.
MEMORY = 5
# The most times that a round is judged; two are usual when there is something to find.
PASSES = 4
# The most that one class counts for in "far".
MAX_FAR = 8 * UNIT
# The typical distance is at least this part of that between classes: trained clients agree closely.
APART = 8
# No distance counts as smaller: 1/256.
LEAST = 64
# An upload is misplaced from a quarter of the way on, where the measure is −0.5.
TOWARD = UNIT // 2
# The least that one class counts for in the other answers, lest anyone earn credit.
LOWEST = -UNIT // 2
# With fewer values than this, all that deviates leans somewhere.
FEW = 8
_LIMITS_R1 = np.array([[limit] for limit in LIMITS.values()], np.int64)


@dataclass(frozen=True)
class AdaptiveDetector(Detector):
    """Drops who is far, misplaced or leaning; a score is 1024 at the limit."""

    exact: ClassVar[bool] = True

    def start(self, clients: int) -> State:
        state = {name: np.zeros(clients, np.int64) for name in LIMITS}
        state["far"] += UNIT  # a typical distance
        return state

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        clients = np.array(uploads.clients, np.int64)
        before_RK = np.array([state[name][clients] for name in LIMITS])
        sent = Sent.of(globals_, uploads)
        kept_K = _worst(before_RK) <= UNIT
        for _ in range(PASSES):
            trusted_K = kept_K
            seen = sent.seen_by(trusted_K)
            now_RK = _answers(seen)
            after_RK = before_RK + (np.minimum(now_RK, FAR_NOW) - before_RK) // MEMORY
            score_K = np.maximum(_worst(after_RK), now_RK[0] * UNIT // FAR_NOW)
            kept_K = score_K <= UNIT
            if np.array_equal(kept_K, trusted_K):
                break
        record = {name: state[name].copy() for name in LIMITS}
        for name, after_K in zip(LIMITS, after_RK, strict=True):
            record[name][clients] = after_K
        reason_KJ = _reasons(seen, now_RK[0] > FAR_NOW, after_RK)
        return record, Verdict.of_kept(uploads, kept_K, score_K, reason_KJ)


def _worst(record_RK: Ints) -> Ints:
    """Return each client's worst record, relative to its limit."""
    worst_K: Ints = (record_RK * UNIT // _LIMITS_R1).max(0)
    return worst_K


def _reasons(seen: Observed, too_far_K: Bools, record_RK: Ints) -> Ints:
    """Return by client and class why it would be dropped: for the worst of its records."""
    worst_K = np.where(too_far_K, 0, (record_RK * UNIT // _LIMITS_R1).argmax(0))
    toward_NJ = np.where(seen.rivals_JJ[seen.class_N], seen.square_NJ, np.iinfo(np.int64).max)
    rival_N = toward_NJ.argmin(1)
    reasons_RN = np.array(
        [
            np.full_like(rival_N, Reason.FAR),
            toward(Reason.TOWARD, rival_N),
            toward(Reason.LEANING, rival_N),
        ]
    )
    reason_N = reasons_RN[worst_K[seen.client_N], np.arange(len(rival_N))]
    rivalled_N = seen.rivals_JJ[seen.class_N].any(1)
    reason_KJ = seen.spread(np.where(rivalled_N, reason_N, Reason.RECORD))
    # A class that could not be judged shares the fate of the others.
    return np.where(reason_KJ == Reason.NONE, Reason.OTHER_CLASS, reason_KJ)


def _answers(seen: Observed) -> Ints:
    """Return how far, misplaced and leaning each client is: 3 × K, in the order of LIMITS.

    A client is unremarkable if nobody else sent its classes.
    """
    classes_K = seen.spread(np.ones_like(seen.class_N)).sum(1)
    far_KJ = seen.spread(np.minimum(_far(seen), MAX_FAR))
    # The class added to everybody's is unremarkable: a typical distance here, 0 below.
    mean_K = (far_KJ.sum(1) + UNIT) // (classes_K + 1)
    answers = [np.maximum(mean_K, far_KJ.max(1, initial=0) // 2)]
    for answer_N in (_misplaced(seen), _leaning(seen)):
        answer_KJ = seen.spread(np.clip(answer_N, LOWEST, UNIT))
        answers.append(answer_KJ.sum(1) // (classes_K + 1))
    return np.array(answers)


def _far(seen: Observed) -> Ints:
    """Return each upload's distance from its centre, in units of the typical distance."""
    apart = math.isqrt(median(seen.between_JJ[seen.rivals_JJ & seen.rivals_JJ.T]))
    voters_N = seen.voters_J[seen.class_N]
    distance_N = isqrt(seen.own_N) * voters_N // np.maximum(voters_N - seen.trusted_N, 1)
    return distance_N * UNIT // max(seen.typical(distance_N), apart // APART, LEAST)


def _misplaced(seen: Observed) -> Ints:
    """Return how far each upload is on the way to another class, above what is typical."""
    unit_JJ = np.maximum(seen.between_JJ, LEAST**2) // UNIT
    toward_NJ = (seen.own_N[:, None] - seen.square_NJ) // unit_JJ[seen.class_N]
    worst_N = np.where(seen.rivals_JJ[seen.class_N], toward_NJ, -UNIT).max(1, initial=-UNIT)
    misplaced_N: Ints = np.minimum(worst_N - seen.typical(worst_N), worst_N + TOWARD)
    return misplaced_N


def _leaning(seen: Observed) -> Ints:
    """Return how straight each upload deviates toward another class, above what is typical.

    By the law of cosines, own² + between² − other² = 2 · between · (the deviation along the line).
    """
    twice_NJ = seen.own_N[:, None] + seen.between_JJ[seen.class_N] - seen.square_NJ
    along_NJ = twice_NJ // (2 * np.maximum(isqrt(seen.between_JJ), LEAST))[seen.class_N]
    worst_N = np.where(seen.rivals_JJ[seen.class_N], along_NJ, 0).max(1, initial=0)
    cosine_N = worst_N * UNIT // np.maximum(isqrt(seen.own_N), LEAST)
    leaning_N: Ints = (cosine_N - seen.typical(cosine_N)) * (seen.shape[2] >= FEW)
    return leaning_N
