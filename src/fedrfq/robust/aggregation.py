"""What every server computes of a round's uploads: who is kept, and the next global prototypes. Integers, exact, pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.centres import RULES
from fedrfq.robust.detectors.detector import Detector, State, Verdict


@dataclass(frozen=True)
class Decision:
    """A round's outcome: the uploads as they counted before the filter, the verdict on them, and what follows from it."""

    uploads: Uploads
    verdict: Verdict
    state: State
    globals_: Globals


def decide(
    detector: Detector, rule: str, state: State, globals_: Globals, uploads: Uploads
) -> Decision:
    """Check, judge, filter, aggregate. A class that loses all its clients keeps its last global prototype."""
    taken = detector.admitted(uploads.checked())
    state, verdict = detector.judge(state, globals_, taken)
    return Decision(taken, verdict, state, combine(globals_, taken.only(verdict.kept_K), rule))


def combine(previous: Globals, uploads: Uploads, rule: str) -> Globals:
    """The global prototypes, by one of the rules; a class nobody sent keeps its last one."""
    present_J = np.asarray(uploads.held_KJ.any(0))
    values_JV = np.where(
        present_J[:, None], uploads.precision.rounded(RULES[rule](uploads)), previous.values_JV
    )
    return Globals(present_J | previous.present_J, values_JV)
