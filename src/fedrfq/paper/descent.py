"""Train a federation by plain SGD in float64 and measure what Theorem 1 speaks of on the way.

Models, pooling, losses, partition, detection and aggregation are those of the program; only the
training loop is another, which trains a client at a time.
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
from fedrfq.robust import aggregation
from fedrfq.robust.aggregation import combine, decide
from fedrfq.robust.detectors import State


@dataclass(frozen=True)
class MeasuredRound:
    """One round of one client, measured; losses are ℓ over all its samples.

    `loss_start` and `loss_end` are before the first and after the last step, both with the globals
    that the client was given; `loss_after` is with the globals that came back.
    """

    client: int
    round: int
    loss_start: float
    loss_end: float
    loss_after: float
    # Σ ‖∇ℓ‖² over the round's iterations
    descent: float
    # L_a: the largest ratio of a difference of gradients to that of weights along the round
    smoothness: float
    # L_a again: the largest absolute eigenvalue of the Hessian where the round began
    curvature: float
    # σ²: the largest E‖g − ∇ℓ‖²
    variance: float
    # G: the largest E‖g‖
    norm: float
    # L₂: the largest ratio of a sample's difference of features to that of the weights below them
    steepness: float
    # ε: the farthest that the detector moved a global prototype in this round or the one before
    filtered: float
    # how far the global prototypes moved in this round, in the mean over the client's samples
    globals_moved: float
    # the same if nobody had been filtered
    unfiltered_moved: float
    # how far the difference between filtered and unfiltered prototypes moved
    filter_moved: float


@dataclass(frozen=True)
class Exchanged:
    """The result of a round: global prototypes, those without filtering, the detector's memory."""

    globals_: Globals
    unfiltered: Globals
    memory: State

    def gap(self) -> Tensor:
        """Return by how much filtering moved each global prototype."""
        return floats(self.unfiltered) - floats(self.globals_)


def floats(globals_: Globals) -> Tensor:
    """Return global prototypes as float64."""
    return torch.from_numpy(globals_.floats()).double()


def check(experiment: Experiment) -> None:
    """Refuse an experiment that the theorem's assumptions, or this loop, do not cover."""
    method = experiment.method
    if (
        not isinstance(method, FedRFQ)
        or method.reduction != "samples"
        or experiment.pool.name not in ("softpool", "none")
    ):
        raise UserError(
            'the bound covers only FedRFQ: set method.name = "fedrfq", method.reduction = '
            '"samples" and pool.name = "softpool" or "none"'
        )
    if experiment.train.momentum or experiment.model.dropout()[0] or experiment.data.augment:
        raise UserError(
            "the bound assumes plain SGD: set train.momentum = 0, model.drop = 0 and "
            "data.augment = false"
        )
    if experiment.cohorts or experiment.participation < 1 or experiment.attack.clients:
        raise UserError(
            "the bound is measured with one model, all clients and no attack: remove cohorts, "
            "participation and attack"
        )


def descend(
    experiment: Experiment,
    dataset: Dataset,
    iterations: int,
    powers: int,
    tell: Callable[[int], None],
) -> list[MeasuredRound]:
    """Train all rounds, `iterations` steps each, and measure each client in all but the first.

    There are no global prototypes before the first round, so the theorem does not speak of it.
    `powers` is the number of steps of a power iteration; `tell` is called as each round begins.
    """
    rng = np.random.default_rng(experiment.seed)
    clients, weights = _clients(experiment, dataset)
    nothing = Globals.none(len(dataset.classes), experiment.prototype_size())
    memory = aggregation.start(
        experiment.detector,
        experiment.method.rule(),
        experiment.clients,
        len(dataset.classes),
        experiment.prototype_size(),
    )
    before = Exchanged(nothing, nothing, memory)
    measured = []
    for number in range(1, experiment.rounds + 1):
        tell(number)
        # The matrices are so small that threads would cost more than they gain.
        with one_thread():
            guide = clients[0].guide(before.globals_)
            walks = [
                _walk(client, w, guide, iterations, rng)
                for client, w in zip(clients, weights, strict=True)
            ]
            after = _exchange(experiment, before, _uploads(clients, walks, len(nothing.present_J)))
            if number > 1:
                for k, (client, walk) in enumerate(zip(clients, walks, strict=True)):
                    measured.append(
                        _measure(
                            client,
                            walk,
                            before,
                            after,
                            client_number=k,
                            round_number=number,
                            curvature_at_start=_curvature(client, walk, guide, powers, rng),
                        )
                    )
        # Clients keep their weights: only prototypes are exchanged.
        weights = [walk[-1].w for walk in walks]
        before = after
    return measured


