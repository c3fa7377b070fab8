"""What every server computes from a round's uploads: who is kept, and the next global prototypes.

In a public round the uploads are statistics of classes on a public feature map instead.

It is exact and pure, on integers: servers that saw the same uploads decide the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.centres import RULES
from fedrfq.robust.detectors.detector import Detector, State, Verdict


@dataclass(frozen=True)
class Decision:
    """The outcome of a round."""

    uploads: Uploads  # as they counted before the filter
    verdict: Verdict
    state: State  # of the detector, for the next round
    globals_: Globals
    # The statistics on the public feature map: a row for each class, then the second moments.
    public: Globals | None = None


def check_exact(detector: Detector, servers: int) -> None:
    """Raise UserError where several servers could decide differently on the same uploads."""
    if servers > 1 and not detector.exact:
        raise UserError(
            f"{servers} servers must decide the same bytes, and the detector "
            f"{type(detector).__qualname__} does not say that it is exact: compute on integers "
            'and declare `exact = True`, or trust one server: committee.name = "direct"'
        )


def decide(
    detector: Detector, rule: str, state: State, globals_: Globals, uploads: Uploads
) -> Decision:
    """Check, judge, filter and aggregate a round's uploads.

    A class that loses all its clients keeps its last global prototype.
    """
    admitted = detector.admitted(uploads.checked())
    state, verdict = detector.judge(state, globals_, admitted)
    return Decision(
        admitted, verdict, state, combine(globals_, admitted.only(verdict.kept_K), rule)
    )


def decide_public(
    detector: Detector, clients: int, classes: int, last: Globals, uploads: Uploads
) -> tuple[Uploads, Verdict, Globals]:
    """Judge, filter and average uploads of class statistics, given the last ones.

    Return the uploads as they counted before the filter, the verdict, and the new statistics.

    The detector starts afresh: what it remembers is of prototypes, in other units. It compares the
    class means, which are the first rows, because the second moments of honest clients differ as
    much as the classes that they hold.
    """
    admitted = detector.admitted(uploads)
    means = replace(
        admitted,
        counts_KJ=admitted.counts_KJ[:, :classes],
        values_KJV=admitted.values_KJV[:, :classes],
    )
    last_means = Globals(last.present_J[:classes], last.values_JV[:classes])
    _, verdict = detector.judge(detector.start(clients), last_means, means)
    # Weighted by samples, so that means and moments are those of all samples together.
    public = combine(last, admitted.only(verdict.kept_K), "weighted")
    return admitted, verdict, public


def combine(previous: Globals, uploads: Uploads, rule: str) -> Globals:
    """Return the global prototypes by one of the rules; a class nobody sent keeps its last one."""
    present_J = np.asarray(uploads.held_KJ.any(0))
    centres_JV = uploads.precision.rounded(RULES[rule](uploads))
    values_JV = np.where(present_J[:, None], centres_JV, previous.values_JV)
    return Globals(present_J | previous.present_J, values_JV)
