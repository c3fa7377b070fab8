"""What every server computes from a round's uploads: their weights, and the next prototypes.

In a public round the uploads are statistics of classes on a public feature map instead.

It is exact and pure, on integers: servers that saw the same uploads decide the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedrfq.errors import UserError
from fedrfq.plugins import owner_of
from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.centres import FULL
from fedrfq.robust.detectors.detector import Detector, Reason, Verdict
from fedrfq.robust.detectors.lone_classes import without_those_on_top
from fedrfq.robust.exactness import inexact
from fedrfq.robust.rules import RULES, Rule
from fedrfq.robust.state import RETAINED, RULE, State, inner_state, outer_state

_NOT_THE_DETECTORS = (f"{RULE}/", f"{RETAINED}/")


@dataclass(frozen=True)
class Decision:
    """The outcome of a round."""

    uploads: Uploads  # as they counted before they were weighed
    verdict: Verdict
    state: State  # of the detector and the rule, for the next round
    globals_: Globals
    # The statistics on the public feature map: a row for each class, then the second moments.
    public: Globals | None = None

    def kept_uploads(self) -> Uploads:
        """Return the uploads that have any weight left, class by class."""
        counts_KJ = np.where(self.verdict.weight_KJ > 0, self.uploads.counts_KJ, 0)
        return replace(self.uploads, counts_KJ=counts_KJ).only(self.verdict.kept_K)


def start(detector: Detector, rule: str, clients: int, classes: int, values: int) -> State:
    """Return what detector and rule remember before the first round."""
    fresh = detector.rule(rule).start(classes, values)
    return _joined(detector.start(clients), fresh)


def detector_state(state: State) -> State:
    """Return what the detector remembers."""
    return {name: array for name, array in state.items() if not name.startswith(_NOT_THE_DETECTORS)}


def rule_part(state: State) -> State:
    """Return what the rule remembers, by the names that it has beside the detector's."""
    return {name: array for name, array in state.items() if name.startswith(f"{RULE}/")}


def _joined(detectors: State, rules: State) -> State:
    assert len(detector_state(detectors)) == len(detectors), f"{_NOT_THE_DETECTORS} are others'"
    return {**detectors, **outer_state(rules, RULE)}


def check_exact(detector: Detector, rule: str, servers: int) -> None:
    """Raise UserError where several servers could decide differently on the same uploads."""
    if servers < 2:
        return
    for what, part in (("detector", detector), ("rule", detector.rule(rule))):
        if not part.exact:
            raise UserError(
                f"{servers} servers must decide the same bytes, and the {what} "
                f"{type(part).__qualname__} does not say that it is exact: compute on integers "
                'and declare `exact = True`, or trust one server: committee.name = "direct"'
            )
        # A plugin's word is not enough; what is our own is tested.
        why = inexact(part) if owner_of(part) else ""
        if why:
            raise UserError(
                f"{servers} servers must decide the same bytes, and the {what} "
                f"{type(part).__qualname__} calls itself exact, but {why}: compute on integers, "
                'or trust one server: committee.name = "direct"'
            )


def decide(
    detector: Detector, rule: str, state: State, globals_: Globals, uploads: Uploads
) -> Decision:
    """Check, judge, weigh and aggregate a round's uploads.

    A class in which nobody has any weight left keeps its last global prototype.
    """
    counted, remembered, verdict = _judged(
        detector, detector_state(state), globals_, uploads.checked()
    )
    ruled, combined = aggregate(
        detector.rule(rule), inner_state(state, RULE), globals_, counted, verdict.weight_KJ
    )
    return Decision(counted, verdict, _joined(remembered, ruled), combined)


def decide_public(
    detector: Detector, clients: int, classes: int, last: Globals, uploads: Uploads
) -> tuple[Uploads, Verdict, Globals]:
    """Judge, weigh and average uploads of class statistics, given the last ones.

    Return the uploads as they counted before they were weighed, the verdict on their classes, and
    the new statistics.

    The detector starts afresh: what it remembers is of prototypes, in other units. It compares the
    class means, which are the first rows, because the second moments of honest clients differ as
    much as the classes that they hold. These are of all a client's samples together, so they weigh
    as little as the class that weighs least.
    """
    means = _rows(uploads, slice(classes))
    last_means = Globals(last.present_J[:classes], last.values_JV[:classes])
    _, _, verdict = _judged(detector, detector.start(clients), last_means, means)
    least_K = np.where(verdict.sent_KJ, verdict.weight_KJ, FULL).min(1, initial=FULL)
    moments = uploads.counts_KJ.shape[1] - classes
    weight_KJ = np.hstack([verdict.weight_KJ, np.repeat(least_K[:, None], moments, axis=1)])
    counted = admitted(detector, classes, uploads)
    # Weighted by samples, so that means and moments are those of all samples together, but for what
    # the detector's rule limits of the means. It starts afresh, too: a client's data may change.
    found = [
        aggregate(rule, {}, _nothing(last, rows), _rows(counted, rows), weight_KJ[:, rows])[1]
        for rows, rule in (
            (slice(classes), detector.rule("weighted")),
            (slice(classes, None), RULES["weighted"]),
        )
    ]
    present_J = np.hstack([part.present_J for part in found])
    values_JV = np.vstack([part.values_JV for part in found])
    values_JV = np.where(present_J[:, None], values_JV, last.values_JV)
    return counted, verdict, Globals(present_J | last.present_J, values_JV)


