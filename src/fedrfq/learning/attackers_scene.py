"""What a round's attackers know, and what would come of anything they might send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedrfq.committee import PreviousRound
from fedrfq.federation.application import Task
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.prototypes.norm_bound import moment_count
from fedrfq.robust.aggregation import Decision, detector_state
from fedrfq.robust.attacks import Foreseen, Scene


def attackers_scene(
    task: Task, number: int, before: PreviousRound, uploads: Uploads, malicious: Sequence[int]
) -> Scene:
    """Return the scene of round `number`, given the uploads that honest clients would send."""
    known = before.globals_
    state = detector_state(before.memory)
    public = task.public_in(number)
    if public is not None:
        known = before.public or public.nothing()
        state = task.detector.start(task.clients)

    def foresee(sent: Uploads) -> Foreseen:
        decision = task.decide(number, before.known(), sendable(task, number, sent))
        return _foreseen(sent, decision, public=public is not None)

    return Scene(
        uploads=uploads,
        malicious_K=np.isin(np.array(uploads.clients, np.int64), malicious),
        globals_=known,
        detector=task.detector,
        state=state,
        rule=task.rule,
        round=number,
        classes=task.classes,
        foresee=foresee,
    )


def sendable(task: Task, number: int, sent: Uploads) -> Uploads:
    """Return what attackers send, with the only counts of second moments that are admitted.

    Attackers know that others would be refused. Rounds of prototypes have no second moments.
    """
    public = task.public_in(number)
    if public is None:
        return sent
    counts_KJ = sent.counts_KJ.copy()
    counts_KJ[:, public.classes :] = moment_count(counts_KJ[:, : public.classes])[:, None]
    return replace(sent, counts_KJ=counts_KJ)


def _foreseen(sent: Uploads, decision: Decision, *, public: bool) -> Foreseen:
    """Return what a decision means for each of the uploads that would be sent."""
    weight_KJ = np.zeros((len(sent.clients), decision.verdict.weight_KJ.shape[1]), np.int64)
    kept_K = np.zeros(len(sent.clients), np.bool_)
    score_K = np.zeros(len(sent.clients), np.int64)
    # Who is refused has no row in the decision, and counts as dropped.
    judged_K = np.isin(sent.clients, decision.uploads.clients)
    weight_KJ[judged_K] = decision.verdict.weight_KJ
    kept_K[judged_K] = decision.verdict.kept_K
    score_K[judged_K] = decision.verdict.score_K
    globals_ = decision.globals_
    if public:
        assert decision.public is not None, "a public round decides on statistics"
        globals_ = decision.public
    return Foreseen(weight_KJ, kept_K, score_K, globals_)
