"""The round loop: every client trains, uploads its prototypes, and gets the global ones back.

Several runs that differ only in numbers (seeds, partitions, λ) can share one loop: their clients are stacked into the
same programs, and each run keeps its own prototypes and records.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrfq import metrics, noise
from fedrfq.data import Dataset
from fedrfq.engine import Engine, Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.measure import Outcome, Round, Tested, measure, side_by_side
from fedrfq.methods.method import Guide
from fedrfq.noise import Purpose
from fedrfq.partition import Partition
from fedrfq.prototypes import Globals, Uploads, class_means, quantise
from fedrfq.shares import hand_out
from fedrfq.stacked import Params, stack


@dataclass(frozen=True)
class State:
    """Everything that goes from one round to the next; randomness is a function of (seed, client, round)."""

    round: int
    params: tuple[Params, ...]  # a cohort each, with a row for each run and client
    globals_: tuple[Globals, ...]  # a run each


class Diverged(UserError):
    """A loss is no longer a number."""


class Federation:
    """Runs of one shape, advanced together a round at a time."""

    def __init__(self, experiments: Sequence[Experiment], dataset: Dataset, device: torch.device) -> None:
        check_stackable(experiments)
        self.experiments, self.dataset, self.device = tuple(experiments), dataset, device
        self.partitions = tuple(deal(experiment, dataset) for experiment in experiments)
        first = experiments[0]
        sizes = [cohort.clients for cohort in first.models()]
        ends = np.cumsum(sizes)
        self.cohorts = [range(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)]
        train, test = hand_out(self.partitions, dataset, first.data.augment, device)
        self.engines = []
        for cohort, clients in zip(first.models(), self.cohorts, strict=True):
            rows = [r * first.clients + k for r in range(len(experiments)) for k in clients]
            program = Program(cohort.model, first.method, first.pool, first.train)
            self.engines.append(Engine(program, train.of(rows), test.of(rows)))

    def start(self) -> State:
        """The clients before the first round: random models, no global prototypes."""
        classes, size = len(self.dataset.classes), self.experiments[0].prototype_size()
        params = tuple(
            {name: p.to(self.device) for name, p in stack(self._models(cohort, clients)).items()}
            for cohort, clients in enumerate(self.cohorts)
        )
        return State(0, params, tuple(Globals.none(classes, size) for _ in self.experiments))

    def advance(self, state: State) -> tuple[State, list[Outcome]]:
        """One round of every run. The given state is left as it was."""
        began, number = time.perf_counter(), state.round + 1
        who = [participants(experiment, number) for experiment in self.experiments]
        params, losses = self._train(state, number, who)
        seconds_train = self._elapsed(began)
        self._check("loss", losses, who, number)
        uploads = self._upload(params, who)
        globals_ = tuple(
            experiment.method.combine(old, sent)
            for experiment, old, sent in zip(self.experiments, state.globals_, uploads, strict=True)
        )
        tested = self._test(params)
        everyone = [list(range(experiment.clients)) for experiment in self.experiments]
        self._check("prediction", [t.logits_KNJ.abs().amax((1, 2)).cpu() for t in tested], everyone, number)
        share = 1 / len(self.experiments)  # of the time that all runs took together
        alone, total = seconds_train * share, self._elapsed(began) * share
        runs = list(zip(self.experiments, self.partitions, who, strict=True))
        outcomes = [
            measure(Round(number, *run, losses[r], uploads[r], globals_[r], tested[r], alone, total))
            for r, run in enumerate(runs)
        ]
        return State(number, params, globals_), outcomes

    def silhouettes(self, state: State) -> list[tuple[float, float]]:
        """Each run's silhouette, by class, of its test samples' prototypes: pooled, and unpooled."""
        found = []
        for experiment, tested in zip(self.experiments, self._test(state.params), strict=True):
            p, c, y = tested.vectors()
            found.append((metrics.silhouette(p, y, experiment.seed), metrics.silhouette(c, y, experiment.seed)))
        return found

    def rows(self, run: int, clients: range) -> slice:
        """Where a run's clients stand in their cohort's stack: runs one after the other."""
        return slice(run * len(clients), (run + 1) * len(clients))

    def _models(self, cohort: int, clients: range) -> list[Params]:
        models = []
        for experiment in self.experiments:
            model = experiment.models()[cohort].model
            for client in clients:
                who = client if experiment.init == "own" else clients[0]
                generator = torch.Generator().manual_seed(noise.integer(experiment.seed, Purpose.START, who))
                models.append(model.start(self.dataset.shape, len(self.dataset.classes), generator))
        return models

    def _train(self, state: State, number: int, who: list[list[int]]) -> tuple[tuple[Params, ...], list[Tensor]]:
        """The cohorts' new parameters, and each run's clients' losses (total, classification, prototype)."""
        losses = [torch.zeros(experiment.clients, 3) for experiment in self.experiments]
        trained = []
        for engine, params, clients in zip(self.engines, state.params, self.cohorts, strict=True):
            chosen = [(r, k) for r, picked in enumerate(who) for k in picked if k in clients]
            if not chosen:
                trained.append(params)
                continue
            rows = [r * len(clients) + k - clients.start for r, k in chosen]
            new, loss_K3 = engine.train(params, self.guide(state, clients), self.keys(number, clients), rows)
            trained.append(new)
            for (r, k), loss in zip(chosen, loss_K3, strict=True):
                losses[r][k] = loss
        return tuple(trained), losses

    def guide(self, state: State, clients: range) -> Guide:
        pairs = zip(self.experiments, state.globals_, strict=True)
        guides = [experiment.method.guide(globals_, len(clients)) for experiment, globals_ in pairs]
        return {name: torch.cat([guide[name] for guide in guides]).to(self.device) for name in guides[0]}

    def keys(self, number: int, clients: range) -> Tensor:
        ids = torch.tensor(list(clients))
        return torch.cat([noise.key(e.seed, ids, number) for e in self.experiments]).to(self.device)

    def _upload(self, params: tuple[Params, ...], who: list[list[int]]) -> list[Uploads]:
        """Each run's uploads: P̄ of every class a participating client holds, in fixed point."""
        if not self.experiments[0].method.exchanges:
            empty = np.zeros((0, len(self.dataset.classes)), np.int64)
            size = self.experiments[0].prototype_size()
            return [Uploads((), empty, np.zeros((*empty.shape, size), np.int64)) for _ in who]
        found = [self._class_means(engine, p) for engine, p in zip(self.engines, params, strict=True)]
        uploads = []
        for r, clients in enumerate(who):
            rows = [self.rows(r, cohort) for cohort in self.cohorts]
            means = torch.cat([m[s] for (m, _), s in zip(found, rows, strict=True)])[clients]
            counts = torch.cat([c[s] for (_, c), s in zip(found, rows, strict=True)])[clients]
            values, saturated = quantise(means)
            uploads.append(Uploads(tuple(clients), counts.cpu().numpy(), values, saturated))
        return uploads

    def _class_means(self, engine: Engine, params: Params) -> tuple[Tensor, Tensor]:
        shares = engine.shares
        p_KNV = engine.program.pool(engine.features(params, shares)[0])
        return class_means(p_KNV, shares.y[shares.index_KN], shares.weight_KN(), len(self.dataset.classes))

    def _test(self, params: tuple[Params, ...]) -> list[Tested]:
        """Each run's test samples, all its cohorts together."""
        found = []
        for engine, p in zip(self.engines, params, strict=True):
            c_KND, logits_KNJ = engine.features(p, engine.tests)
            y_KN, weight_KN = engine.tests.y[engine.tests.index_KN], engine.tests.weight_KN()
            found.append(Tested(logits_KNJ, c_KND, engine.program.pool(c_KND), y_KN, weight_KN))
        cohorts = list(zip(found, self.cohorts, strict=True))
        return [side_by_side([t.rows(self.rows(r, clients)) for t, clients in cohorts]) for r in range(len(self.experiments))]

    def _check(self, what: str, values: list[Tensor], who: list[list[int]], number: int) -> None:
        for experiment, value_K, clients in zip(self.experiments, values, who, strict=True):
            bad = [k for k in clients if not bool(torch.isfinite(value_K[k]).all())]
            if bad:
                raise Diverged(
                    f"the {what} of client {bad[0]} is not a number in round {number} (seed {experiment.seed}, "
                    f"{len(bad)} of {len(clients)} clients): lower train.lr or method.lam"
                )

    def _elapsed(self, since: float) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - since


def program_key(experiment: Experiment) -> Hashable:
    """What must be equal for two runs to be stacked: all but what is data to the program."""
    e = experiment
    return e.data, e.models(), e.pool, e.train, e.clients, e.participation, e.rounds, e.method.program()


def check_stackable(experiments: Sequence[Experiment]) -> None:
    if len({program_key(experiment) for experiment in experiments}) != 1:
        raise UserError("runs are stacked only if they differ in seed, partition, init, method.lam or method.aggregate alone")


def deal(experiment: Experiment, dataset: Dataset) -> Partition:
    rng = np.random.default_rng(noise.integer(experiment.seed, Purpose.PARTITION))
    return experiment.partition.deal(dataset, experiment.clients, rng)


def participants(experiment: Experiment, number: int) -> list[int]:
    """Who trains in a round: a random share of the clients, in ascending order."""
    size = max(1, round(experiment.participation * experiment.clients))
    words = noise.bits(noise.key(experiment.seed, number), Purpose.PARTICIPATION, experiment.clients)
    return sorted(words.argsort(stable=True)[:size].tolist())