def _nothing(last: Globals, rows: slice) -> Globals:
    return Globals(np.zeros_like(last.present_J[rows]), np.zeros_like(last.values_JV[rows]))


def admitted(detector: Detector, classes: int, uploads: Uploads) -> Uploads:
    """Return the uploads as they count before they are weighed.

    Rows after the classes are second moments of all a client's samples, so their counts are not
    compared with those of classes.
    """
    blocks = [
        detector.admitted(_rows(uploads, rows)).counts_KJ
        for rows in (slice(classes), slice(classes, None))
    ]
    return replace(uploads, counts_KJ=np.hstack(blocks))


def _rows(uploads: Uploads, rows: slice) -> Uploads:
    """Return some rows of everybody's uploads."""
    return replace(
        uploads,
        counts_KJ=uploads.counts_KJ[:, rows],
        values_KJV=uploads.values_KJV[:, rows],
    )


def _judged(
    detector: Detector, state: State, globals_: Globals, uploads: Uploads
) -> tuple[Uploads, State, Verdict]:
    """Return the uploads as they counted before they were weighed, the state and the verdict."""
    counted = detector.admitted(uploads)
    state, verdict = detector.judge(state, globals_, counted)
    assert verdict.fits(counted), f"{type(detector).__name__} gave a verdict that does not fit"
    if detector.lone == "apart":
        verdict = without_those_on_top(verdict, globals_, counted)
    return counted, state, _with_admission(verdict, uploads, counted)


def _with_admission(verdict: Verdict, uploads: Uploads, counted: Uploads) -> Verdict:
    """Return the verdict with reasons for what was not admitted: lone classes, large counts."""
    reason_KJ = verdict.reason_KJ
    cut_KJ = counted.counts_KJ < uploads.counts_KJ
    reason_KJ = np.where(cut_KJ & (reason_KJ == Reason.NONE), Reason.COUNT, reason_KJ)
    reason_KJ = np.where(uploads.held_KJ & ~counted.held_KJ, Reason.ALONE, reason_KJ)
    return replace(verdict, reason_KJ=reason_KJ)


def aggregate(
    rule: Rule, state: State, last: Globals, uploads: Uploads, weight_KJ: Ints
) -> tuple[State, Globals]:
    """Return the rule's state for the next round, and the new global prototypes.

    A class in which nobody has any weight keeps its last one.
    """
    present_J = np.asarray((uploads.held_KJ & (weight_KJ > 0)).any(0))
    state, centres_JV = rule.combine(state, last, uploads, weight_KJ)
    _check_centres(rule, centres_JV, last.values_JV.shape)
    centres_JV = uploads.precision.rounded(centres_JV)
    values_JV = np.where(present_J[:, None], centres_JV, last.values_JV)
    return state, Globals(present_J | last.present_J, values_JV)


def _check_centres(rule: Rule, centres_JV: Ints, shape: tuple[int, ...]) -> None:
    """Raise UserError where a rule returns no whole number for each class and value."""
    if centres_JV.dtype != np.int64 or centres_JV.shape != shape:
        raise UserError(
            f"the rule {type(rule).__qualname__} returned centres of {centres_JV.dtype} "
            f"{centres_JV.shape}: return int64 {shape}, such as np.rint(centre_JV).astype(np.int64)"
        )


def combine(previous: Globals, uploads: Uploads, rule: str) -> Globals:
    """Return what a rule that remembers nothing yet makes of uploads that all count in full."""
    fresh = RULES[rule].start(*previous.values_JV.shape)
    full_KJ = np.where(uploads.held_KJ, FULL, 0)
    return aggregate(RULES[rule], fresh, previous, uploads, full_KJ)[1]
