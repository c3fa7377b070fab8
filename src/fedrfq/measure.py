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

from fedrfq import metrics
from fedrfq.experiment import Experiment
from fedrfq.partition import Partition
from fedrfq.prototypes import Globals, Uploads, encode

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RoundRecord:
    """One round of one run. Accuracies are in percent; ± is the true standard deviation over clients."""

    round: int
    accuracy_mean: float
    accuracy_std: float
    accuracy_std_running: float  # FedProto's figure, to explain gaps: the std of running averages over the clients
    prototype_accuracy_mean: float | None  # nearest global prototype, over all classes
    prototype_accuracy_std: float | None
    prototype_accuracy_own_mean: float | None  # … over the classes the client holds
    prototype_failure: float | None
    loss: float
    loss_classification: float
    loss_prototype: float
    participants: int
    samples: int
    parameters_up: int
    parameters_down: int
    bytes_up: int
    bytes_down: int
    saturated: int
    collapsed_clients: int
    seconds_train: float
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """A round's record with each client's figures, one row a client."""

    record: RoundRecord
    clients: list[dict[str, Any]]


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

    def vectors(self) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]:
        """Pooled and unpooled prototypes and labels of all real samples."""
        real = self.weight_KN.bool()
        return self.p_KNV[real].cpu().numpy(), self.c_KND[real].cpu().numpy(), self.y_KN[real].cpu().numpy()


def side_by_side(parts: Sequence[Tested]) -> Tested:
    """Cohorts' clients in one, padded to the longest."""
    longest = max(part.y_KN.shape[1] for part in parts)
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return Tested(*(torch.cat([_padded(tensor, longest) for tensor in column]) for column in columns))


def _padded(tensor_KN: Tensor, size: int) -> Tensor:
    missing = (0, 0) * (tensor_KN.dim() - 2) + (0, size - tensor_KN.shape[1])
    return F.pad(tensor_KN, missing)


@dataclass(frozen=True)
class Round:
    """All that a round of one run left behind."""

    number: int
    experiment: Experiment
    partition: Partition
    who: list[int]
    losses_K3: Tensor  # total, classification, prototype
    uploads: Uploads
    globals_: Globals
    tested: Tested
    seconds_train: float
    seconds: float


def measure(done: Round) -> Outcome:
    head_K = metrics.accuracies(done.tested.logits_KNJ.argmax(-1), done.tested.y_KN, done.tested.weight_KN)
    by_prototype = _by_prototype(done) if done.experiment.method.exchanges else None
    record = RoundRecord(
        round=done.number,
        **_head(done, head_K),
        **_prototypes(by_prototype),
        **_losses(done),
        **_traffic(done),
        participants=len(done.who),
        samples=sum(len(done.partition.train[k]) for k in done.who) * done.experiment.train.epochs,
        collapsed_clients=_collapsed(done),
        seconds_train=done.seconds_train,
        seconds=done.seconds,
    )
    return Outcome(record, [_client(done, k, head_K, by_prototype) for k in range(len(head_K))])


@dataclass(frozen=True)
class _ByPrototype:
    """Accuracy of the nearest global prototype, among all and among the client's own classes; prototype failure."""

    all_K: Floats
    own_K: Floats
    failure: float


def _by_prototype(done: Round) -> _ByPrototype:
    tested, device = done.tested, done.tested.p_KNV.device
    present_J = torch.from_numpy(done.globals_.present_J).to(device)
    distance_KNJ = metrics.distances(tested.p_KNV, torch.from_numpy(done.globals_.floats()).to(device))
    held_KJ = _held(done).to(device) & present_J
    guesses = (metrics.nearest(distance_KNJ, allowed) for allowed in (present_J.expand_as(held_KJ), held_KJ))
    all_K, own_K = (metrics.accuracies(guess, tested.y_KN, tested.weight_KN) for guess in guesses)
    real = tested.weight_KN.bool()
    return _ByPrototype(all_K, own_K, metrics.prototype_failure(distance_KNJ[real], tested.y_KN[real], present_J))


def _losses(done: Round) -> dict[str, Any]:
    means = done.losses_K3[done.who].mean(0).tolist()
    return dict(zip(("loss", "loss_classification", "loss_prototype"), means, strict=True))


def _head(done: Round, head_K: Floats) -> dict[str, Any]:
    counts = np.array([len(test) for test in done.partition.test])
    running = metrics.running_std(head_K, counts)
    return {"accuracy_mean": float(head_K.mean()), "accuracy_std": float(head_K.std()), "accuracy_std_running": running}


def _prototypes(found: _ByPrototype | None) -> dict[str, Any]:
    return {
        "prototype_accuracy_mean": float(found.all_K.mean()) if found else None,
        "prototype_accuracy_std": float(found.all_K.std()) if found else None,
        "prototype_accuracy_own_mean": float(found.own_K.mean()) if found else None,
        "prototype_failure": found.failure if found else None,
    }


def _traffic(done: Round) -> dict[str, Any]:
    """Values and bytes from all clients, and to all that took part."""
    receivers = len(done.who) if done.experiment.method.exchanges else 0
    message = encode(done.number, 0, done.globals_.present_J.astype(np.int64), done.globals_.values_JV)
    return {
        "parameters_up": done.uploads.parameters(),
        "parameters_down": done.globals_.parameters() * receivers,
        "bytes_up": sum(len(sent) for sent in done.uploads.encoded(done.number)),
        "bytes_down": len(message) * receivers,
        "saturated": done.uploads.saturated,
    }


def _collapsed(done: Round) -> int:
    tested = done.tested
    classes_K = _held(done).sum(1).to(tested.c_KND.device)
    return int(metrics.collapsed(tested.c_KND, tested.p_KNV, tested.weight_KN, classes_K).sum())


def _held(done: Round) -> Tensor:
    """Which classes each client holds."""
    held_KJ = torch.zeros(len(done.partition.classes), done.globals_.present_J.size, dtype=torch.bool)
    for k, classes in enumerate(done.partition.classes):
        held_KJ[k, classes] = True
    return held_KJ


def _client(done: Round, k: int, head_K: Floats, by_prototype: _ByPrototype | None) -> dict[str, Any]:
    trained = k in done.who
    return {
        "round": done.number,
        "client": k,
        "trained": int(trained),
        "classes": len(done.partition.classes[k]),
        "samples": len(done.partition.train[k]),
        "accuracy": float(head_K[k]),
        "prototype_accuracy": float(by_prototype.all_K[k]) if by_prototype else None,
        "prototype_accuracy_own": float(by_prototype.own_K[k]) if by_prototype else None,
        "loss_classification": float(done.losses_K3[k, 1]) if trained else None,
        "loss_prototype": float(done.losses_K3[k, 2]) if trained else None,
    }
