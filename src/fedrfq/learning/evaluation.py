"""How a round is evaluated: its record, and the figures of each client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.committee import AgreementReport
from fedrfq.data.partition import Partition
from fedrfq.experiment import Experiment
from fedrfq.federation.public_task import PublicTask
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import COMMON_COLUMNS, CommonFigures
from fedrfq.learning.draws import targets
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.aggregation import Decision
from fedrfq.robust.detectors import FULL

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round of one run.

    Accuracies are in percent; the standard deviations are those over clients. Fields with a default
    are missing in older records: those from before there were committees, or the common test.
    """

    round: int
    accuracy_mean: float
    accuracy_std: float
    # FedProto's figure, to explain gaps: the deviation of running averages over the clients.
    accuracy_std_running: float
    # By the nearest global prototype: among all classes, and among those the client holds.
    prototype_accuracy_mean: float | None
    prototype_accuracy_std: float | None
    prototype_accuracy_own_mean: float | None
    prototype_failure: float | None
    # Over the clients that are not malicious.
    honest_accuracy_mean: float | None
    honest_prototype_accuracy_mean: float | None
    loss: float
    loss_classification: float
    loss_prototype: float | None  # including other terms that a method of prototypes adds
    participants: int
    samples: int
    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    # Of these bytes, the statistics on a public map; the rest are models. None without an exchange.
    public_bytes_up: int | None = None
    public_bytes_down: int | None = None
    saturated: int  # values cut to the fixed-point range
    attackers: int  # malicious clients that attacked and took part
    attackers_filtered: int
    filtered: list[int]  # clients whose upload has no weight left
    # Of the weight that honest clients' uploads have in their classes, the percentage that the
    # detector took; None if none was sent.
    honest_weight_lost: float | None = None
    # Clients whose upload counts for less, or not at all, and why.
    reasons: dict[str, str] | None = None
    refused: dict[str, str]  # clients whose upload could not be admitted, and why
    # The view in which the committee agreed: above 0, leaders were replaced. None with one server.
    view: int | None = None
    leader: int | None = None
    # Messages among servers and clients, and their bytes.
    committee_messages: int | None = None
    committee_bytes: int | None = None
    evidence: int | None = None  # proofs that a party misbehaved
    collapsed_clients: int
    seconds_train: float
    seconds: float
    # On the common test set, which has samples of all classes; means over clients, in percent. None
    # in rounds without that test, and where clients have data of their own. First, of the final
    # prediction: on all classes, on those a client holds and on those it does not hold (None if
    # all clients hold all), and the calibration error.
    accuracy_all: float | None = None
    accuracy_held: float | None = None
    accuracy_unheld: float | None = None
    ece: float | None = None
    accuracy_all_worst: float | None = None  # of the worst client that is not malicious
    # Where public.threshold is above 0: the samples that are answered, and the accuracy on these.
    answered: float | None = None
    accuracy_answered: float | None = None
    recall: list[float | None] | None = None  # of each class
    # The same of each way to predict.
    head_accuracy_all: float | None = None
    head_accuracy_held: float | None = None
    head_accuracy_unheld: float | None = None
    head_ece: float | None = None
    prototype_accuracy_all: float | None = None
    prototype_accuracy_held: float | None = None
    prototype_accuracy_unheld: float | None = None
    prototype_ece: float | None = None
    public_accuracy_all: float | None = None
    public_accuracy_held: float | None = None
    public_accuracy_unheld: float | None = None
    public_ece: float | None = None


@dataclass(frozen=True)
class RoundOutcome:
    """A round's record, with what is behind it."""

    record: RoundRecord
    clients: list[dict[str, Any]]  # a row of figures for each client
    report: AgreementReport | None  # of the committee
    sent: Uploads