def _clients(experiment: Experiment, dataset: Dataset) -> tuple[list[ClientLoss], list[Tensor]]:
    """Return the clients with their samples, and their weights before the first round."""
    partition = deal(experiment, dataset)
    labels = believed_labels(experiment, partition, [], dataset)
    shares, _ = client_data([partition], labels, dataset, False, torch.device("cpu"))
    # No attack and no cohorts (see `check`), so the labels are true and there is one program.
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
    """Return the round's points: where each iteration began, and where the last one ended."""
    point = client.point(w, guide, rng)
    points = [point]
    for _ in range(iterations):
        point = client.point(point.w - client.program.train.lr * point.drawn, guide, rng)
        if not np.isfinite(point.loss):
            raise UserError("the loss is no longer finite; lower train.lr or method.lam")
        points.append(point)
    return points


def _uploads(clients: list[ClientLoss], walks: list[list[Point]], classes: int) -> Uploads:
    """Return each client's class means, made with the weights at which it ended."""
    per_client = []
    for client, walk in zip(clients, walks, strict=True):
        p_1NV = client.program.pool(walk[-1].c_ND)[None]
        y_1N = client.y[None]
        per_client.append(class_means(p_1NV, y_1N, torch.ones_like(y_1N), classes))
    means = torch.cat([client_means for client_means, _ in per_client])
    counts = torch.cat([client_counts for _, client_counts in per_client])
    precision = clients[0].program.method.precision()
    values = quantise(means, precision)[0]
    numbers = tuple(range(len(clients)))
    return Uploads(numbers, counts.numpy(), values, precision=precision)


def _exchange(experiment: Experiment, before: Exchanged, uploads: Uploads) -> Exchanged:
    rule = experiment.method.rule()
    decision = decide(experiment.detector, rule, before.memory, before.globals_, uploads)
    unfiltered = combine(before.globals_, decision.uploads, rule)
    return Exchanged(decision.globals_, unfiltered, decision.state)


def _measure(
    client: ClientLoss,
    walk: list[Point],
    before: Exchanged,
    after: Exchanged,
    *,
    client_number: int,
    round_number: int,
    curvature_at_start: float,
) -> MeasuredRound:
    # The last point is where the round ends: no step is taken from there.
    steps = walk[:-1]
    # The bound's 2ε covers two gaps, this round's and the last one's: ε is at least each of them.
    gaps = torch.stack([before.gap(), after.gap()])
    return MeasuredRound(
        client=client_number,
        round=round_number,
        loss_start=walk[0].loss,
        loss_end=walk[-1].loss,
        loss_after=client.whole(walk[-1].w, client.guide(after.globals_))[0],
        descent=sum(point.gradient.square().sum().item() for point in steps),
        smoothness=max(_ratio(a.gradient - b.gradient, a.w - b.w) for a, b in pairwise(walk)),
        curvature=curvature_at_start,
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
    """Return the curvature of the loss where the round began."""
    return curvature(lambda w: client.whole(w, guide)[1], walk[0].w, powers, rng)


def _steepness(walk: list[Point], below: Tensor) -> float:
    """Return L₂ from neighbouring points, and from the round's first point to its last."""
    pairs = [*pairwise(walk), (walk[0], walk[-1])]
    return max(_ratio((a.c_ND - b.c_ND).norm(dim=1).max(), (a.w - b.w)[below]) for a, b in pairs)


def _moved(shift_JV: Tensor, client: ClientLoss) -> float:
    """Return how far the global prototypes moved, in the mean over the client's samples."""
    return float(torch.linalg.vector_norm(shift_JV, dim=1)[client.y].mean())


def _ratio(numerator: Tensor, denominator: Tensor) -> float:
    length = float(denominator.norm())
    if length:
        return float(numerator.norm()) / length
    return 0.0
