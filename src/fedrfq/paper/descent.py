"""A federation's training with all that Theorem 1 speaks of measured on the way: plain SGD in float64, a client at a time.

Models, pooling, losses, partition, detection and aggregation are the program's own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data
from fedrfq.engine.engine import Program
from fedrfq.engine.threads import one_thread
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.round_loop import believed_labels, deal, start
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.method import Guide
from fedrfq.paper.client_gradients import ClientLoss, Point, curvature
from fedrfq.prototypes.class_means import class_means, quantise
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.aggregation import combine, decide
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class MeasuredRound:
    """A round of a client. Losses are ℓ over all its samples: before its first step with the globals it was given, after its
    last with the same ones, and with those that came back."""

    client: int
    round: int
    loss_start: float
    loss_end: float
    loss_after: float
    descent: float  # Σ ‖∇ℓ‖² over the round's iterations
    smoothness: (
        float  # L_a: the largest ratio of gradients' to weights' differences along the round
    )
    curvature: float  # … the largest absolute eigenvalue of the Hessian where the round began
    variance: float  # σ²: the largest E‖g − ∇ℓ‖²
    norm: float  # G: the largest E‖g‖
    steepness: float  # L₂: the largest ratio of a sample's features' to the representation's weights' differences
    filtered: float  # ε: the farthest that the detector moved a global prototype in this round or the one before
    globals_moved: float  # from round to round, mean over the client's samples
    unfiltered_moved: float  # … had nobody been filtered
    filter_moved: float  # … the difference between the two


@dataclass(frozen=True)
class Exchanged:
    """What a round gave: the global prototypes, what they would be had nobody been filtered, the detector's memory."""

    globals_: Globals
    unfiltered: Globals
    memory: State

    def gap(self) -> Tensor:
        return floats(self.unfiltered) - floats(self.globals_)


def floats(globals_: Globals) -> Tensor:
    return torch.from_numpy(globals_.floats()).double()


def check(experiment: Experiment) -> None:
    """That the theorem's assumptions, and this loop, are about it."""
    e = experiment
    if (
        not isinstance(e.method, FedRFQ)
        or e.method.reduction != "samples"
        or e.pool.name not in ("softpool", "none")
    ):
        raise UserError(
            'the bound is FedRFQ\'s: set method.name = "fedrfq", method.reduction = "samples" and SoftPool or none'
        )
    if e.train.momentum or e.model.dropout()[0] or e.data.augment:
        raise UserError(
            "the bound assumes plain SGD: set train.momentum = 0, model.drop = 0 and data.augment = false"
        )
    if e.cohorts or e.participation < 1 or e.attack.clients:
        raise UserError(
            "the bound is measured with one model, all clients and no attack: leave these as they are"
        )


def descend(
    experiment: Experiment,
    dataset: Dataset,
    iterations: int,
    powers: int,
    tell: Callable[[int], None],
) -> list[MeasuredRound]:
    """All rounds of all clients, `iterations` steps each, but the first round: there are no global prototypes before it.
    `powers` are the steps of a power iteration."""
    rng = np.random.default_rng(experiment.seed)
    clients, weights = _clients(experiment, dataset)
    nothing = Globals.none(len(dataset.classes), experiment.prototype_size())
    before = Exchanged(nothing, nothing, experiment.detector.start(experiment.clients))
    found = []
    for number in range(1, experiment.rounds + 1):
        tell(number)
        with one_thread():
            guide = clients[0].guide(before.globals_)
            walks = [
                _walk(client, w, guide, iterations, rng)
                for client, w in zip(clients, weights, strict=True)
            ]
            after = _exchanged(experiment, before, _uploads(clients, walks, len(nothing.present_J)))
            if number > 1:
                tops = [
                    _curvature(*pair, guide, powers, rng)
                    for pair in zip(clients, walks, strict=True)
                ]
                rows = enumerate(zip(clients, walks, tops, strict=True))
                found += [_measured(k, number, *row, before, after) for k, row in rows]
        weights = [walk[-1].w for walk in walks]
        before = after
    return found


