"""The interface of a method: the clients' loss, what they exchange, and how that is combined.

A method exchanges pooled prototypes (`exchanges`), or parameters (`shared` says which), or nothing.
Prototypes go to the committee as integers. What comes back may be changed before it is used: by the
clients (`targets`), so that the committee need not know, or by one trusted server that trains on
the single uploads (`server_step`). Parameters go to one trusted server, which averages them in
float64.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from numpy.random import Generator
from torch import Tensor

from fedrfq.files.options import check_ranges
from fedrfq.models.stacked import Params
from fedrfq.prototypes.fixed_point import FULL_PRECISION, Globals, Precision, Uploads

# The largest weight of a part of the loss: float32 holds it.
MAX_WEIGHT = 1e38
# What a client knows of the federation while it trains; every tensor has a row for each client.
Guide = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """One step's samples of all clients, with what their models make of them."""

    logits_KBJ: Tensor
    c_KBD: Tensor  # feature vectors
    p_KBV: Tensor  # … and pooled
    y_KB: Tensor
    weight_KB: Tensor  # 1 for a sample, 0 for padding
    params: Params
    head: tuple[str, ...] = ()  # names of the decision layer's parameters

    def mean(self, values_KB: Tensor) -> Tensor:
        """Return each client's mean over its real samples."""
        return (values_KB * self.weight_KB).sum(1) / self.weight_KB.sum(1)


@dataclass(frozen=True)
class Method:
    """A method that trains with cross-entropy and exchanges nothing, unless it overrides this.

    Fields are the method's options in an experiment file.
    """

    # The experiment's `pool` settings, unless it says otherwise.
    pool: ClassVar[Mapping[str, Any]] = {"name": "none"}
    pools: ClassVar[bool] = False  # whether `pool` may be anything but none
    exchanges: ClassVar[bool] = False  # whether prototypes leave the clients
    # Whether clients predict by the nearest prototype, of those exchanged or agreed on beforehand.
    predicts: ClassVar[bool] = False
    # Whether clients train toward their own class means; these then replace the guide's targets.
    own_means: ClassVar[bool] = False
    # Whether one trusted server trains on single uploads, so that no committee can take its place.
    trains_server: ClassVar[bool] = False
    centres: ClassVar[int] = 0  # number of global models that the server holds
    # Options that the guide, the targets or the server carry: runs that differ in these alone are
    # trained in one program. What `losses` reads from `self` must not be among them.
    carried: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_ranges("method", self)

    @property
    def is_mean_of_samples(self) -> bool:
        """Whether a batch's loss is the mean of its samples' own, as DP-SGD needs it."""
        return True

    def shared(self, head: bool) -> bool:
        """Return whether the decision layer (`head`), or all below it, is exchanged."""
        return False

    def epochs(self, epochs: int) -> int:
        """Return the passes over the data in a round, where the experiment asks for `epochs`."""
        return epochs

    def trains(self, epoch: int, head: bool) -> bool:
        """Return whether the decision layer (`head`), or all below it, is trained in a pass."""
        return True

    def targets(self, rounds: int, globals_: Globals, rng: Generator) -> Globals:
        """Return the prototypes that clients train toward and predict by.

        `globals_` are those decided after so many `rounds`. Every client computes the targets for
        itself, so they may depend on nothing else; `rng` gives every client the same numbers in
        every round.
        """
        return globals_

    def guide(self, number: int, targets: Globals, own: Params) -> Guide:
        """Return what some clients of one run know before round `number`.

        `own` has their parameters at its start.
        """
        return {}

    def losses(self, batch: Batch, guide: Guide) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each client the loss to minimise, its classification part, and the added part.

        The added part is before its weight.
        """
        classification = batch.mean(cross_entropy(batch))
        return classification, classification, classification.detach() * 0

    def rule(self) -> str:
        """Return how uploaded prototypes are combined: one of RULES."""
        return "mean"

    def precision(self) -> Precision:
        """Return the precision of the prototypes exchanged."""
        return FULL_PRECISION

    def server_start(self, classes: int, values: int, rng: Generator) -> Params:
        """Return what a server that trains has before the first round."""
        return {}

    def server_step(
        self, server: Params, uploads: Uploads, globals_: Globals, rng: Generator
    ) -> tuple[Params, Globals]:
        """Train the server on a round's uploads, those that were kept.

        `globals_` is what one server decided by the method's rule. Return the server's new
        parameters, and the prototypes that clients get instead of these.
        """
        return server, globals_

    def assign(self, centres: Params, sent: Params, weight_RK: Tensor, first: bool) -> Tensor:
        """Return the centre of each client, R × K.

        `centres` are R × M × …, what clients `sent` is R × K × …; weight 0 marks a client that took
        no part in the round.
        """
        return torch.zeros_like(weight_RK, dtype=torch.int64)

    def program(self) -> Hashable:
        """Return what must be equal for two runs to train in one program: all but `carried`."""
        options = (field.name for field in fields(self))
        return type(self), *(getattr(self, name) for name in options if name not in self.carried)


def cross_entropy(batch: Batch) -> Tensor:
    """Return ℓ_d for each sample."""
    flat = F.cross_entropy(batch.logits_KBJ.flatten(0, 1), batch.y_KB.flatten(), reduction="none")
    return flat.view_as(batch.y_KB)