@dataclass(frozen=True)
class Tested:
    """What clients' models make of their test samples; rows are padded, with weight 0."""

    logits_KNJ: Tensor
    c_KND: Tensor
    p_KNV: Tensor
    y_KN: Tensor
    weight_KN: Tensor

    def rows(self, rows: slice) -> Tested:
        """Return the part of some clients."""
        return Tested(*(tensor[rows] for tensor in vars(self).values()))

    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the pooled and unpooled prototypes and the labels of all real samples."""
        real = self.weight_KN.bool()
        return self.p_KNV[real], self.c_KND[real], self.y_KN[real]


def side_by_side(cohorts: Sequence[Tested], runs: int) -> Tested:
    """Join cohorts, each of which has its clients run after run, into one.

    The result has all clients of the first run, then those of the next, padded to the longest row.
    """
    longest = max(cohort.y_KN.shape[1] for cohort in cohorts)

    def joined(name: str) -> Tensor:
        padded = [_padded(getattr(cohort, name), longest) for cohort in cohorts]
        by_run = [rows.reshape(runs, -1, *rows.shape[1:]) for rows in padded]
        return torch.cat(by_run, 1).flatten(0, 1)

    return Tested(*(joined(field.name) for field in fields(Tested)))


def _padded(tensor_KN: Tensor, size: int) -> Tensor:
    """Pad the rows with zeros to a size."""
    missing = (0, 0) * (tensor_KN.dim() - 2) + (0, size - tensor_KN.shape[1])
    return F.pad(tensor_KN, missing)


@dataclass(frozen=True)
class Round:
    """Everything about a round of one run that its record is made of."""

    number: int
    experiment: Experiment
    partition: Partition
    malicious: list[int]
    who: list[int]  # clients that trained
    losses_K3: Tensor  # total, classification, prototype
    sent: Uploads
    decision: Decision
    report: AgreementReport | None
    values: int  # parameters that a client sends, where parameters are exchanged
    seconds_train: float
    seconds: float
    # What was exchanged on a public map; None in a round in which nothing was.
    public: PublicTask | None = None


@dataclass(frozen=True)
class RunAccuracies:
    """One run's accuracies, client by client; None where there are no prototypes to predict by."""

    head_K: Floats  # by the client's own decision layer
    collapsed: int  # number of clients
    all_K: Floats | None  # by the nearest global prototype among all classes
    own_K: Floats | None  # … and among the classes the client holds
    failure: float | None
    common: CommonFigures | None = None


def measure(
    rounds: Sequence[Round],
    tested: Tested,
    held_KJ: Tensor,
    common: Sequence[CommonFigures | None],
) -> list[RoundOutcome]:
    """Return each run's outcome of a round; all runs' samples are evaluated at once."""
    accuracies = _accuracies(rounds, tested, held_KJ)
    return [
        outcome(done, replace(run, common=figures))
        for done, run, figures in zip(rounds, accuracies, common, strict=True)
    ]


def _accuracies(rounds: Sequence[Round], tested: Tested, held_KJ: Tensor) -> list[RunAccuracies]:
    """Return each run's accuracies; `held_KJ` says which classes each client holds."""
    runs = len(rounds)

    def by_run(guess_KN: Tensor) -> list[Floats]:
        return np.split(metrics.accuracies(guess_KN, tested.y_KN, tested.weight_KN), runs)

    heads = by_run(tested.logits_KNJ.argmax(-1))
    collapsed_K = metrics.collapsed(tested.c_KND, tested.p_KNV, tested.weight_KN, held_KJ.sum(1))
    collapsed = collapsed_K.view(runs, -1).sum(1).tolist()
    if not rounds[0].experiment.method.predicts:
        return [
            RunAccuracies(heads[r], collapsed[r], all_K=None, own_K=None, failure=None)
            for r in range(runs)
        ]
    globals_ = [targets(done.experiment, done.number, done.decision.globals_) for done in rounds]
    values_RJV = torch.from_numpy(np.stack([g.floats() for g in globals_])).to(tested.p_KNV)
    present_RJ = torch.from_numpy(np.stack([g.present_J for g in globals_])).to(held_KJ.device)
    clients = len(held_KJ) // runs
    distance_KNJ = metrics.distances(tested.p_KNV, values_RJV.repeat_interleave(clients, 0))
    present_KJ = present_RJ.repeat_interleave(clients, 0)
    among_all = by_run(metrics.nearest(distance_KNJ, present_KJ))
    among_own = by_run(metrics.nearest(distance_KNJ, held_KJ & present_KJ))
    failures = metrics.prototype_failure(
        distance_KNJ.reshape(runs, -1, distance_KNJ.shape[2]),
        tested.y_KN.reshape(runs, -1),
        tested.weight_KN.reshape(runs, -1).bool(),
        present_RJ,
    ).tolist()
    return [
        RunAccuracies(heads[r], collapsed[r], among_all[r], among_own[r], failures[r])
        for r in range(runs)
    ]