def _clients(experiment: Experiment, dataset: Dataset) -> tuple[list[ClientLoss], list[Tensor]]:
    """With their samples, and their weights before the first round."""
    partition = deal(experiment, dataset)
    labels = believed_labels(experiment, partition, [], dataset)
    shares, _ = client_data([partition], labels, dataset, False, torch.device("cpu"))
    program = Program(experiment.model, experiment.method, experiment.pool, experiment.train)
    clients = []
    weights = []
    for k, count in enumerate(shares.counts):
        index = shares.index_KN[k, :count]
        model = start(experiment, k, dataset)
        clients.append(ClientLoss(program, model, shares.x[index].double(), shares.y[index]))
        weights.append(torch.cat([p.flatten() for p in model.values()]).double())
    return clients, weights


def _walk(
    client: ClientLoss, w: Tensor, guide: Guide, iterations: int, rng: Generator
) -> list[Point]:
    """The round's points: where each iteration began, and where the last one ended."""
    points = [client.point(w, guide, rng)]
    for _ in range(iterations):
        points.append(
            client.point(points[-1].w - client.program.train.lr * points[-1].drawn, guide, rng)
        )
        if not np.isfinite(points[-1].loss):
            raise UserError("the loss is no number any more: lower train.lr or method.lam")
    return points


def _uploads(clients: list[ClientLoss], walks: list[list[Point]], classes: int) -> Uploads:
    """Each client's class means with the weights it ended at."""
    found = []
    for client, walk in zip(clients, walks, strict=True):
        p_1NV = client.program.pool(walk[-1].c_ND)[None]
        y_1N = client.y[None]
        found.append(class_means(p_1NV, y_1N, torch.ones_like(y_1N), classes))
    means, counts = (torch.cat(column) for column in zip(*found, strict=True))
    precision = clients[0].program.method.precision()
    return Uploads(
        tuple(range(len(clients))),
        counts.numpy(),
        quantise(means, precision)[0],
        precision=precision,
    )


def _exchanged(experiment: Experiment, before: Exchanged, uploads: Uploads) -> Exchanged:
    rule = experiment.method.rule()
    decision = decide(experiment.detector, rule, before.memory, before.globals_, uploads)
    return Exchanged(
        decision.globals_, combine(before.globals_, decision.uploads, rule), decision.state
    )


def _measured(
    k: int,
    number: int,
    client: ClientLoss,
    walk: list[Point],
    top: float,
    before: Exchanged,
    after: Exchanged,
) -> MeasuredRound:
    steps = walk[:-1]
    gaps = torch.stack([before.gap(), after.gap()])
    return MeasuredRound(
        client=k,
        round=number,
        loss_start=walk[0].loss,
        loss_end=walk[-1].loss,
        loss_after=client.whole(walk[-1].w, client.guide(after.globals_))[0],
        descent=sum(point.gradient.square().sum().item() for point in steps),
        smoothness=max(_ratio(a.gradient - b.gradient, a.w - b.w) for a, b in pairwise(walk)),
        curvature=top,
        variance=max(point.variance for point in steps),
        norm=max(point.norm for point in steps),
        steepness=_steepness(walk, client.representation()),
        filtered=torch.linalg.vector_norm(gaps, dim=2).max().item(),
        globals_moved=_moved(floats(after.globals_) - floats(before.globals_), client),
        unfiltered_moved=_moved(floats(after.unfiltered) - floats(before.unfiltered), client),
        filter_moved=_moved(after.gap() - before.gap(), client),
    )


def _curvature(
    client: ClientLoss, walk: list[Point], guide: Guide, powers: int, rng: Generator
) -> float:
    """Where the round began."""
    return curvature(lambda w: client.whole(w, guide)[1], walk[0].w, powers, rng)


def _steepness(walk: list[Point], below: Tensor) -> float:
    """Between neighbours, and from the round's beginning to its end."""
    pairs = [*pairwise(walk), (walk[0], walk[-1])]
    return max(_ratio((a.c_ND - b.c_ND).norm(dim=1).max(), (a.w - b.w)[below]) for a, b in pairs)


def _moved(shift_JV: Tensor, client: ClientLoss) -> float:
    """How far its samples' global prototypes moved, in the mean."""
    return float(torch.linalg.vector_norm(shift_JV, dim=1)[client.y].mean())


def _ratio(of: Tensor, to: Tensor) -> float:
    length = float(to.norm())
    if length:
        return float(of.norm()) / length
    return 0.0
