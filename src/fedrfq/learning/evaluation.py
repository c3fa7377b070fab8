"""What is known of a run after a round: the record, and each client's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fedrfq.committee import AgreementReport
from fedrfq.data.partition import Partition
from fedrfq.experiment import Experiment
from fedrfq.learning import metrics
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.aggregation import Decision

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """One round of one run. Accuracies are in percent; ± is the true standard deviation over clients. What has a default is
    missing in records from before there were committees."""

    round: int
    accuracy_mean: float
    accuracy_std: float
    accuracy_std_running: (
        float  # FedProto's figure, to explain gaps: the std of running averages over the clients
    )
    prototype_accuracy_mean: float | None  # nearest global prototype, over all classes
    prototype_accuracy_std: float | None
    prototype_accuracy_own_mean: float | None  # … over the classes the client holds
    prototype_failure: float | None
    honest_accuracy_mean: float | None  # over the clients that are not malicious
    honest_prototype_accuracy_mean: float | None
    loss: float
    loss_classification: float
    loss_prototype: float | None  # with what else a method of prototypes adds to it
    participants: int
    samples: int
    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    saturated: int
    attackers: int  # malicious clients that attacked and took part
    attackers_filtered: int
    filtered: list[int]  # clients whose upload did not count, by the detector's verdict
    refused: dict[str, str]  # … because it could not be taken, and why
    view: int | None = (
        None  # in which the committee agreed; more than 0: leaders were replaced. None with one trusted server
    )
    leader: int | None = None
    committee_messages: int | None = None  # among servers and clients, and their bytes
    committee_bytes: int | None = None
    evidence: int | None = None  # proofs that somebody misbehaved
    collapsed_clients: int
    seconds_train: float
    seconds: float


@dataclass(frozen=True)
class RoundOutcome:
    """A round's record with each client's figures, one row a client, the committee's report, and what the clients sent."""

    record: RoundRecord
    clients: list[dict[str, Any]]
    report: AgreementReport | None
    sent: Uploads


@dataclass(frozen=True)
class Tested:
    """Clients' test samples through their models; rows are padded to the longest, with weight 0."""

    logits_KNJ: Tensor
    c_KND: Tensor
    p_KNV: Tensor
    y_KN: Tensor
    weight_KN: Tensor

    def rows(self, rows: slice) -> Tested:
        return Tested(*(tensor[rows] for tensor in vars(self).values()))

    def vectors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Pooled and unpooled prototypes and labels of all real samples."""
        real = self.weight_KN.bool()
        return self.p_KNV[real], self.c_KND[real], self.y_KN[real]


def side_by_side(cohorts: Sequence[Tested], runs: int) -> Tested:
    """Cohorts, each run after run, as all of the first run's clients, then the next one's, padded to the longest."""
    longest = max(part.y_KN.shape[1] for part in cohorts)
    columns = zip(*(vars(part).values() for part in cohorts), strict=True)
    return Tested(
        *(_joined([_padded(tensor, longest) for tensor in column], runs) for column in columns)
    )


def _joined(cohorts: Sequence[Tensor], runs: int) -> Tensor:
    return torch.cat([rows.reshape(runs, -1, *rows.shape[1:]) for rows in cohorts], 1).flatten(0, 1)


def _padded(tensor_KN: Tensor, size: int) -> Tensor:
    missing = (0, 0) * (tensor_KN.dim() - 2) + (0, size - tensor_KN.shape[1])
    return F.pad(tensor_KN, missing)


@dataclass(frozen=True)
class Round:
    """All that a round of one run left behind."""

    number: int
    experiment: Experiment
    partition: Partition
    malicious: list[int]
    who: list[int]
    losses_K3: Tensor  # total, classification, prototype
    sent: Uploads
    decision: Decision
    report: AgreementReport | None
    values: int  # that a client sends of its parameters, where those are exchanged
    seconds_train: float
    seconds: float


@dataclass(frozen=True)
class RunAccuracies:
    """One run's accuracies: by the own head; by the nearest global prototype, among all and among the own classes."""

    head_K: Floats
    collapsed: int
    all_K: Floats | None
    own_K: Floats | None
    failure: float | None


def measure(rounds: Sequence[Round], tested: Tested, held_KJ: Tensor) -> list[RoundOutcome]:
    """Each run's outcome of a round. What needs the samples is computed for all runs at once."""
    return [
        outcome(done, figures)
        for done, figures in zip(rounds, _figures(rounds, tested, held_KJ), strict=True)
    ]


def _figures(rounds: Sequence[Round], tested: Tested, held_KJ: Tensor) -> list[RunAccuracies]:
    runs = len(rounds)
    heads = np.split(
        metrics.accuracies(tested.logits_KNJ.argmax(-1), tested.y_KN, tested.weight_KN), runs
    )
    dead_K = metrics.collapsed(tested.c_KND, tested.p_KNV, tested.weight_KN, held_KJ.sum(1))
    dead = dead_K.view(runs, -1).sum(1).tolist()
    if not rounds[0].experiment.method.exchanges:
        return [
            RunAccuracies(head_K, collapsed, None, None, None)
            for head_K, collapsed in zip(heads, dead, strict=True)
        ]
    globals_ = [done.decision.globals_ for done in rounds]
    values_RJV = torch.from_numpy(np.stack([g.floats() for g in globals_])).to(tested.p_KNV)
    present_RJ = torch.from_numpy(np.stack([g.present_J for g in globals_])).to(held_KJ.device)
    clients = len(held_KJ) // runs
    distance_KNJ = metrics.distances(tested.p_KNV, values_RJV.repeat_interleave(clients, 0))
    present_KJ = present_RJ.repeat_interleave(clients, 0)
    guesses = (
        metrics.nearest(distance_KNJ, allowed_KJ)
        for allowed_KJ in (present_KJ, held_KJ & present_KJ)
    )
    everything, own = (
        np.split(metrics.accuracies(guess, tested.y_KN, tested.weight_KN), runs)
        for guess in guesses
    )
    distance_RNJ, y_RN, weight_RN = (
        t.reshape(runs, -1, *t.shape[2:]) for t in (distance_KNJ, tested.y_KN, tested.weight_KN)
    )
    failures = metrics.prototype_failure(distance_RNJ, y_RN, weight_RN.bool(), present_RJ).tolist()
    return [
        RunAccuracies(*found) for found in zip(heads, dead, everything, own, failures, strict=True)
    ]