def outcome(done: Round, figures: RunAccuracies) -> RoundOutcome:
    """Return a round's record and its rows of clients."""
    record = RoundRecord(
        round=done.number,
        **_head(done, figures.head_K),
        **_prototypes(figures),
        **_honest(done, figures),
        **_losses(done),
        **_traffic(done),
        **_detection(done),
        **_agreement(done.report),
        participants=len(done.who),
        samples=_samples(done),
        collapsed_clients=figures.collapsed,
        seconds_train=done.seconds_train,
        seconds=done.seconds,
        **_common(done, figures.common),
    )
    rows = {client: row for row, client in enumerate(done.decision.uploads.clients)}
    clients = [_client(done, k, figures, rows.get(k)) for k in range(len(figures.head_K))]
    return RoundOutcome(record, clients, done.report, done.sent)


def _samples(done: Round) -> int:
    """Return how many samples were trained on, in all passes."""
    epochs = done.experiment.method.epochs(done.experiment.train.epochs)
    return sum(len(done.partition.train[k]) for k in done.who) * epochs


def _losses(done: Round) -> dict[str, Any]:
    total, classification, prototype = done.losses_K3[done.who].mean(0).tolist()
    if not _has_prototype_loss(done.experiment):
        prototype = None
    return {
        "loss": total,
        "loss_classification": classification,
        "loss_prototype": prototype,
    }


def _has_prototype_loss(experiment: Experiment) -> bool:
    """Return whether clients train toward prototypes, which may be nobody's but their own."""
    return experiment.method.predicts or experiment.method.own_means


def _head(done: Round, head_K: Floats) -> dict[str, Any]:
    counts = np.array([len(test) for test in done.partition.test])
    return {
        "accuracy_mean": float(head_K.mean()),
        "accuracy_std": float(head_K.std()),
        "accuracy_std_running": metrics.running_std(head_K, counts),
    }


def _prototypes(figures: RunAccuracies) -> dict[str, Any]:
    deviation = None
    if figures.all_K is not None:
        deviation = float(figures.all_K.std())
    return {
        "prototype_accuracy_mean": _mean(figures.all_K),
        "prototype_accuracy_std": deviation,
        "prototype_accuracy_own_mean": _mean(figures.own_K),
        "prototype_failure": figures.failure,
    }


def _common(done: Round, common: CommonFigures | None) -> dict[str, Any]:
    if common is None:
        return {}
    return common.record(_honest_K(done))


def _honest_K(done: Round) -> NDArray[np.bool_]:
    """Return which clients are not malicious."""
    return ~np.isin(np.arange(done.experiment.clients), done.malicious)


def _honest(done: Round, figures: RunAccuracies) -> dict[str, Any]:
    honest_K = _honest_K(done)
    by_prototype = None
    if figures.all_K is not None:
        by_prototype = _mean(figures.all_K[honest_K])
    return {
        "honest_accuracy_mean": _mean(figures.head_K[honest_K]),
        "honest_prototype_accuracy_mean": by_prototype,
    }


def _mean(values_K: Floats | None) -> float | None:
    """Return the mean; NaN of no values, as where every client is malicious."""
    if values_K is None:
        return None
    if len(values_K):
        return float(values_K.mean())
    return float("nan")


