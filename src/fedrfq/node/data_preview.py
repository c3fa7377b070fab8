"""What a client's data look like to its federation, before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq import data as datasets
from fedrfq.data import Contract
from fedrfq.experiment import Experiment
from fedrfq.federation.public_task import PublicTask
from fedrfq.node.client_learning import local_data
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.membership.identity import Identity
from fedrfq.prototypes.fixed_point import Ints, encode


@dataclass(frozen=True)
class ClassPreview:
    """A class of the federation, and what the client has of it: samples, and one as C×H×W."""

    name: str
    train: int
    test: int
    picture: NDArray[Any] | None


@dataclass(frozen=True)
class WindowPreview:
    """The federation's window, and what share of a client's pixels it cuts off."""

    window: str
    low: float
    high: float
    beyond: float

    @property
    def suspicious(self) -> bool:
        """Return whether the window cuts off so much that it may be the wrong one."""
        return self.beyond > _MAX_BEYOND

    @property
    def about(self) -> str:
        """Describe it in one line, with what to do if it is suspicious."""
        text = (
            f"{100 * self.beyond:.1f} % of the pixels lie beyond {self.window}"
            f" (they run from {self.low:g} to {self.high:g})"
        )
        if not self.suspicious:
            return text
        return (
            f"{text} and become black or white: unless that is meant, agree on another window"
            " before anybody types the id, or found another federation"
        )


@dataclass(frozen=True)
class DataPreview:
    """The federation's classes in their order, and what the client uploads, in words.

    There is a window where the contract has one and the client has pixels of more than 8 bits.
    """

    classes: tuple[ClassPreview, ...]
    uploads: tuple[str, ...]
    window: WindowPreview | None = None

    @property
    def about(self) -> str:
        """Describe the data in one line."""
        held = [each for each in self.classes if each.train]
        counts = f"{sum(each.train for each in held)} training and"
        counts += f" {sum(each.test for each in held)} test samples"
        missing = [each.name for each in self.classes if not each.train]
        if not missing:
            return f"{counts} of all {len(held)} classes"
        return f"{counts} of {len(held)} of {len(self.classes)} classes; none of {_few(missing)}"


# Missing classes that are named before the rest is only counted.
_MAX_NAMED = 10
# The share of pixels beyond the window that may be scratches, labels and metal.
_MAX_BEYOND = 0.05


def preview(identity: Identity, data: str) -> DataPreview:
    """Return what `fedrfq client DIR --data …` would train on and send."""
    experiment, _, local = local_data(identity, data)
    train_y = local.dataset.train_y[local.partition.train[0]]
    test_labels = local.dataset.train_y if local.partition.held_out else local.dataset.test_y
    test_y = test_labels[local.partition.test[0]]
    classes = tuple(
        ClassPreview(
            name,
            int(np.count_nonzero(train_y == label)),
            int(np.count_nonzero(test_y == label)),
            _picture(local, label),
        )
        for label, name in enumerate(local.dataset.classes)
    )
    counts_J = np.array([each.train for each in classes])
    return DataPreview(
        classes,
        _uploads(experiment, identity.federation.task.public, counts_J),
        _window(identity.federation.contract, data),
    )


def _window(contract: Contract | None, data: str) -> WindowPreview | None:
    if contract is None or contract.form.window is None:
        return None
    found = datasets.survey(data, contract.form)
    if not found.deep:
        return None
    window = str(contract.form.settings()["window"])
    return WindowPreview(window, found.low, found.high, found.share_beyond)


def _picture(local: LocalDataset, label: int) -> NDArray[Any] | None:
    """Return the first training sample of a class, if there is one."""
    own = local.partition.train[0]
    found = own[local.dataset.train_y[own] == label]
    if not len(found):
        return None
    picture: NDArray[Any] = local.dataset.train_x[found[0]]
    return picture


def _uploads(experiment: Experiment, public: PublicTask | None, counts_J: Ints) -> tuple[str, ...]:
    lines = []
    noise = ""
    if experiment.privacy.used:
        noise = f", both with noise {experiment.privacy.noise:g}, for every class you declare"
    held = int(np.count_nonzero(counts_J))
    if experiment.method.exchanges:
        values = experiment.prototype_size()
        zeros_JV = np.zeros((len(counts_J), values), np.int64)
        size = len(encode(1, 0, counts_J, zeros_JV, experiment.method.precision()))
        lines.append(
            f"a round: for each of the {held} classes you have, the number of your training samples"
            f" and a prototype of {values} values"
            f"{noise * bool(experiment.privacy.prototype_norm)}; {size:,} bytes"
        )
    if public is not None:
        counts_R = np.concatenate([counts_J, np.ones(public.moments, np.int64)])
        zeros_RV = np.zeros((public.rows, public.values), np.int64)
        size = len(encode(1, 0, counts_R, zeros_RV, public.precision))
        lines.append(
            f"a round with the public map: for each of these {held} classes, the number of your"
            f" training samples and the mean of {public.values} values on the map"
            f"{' with second moments' * bool(public.moments)}{noise}; {size:,} bytes"
        )
    if experiment.has_noise:
        lines.append(f"all {experiment.rounds} rounds together: {experiment.planned_privacy()}")
    lines.append("no picture, no test sample and no model leaves this machine")
    return tuple(lines)


def _few(names: list[str]) -> str:
    text = ", ".join(names[:_MAX_NAMED])
    if len(names) > _MAX_NAMED:
        return f"{text} and {len(names) - _MAX_NAMED} more"
    return text