def outcome(done: Round, figures: RunAccuracies) -> RoundOutcome:
    """A round's record, and its rows of clients, from what it left behind and how its clients were tested."""
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
    )
    rows = {client: row for row, client in enumerate(done.decision.uploads.clients)}
    clients = [_client(done, k, figures, rows.get(k)) for k in range(len(figures.head_K))]
    return RoundOutcome(record, clients, done.report, done.sent)


def _samples(done: Round) -> int:
    epochs = done.experiment.method.epochs(done.experiment.train.epochs)
    return sum(len(done.partition.train[k]) for k in done.who) * epochs


def _losses(done: Round) -> dict[str, Any]:
    total, classification, prototype = done.losses_K3[done.who].mean(0).tolist()
    exchanges = done.experiment.method.exchanges
    return {
        "loss": total,
        "loss_classification": classification,
        "loss_prototype": prototype if exchanges else None,
    }


def _head(done: Round, head_K: Floats) -> dict[str, Any]:
    counts = np.array([len(test) for test in done.partition.test])
    running = metrics.running_std(head_K, counts)
    return {
        "accuracy_mean": float(head_K.mean()),
        "accuracy_std": float(head_K.std()),
        "accuracy_std_running": running,
    }


def _prototypes(found: RunAccuracies) -> dict[str, Any]:
    return {
        "prototype_accuracy_mean": _mean(found.all_K),
        "prototype_accuracy_std": None if found.all_K is None else float(found.all_K.std()),
        "prototype_accuracy_own_mean": _mean(found.own_K),
        "prototype_failure": found.failure,
    }


def _honest(done: Round, found: RunAccuracies) -> dict[str, Any]:
    honest_K = ~np.isin(np.arange(len(found.head_K)), done.malicious)
    return {
        "honest_accuracy_mean": _mean(found.head_K[honest_K]),
        "honest_prototype_accuracy_mean": None
        if found.all_K is None
        else _mean(found.all_K[honest_K]),
    }


def _mean(values_K: Floats | None) -> float | None:
    if values_K is None:
        return None
    if len(values_K):
        return float(values_K.mean())
    return float("nan")


def _traffic(done: Round) -> dict[str, Any]:
    """Values and bytes from all clients, and to all that took part; parameters travel as float32."""
    receivers = len(done.who)
    globals_ = done.decision.globals_
    method = done.experiment.method
    if not method.exchanges:
        values = done.values * receivers
        return {
            "parameters_up": values,
            "parameters_down": values,
            "bytes_up": 4 * values,
            "bytes_down": 4 * values,
            "saturated": 0,
        }
    return {
        "parameters_up": done.sent.parameters(),
        "parameters_down": globals_.parameters() * receivers,
        "bytes_up": done.sent.length(),
        "bytes_down": globals_.length(method.precision()) * receivers,
        "saturated": done.sent.saturated,
    }


def _detection(done: Round) -> dict[str, Any]:
    uploads = done.decision.uploads
    refused = done.decision.uploads.refused
    kept_K = done.decision.verdict.kept_K.tolist()
    filtered = [client for client, kept in zip(uploads.clients, kept_K, strict=True) if not kept]
    attacking = attacking_in(done)
    return {
        "attackers": len(attacking),
        "attackers_filtered": len(attacking & (set(filtered) | set(refused))),
        "filtered": filtered,
        "refused": {str(client): reason for client, reason in refused.items()},
    }


def _agreement(report: AgreementReport | None) -> dict[str, Any]:
    return {
        "view": report and report.view,
        "leader": report and report.leader,
        "committee_messages": report and report.messages,
        "committee_bytes": report and report.length,
        "evidence": report and report.evidence,
    }


def attacking_in(done: Round) -> set[int]:
    """The clients that attacked in the round, whatever came of it."""
    attack = done.experiment.attack
    if attack.harms and done.number >= attack.start_round:
        return set(done.malicious) & set(done.who)
    return set()


def _client(done: Round, k: int, figures: RunAccuracies, row: int | None) -> dict[str, Any]:
    trained = k in done.who
    exchanges = done.experiment.method.exchanges
    verdict = done.decision.verdict
    refused = done.decision.uploads.refused
    if k in refused:
        judged = "refused"
    else:
        if row is None:
            judged = ""
        else:
            if verdict.kept_K[row]:
                judged = "kept"
            else:
                judged = "filtered"
    return {
        "round": done.number,
        "client": k,
        "trained": int(trained),
        "classes": len(done.partition.classes[k]),
        "samples": len(done.partition.train[k]),
        "accuracy": float(figures.head_K[k]),
        "prototype_accuracy": None if figures.all_K is None else float(figures.all_K[k]),
        "prototype_accuracy_own": None if figures.own_K is None else float(figures.own_K[k]),
        "loss_classification": float(done.losses_K3[k, 1]) if trained else None,
        "loss_prototype": float(done.losses_K3[k, 2]) if trained and exchanges else None,
        "malicious": int(k in done.malicious),
        "verdict": judged,
        "score": None if row is None else int(verdict.score_K[row]),
        "reason": refused.get(k, ""),
    }