def _traffic(done: Round) -> dict[str, Any]:
    """Return values and bytes from all clients, and to all that took part.

    Parameters travel as float32.
    """
    receivers = len(done.who)
    # Parameters go both ways alike; where prototypes are exchanged there are none.
    shared = done.values * receivers
    values_down = 0
    bytes_down = 0
    public: dict[str, int] = {}
    if done.public is not None and done.decision.public is not None:
        values_down = done.decision.public.parameters()
        bytes_down = done.decision.public.length(done.public.precision)
        public = {
            "public_bytes_up": done.sent.length(),
            "public_bytes_down": bytes_down * receivers,
        }
    elif done.experiment.method.exchanges:
        values_down = done.decision.globals_.parameters()
        bytes_down = done.decision.globals_.length(done.experiment.method.precision())
    return {
        "parameters_up": shared + done.sent.parameters(),
        "parameters_down": shared + values_down * receivers,
        "bytes_up": 4 * shared + done.sent.length(),
        "bytes_down": 4 * shared + bytes_down * receivers,
        **public,
        "saturated": done.sent.saturated,
    }


def _detection(done: Round) -> dict[str, Any]:
    uploads = done.decision.uploads
    verdict = done.decision.verdict
    kept_K = verdict.kept_K.tolist()
    filtered = [client for client, kept in zip(uploads.clients, kept_K, strict=True) if not kept]
    attacking = attacking_in(done)
    reasons = {str(client): verdict.why(row) for row, client in enumerate(uploads.clients)}
    return {
        "attackers": len(attacking),
        "attackers_filtered": len(attacking & {*filtered, *uploads.refused}),
        "filtered": filtered,
        "honest_weight_lost": _honest_weight_lost(done),
        "reasons": {client: why for client, why in reasons.items() if why},
        "refused": {str(client): reason for client, reason in uploads.refused.items()},
    }


def _honest_weight_lost(done: Round) -> float | None:
    verdict = done.decision.verdict
    honest_K = ~np.isin(np.array(done.decision.uploads.clients, np.int64), done.malicious)
    full = FULL * int(verdict.sent_KJ[honest_K].sum())
    if not full:
        return None
    return 100 * (1 - int(verdict.weight_KJ[honest_K].sum()) / full)


def _agreement(report: AgreementReport | None) -> dict[str, Any]:
    return {
        "view": report and report.view,
        "leader": report and report.leader,
        "committee_messages": report and report.messages,
        "committee_bytes": report and report.length,
        "evidence": report and report.evidence,
    }


def attacking_in(done: Round) -> set[int]:
    """Return the clients that attacked in the round, successfully or not."""
    attack = done.experiment.attack
    if attack.harms and done.number >= attack.start_round:
        return set(done.malicious) & set(done.who)
    return set()


def _client(done: Round, k: int, figures: RunAccuracies, row: int | None) -> dict[str, Any]:
    """Return client k's figures; `row` is where its upload stands, None without one."""
    classification = None
    prototype = None
    if k in done.who:
        classification = float(done.losses_K3[k, 1])
        if _has_prototype_loss(done.experiment):
            prototype = float(done.losses_K3[k, 2])
    score = None
    weight = None
    reason = done.decision.uploads.refused.get(k, "")
    if row is not None:
        verdict = done.decision.verdict
        score = int(verdict.score_K[row])
        weight = 100 * verdict.share(row)
        reason = verdict.why(row)
    return {
        "round": done.number,
        "client": k,
        "trained": int(k in done.who),
        "classes": len(done.partition.classes[k]),
        "samples": len(done.partition.train[k]),
        "accuracy": float(figures.head_K[k]),
        "prototype_accuracy": _at(figures.all_K, k),
        "prototype_accuracy_own": _at(figures.own_K, k),
        "loss_classification": classification,
        "loss_prototype": prototype,
        "malicious": int(k in done.malicious),
        "verdict": _verdict(done, k, row),
        "score": score,
        "reason": reason,
        **_common_client(figures.common, k),
        "weight": weight,
    }


def _common_client(common: CommonFigures | None, k: int) -> dict[str, float | None]:
    nothing: dict[str, float | None] = dict.fromkeys(COMMON_COLUMNS)
    if common is None:
        return nothing
    return nothing | common.client(k)


def _verdict(done: Round, k: int, row: int | None) -> str:
    """Return what became of client k's upload: refused, kept or filtered; "" without one."""
    if k in done.decision.uploads.refused:
        return "refused"
    if row is None:
        return ""
    if done.decision.verdict.kept_K[row]:
        return "kept"
    return "filtered"


def _at(values_K: Floats | None, k: int) -> float | None:
    if values_K is None:
        return None
    return float(values_K[k])
