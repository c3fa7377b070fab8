"""The round loop: every client trains, uploads its prototypes, and gets the global ones back.

Several runs that differ only in numbers (seeds, partitions, λ, attacks, detectors) can share one loop: their clients are
stacked into the same programs, and each run keeps its own prototypes and records.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from fedrfq.committee import AgreedRound, CommitteeSettings
from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data
from fedrfq.data.partition import Ints, Partition
from fedrfq.engine import averaging, counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.engine.engine import Engine
from fedrfq.engine.program import Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.learning import metrics
from fedrfq.learning.evaluation import Round, RoundOutcome, Tested, measure, side_by_side
from fedrfq.methods.method import Guide
from fedrfq.models.stacked import Params, stack
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust import detectors
from fedrfq.robust.attacks import Scene


@dataclass(frozen=True)
class LoopState:
    """Everything that goes from one round to the next; randomness is a function of (seed, client, round)."""

    round: int
    params: tuple[Params, ...]  # a cohort each, with a row for each run and client
    globals_: tuple[Globals, ...]  # a run each
    memory: tuple[detectors.State, ...]  # of the detector, a run each
    centres: (
        Params  # global models, a row for each run and centre; none where prototypes are exchanged
    )
    agreed: tuple[bytes, ...]  # what each run's committee goes on from


class Diverged(UserError):
    """Losses are no longer numbers. `runs` says in which of the stack's runs, by their place, and of which client."""

    def __init__(self, runs: Mapping[int, str], last: str = "") -> None:
        super().__init__(next(iter(runs.values())) + last)
        self.runs = runs


class RoundLoop:
    """Runs of one shape, advanced together a round at a time."""

    def __init__(
        self, experiments: Sequence[Experiment], dataset: Dataset, device: torch.device
    ) -> None:
        check_stackable(experiments)
        self.experiments = tuple(experiments)
        self.dataset = dataset
        self.device = device
        self.partitions = tuple(deal(experiment, dataset) for experiment in experiments)
        self.malicious = tuple(attackers(experiment) for experiment in experiments)
        self.mandates = tuple(
            mandate(experiment, len(dataset.classes)) for experiment in experiments
        )
        first = experiments[0]
        sizes = [cohort.clients for cohort in first.models()]
        ends = np.cumsum(sizes)
        self.cohorts = [
            range(end - size, end) for size, end in zip(sizes, ends.tolist(), strict=True)
        ]
        runs = zip(experiments, self.partitions, self.malicious, strict=True)
        labels = [believed for run in runs for believed in believed_labels(*run, dataset)]
        train, test = client_data(self.partitions, labels, dataset, first.data.augment, device)
        self.held_KJ = held(self.partitions, len(dataset.classes)).to(device)
        self.engines = []
        for cohort, clients in zip(first.models(), self.cohorts, strict=True):
            rows = [r * first.clients + k for r in range(len(experiments)) for k in clients]
            program = Program(cohort.model, first.method, first.pool, first.train)
            self.engines.append(Engine(program, train.of(rows), test.of(rows)))

    def start(self) -> LoopState:
        """The clients before the first round: random models (alike in what they will share), no global prototypes."""
        classes = len(self.dataset.classes)
        size = self.experiments[0].prototype_size()
        method = self.experiments[0].method
        params = tuple(
            {name: p.to(self.device) for name, p in stack(self._models(clients)).items()}
            for clients in self.cohorts
        )
        centres: Params = {}
        if method.centres:
            centres, own = averaging.same_start(
                method, self.engines[0].program.model, params[0], len(self.experiments)
            )
            params = (own,)
        memory = tuple(
            experiment.detector.start(experiment.clients) for experiment in self.experiments
        )
        nothing = tuple(Globals.none(classes, size) for _ in memory)
        agreed = tuple(b"" for _ in memory)
        return LoopState(0, params, nothing, memory, centres, agreed)

    def federations(self) -> list[Federation | None]:
        """By what each run's committee can be checked."""
        pairs = zip(self.experiments, self.mandates, strict=True)
        return [experiment.committee.federation(mandate) for experiment, mandate in pairs]

    def advance(self, state: LoopState) -> tuple[LoopState, list[RoundOutcome]]:
        """One round of every run. The given state is left as it was."""
        with self.experiments[0].train.kernels():
            return self._advance(state)

    def _advance(self, state: LoopState) -> tuple[LoopState, list[RoundOutcome]]:
        began = time.perf_counter()
        number = state.round + 1
        who = [participants(experiment, number) for experiment in self.experiments]
        params, losses = self._train(state, number, who)
        seconds_train = self._elapsed(began)
        self._check("loss", losses, number)
        sent = [
            self._attacked(r, state, uploads) for r, uploads in enumerate(self._upload(params, who))
        ]
        agreed = [self._decided(r, state, uploads) for r, uploads in enumerate(sent)]
        params, centres = self._averaged(state, params, who)
        tested = self._test(params)
        largest = tested.logits_KNJ.abs().amax((1, 2)).cpu().view(len(who), -1)
        self._check("prediction", list(largest), number)
        share = 1 / len(self.experiments)  # of the time that all runs took together
        alone = seconds_train * share
        total = self._elapsed(began) * share
        values = self._values(centres)
        rounds = [
            Round(
                number=number,
                experiment=experiment,
                partition=self.partitions[r],
                malicious=self.malicious[r],
                who=who[r],
                losses_K3=losses[r],
                sent=sent[r],
                decision=agreed[r].decision,
                report=agreed[r].report,
                values=values,
                seconds_train=alone,
                seconds=total,
            )
            for r, experiment in enumerate(self.experiments)
        ]
        outcomes = measure(rounds, tested, self.held_KJ)
        globals_ = tuple(a.decision.globals_ for a in agreed)
        memory = tuple(a.decision.state for a in agreed)
        return LoopState(
            number, params, globals_, memory, centres, tuple(a.last for a in agreed)
        ), outcomes

    def silhouettes(self, state: LoopState) -> list[tuple[float, float]]:
        """Each run's silhouette, by class, of its test samples' prototypes: pooled, and unpooled."""
        found = []
        tested = self._test(state.params)
        clients = self.experiments[0].clients
        for r, experiment in enumerate(self.experiments):
            p, c, y = tested.rows(slice(r * clients, (r + 1) * clients)).vectors()
            found.append(
                (
                    metrics.silhouette(p, y, experiment.seed),
                    metrics.silhouette(c, y, experiment.seed),
                )
            )
        return found

    def rows(self, run: int, clients: range) -> slice:
        """Where a run's clients stand in their cohort's stack: runs one after the other."""
        return slice(run * len(clients), (run + 1) * len(clients))

    def _models(self, clients: range) -> list[Params]:
        return [
            start(experiment, client, self.dataset)
            for experiment in self.experiments
            for client in clients
        ]

    def _train(
        self, state: LoopState, number: int, who: list[list[int]]
    ) -> tuple[tuple[Params, ...], list[Tensor]]:
        """The cohorts' new parameters, and each run's clients' losses (total, classification, prototype)."""
        losses = [torch.zeros(experiment.clients, 3) for experiment in self.experiments]
        trained = []
        for engine, params, clients in zip(self.engines, state.params, self.cohorts, strict=True):
            chosen = [(r, k) for r, picked in enumerate(who) for k in picked if k in clients]
            if not chosen:
                trained.append(params)
                continue
            rows = [r * len(clients) + k - clients.start for r, k in chosen]
            guide = self.guide(state, clients, params)
            keys = self.keys(number, clients)
            new, loss_K3 = engine.train(params, guide, keys, rows)
            trained.append(new)
            for (r, k), loss in zip(chosen, loss_K3, strict=True):
                losses[r][k] = loss
        return tuple(trained), losses

    def guide(self, state: LoopState, clients: range, params: Params) -> Guide:
        guides = []
        for r, (experiment, globals_) in enumerate(
            zip(self.experiments, state.globals_, strict=True)
        ):
            own = {name: p[self.rows(r, clients)] for name, p in params.items()}
            guides.append(experiment.method.guide(state.round + 1, globals_, own))
        return {
            name: torch.cat([guide[name] for guide in guides]).to(self.device) for name in guides[0]
        }

    def keys(self, number: int, clients: range) -> Tensor:
        ids = torch.tensor(list(clients))
        return torch.cat([counter_rng.key(e.seed, ids, number) for e in self.experiments]).to(
            self.device
        )

    def _upload(self, params: tuple[Params, ...], who: list[list[int]]) -> list[Uploads]:
        """Each run's uploads: P̄ of every class a participating client holds, in fixed point."""
        first = self.experiments[0]
        if not first.method.exchanges:
            empty = np.zeros((0, len(self.dataset.classes)), np.int64)
            return [
                Uploads((), empty, np.zeros((*empty.shape, first.prototype_size()), np.int64))
                for _ in who
            ]
        classes = len(self.dataset.classes)
        found = [
            engine.class_means(p, classes) for engine, p in zip(self.engines, params, strict=True)
        ]
        means, counts = (_by_run(column, len(who)) for column in zip(*found, strict=True))
        precision = first.method.precision()
        values, saturated, missing = (
            _by_run([torch.from_numpy(t)], len(who)).numpy()
            for t in quantise(means.flatten(0, 1), precision)
        )
        uploads = []
        for r, clients in enumerate(who):
            refused = {
                k: f"{missing[r, k]} values are no numbers" for k in clients if missing[r, k]
            }
            taken = [k for k in clients if k not in refused]
            own = counts[r, taken].cpu().numpy()
            uploads.append(
                Uploads(
                    tuple(taken),
                    own,
                    values[r, taken],
                    int(saturated[r, taken].sum()),
                    refused,
                    precision,
                )
            )
        return uploads

    def _attacked(self, r: int, state: LoopState, uploads: Uploads) -> Uploads:
        """Run `r`'s uploads as they are sent, once its malicious clients have seen everyone's."""
        experiment = self.experiments[r]
        number = state.round + 1
        if number < experiment.attack.start_round or not self.malicious[r]:
            return uploads
        malicious_K = np.isin(np.array(uploads.clients, np.int64), self.malicious[r])
        scene = Scene(uploads, malicious_K, state.globals_[r], experiment.detector, state.memory[r])
        return experiment.attack.corrupt(scene, _generator(experiment, Purpose.CORRUPT, number))

    def _decided(self, r: int, state: LoopState, sent: Uploads) -> AgreedRound:
        committee = self.experiments[r].committee
        number = state.round + 1
        return committee.decide(
            self.mandates[r], number, state.agreed[r], state.memory[r], state.globals_[r], sent
        )

    def _averaged(
        self, state: LoopState, params: tuple[Params, ...], who: list[list[int]]
    ) -> tuple[tuple[Params, ...], Params]:
        """The parameters with what was shared replaced by what came back, and the new global models."""
        if not state.centres:
            return params, {}
        engine = self.engines[0]
        method = self.experiments[0].method
        counts_RK = torch.tensor(engine.shares.counts).view(len(who), -1)
        took_part_RK = torch.zeros_like(counts_RK)
        for row, clients in zip(took_part_RK, who, strict=True):
            row[clients] = 1
        weight_RK = (counts_RK * took_part_RK).to(self.device)
        first = state.round == 0
        centres, own = averaging.exchange(
            method, engine.program.model, state.centres, params[0], weight_RK, first=first
        )
        return (own,), centres

    def _values(self, centres: Params) -> int:
        """How many values a client of a method that shares parameters sends, and gets back."""
        rows = len(self.experiments) * self.experiments[0].method.centres
        return sum(p.numel() for p in centres.values()) // max(rows, 1)

    def _test(self, params: tuple[Params, ...]) -> Tested:
        """All runs' test samples, run after run, each run's cohorts together."""
        found = [tested(engine, p) for engine, p in zip(self.engines, params, strict=True)]
        return side_by_side(found, len(self.experiments))

    def _check(self, what: str, values: Sequence[Tensor], number: int) -> None:
        """That honest clients' values are numbers; what becomes of a malicious one's training is its own affair."""
        bad = {}
        for r, value_K in enumerate(values):
            finite_K = torch.isfinite(value_K.view(len(value_K), -1)).all(1).tolist()
            clients = [
                k for k, finite in enumerate(finite_K) if not finite and k not in self.malicious[r]
            ]
            if clients:
                seed = self.experiments[r].seed
                bad[r] = (
                    f"the {what} of client {clients[0]} is not a number in round {number} (seed {seed}, {len(clients)} of "
                    f"{len(value_K)} clients): lower train.lr or method.lam"
                )
        if bad:
            raise Diverged(bad)

    def _elapsed(self, since: float) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - since


def program_key(experiment: Experiment) -> Hashable:
    """What must be equal for two runs to be stacked: all but what is data to the program. Who trains alone has his own."""
    e = experiment
    if experiment.train.alone:
        only = experiment.hash()
    else:
        only = ""
    return (
        e.data,
        e.models(),
        e.pool,
        e.train,
        e.clients,
        e.participation,
        e.rounds,
        e.checkpoint,
        e.method.program(),
        only,
    )


def check_stackable(experiments: Sequence[Experiment]) -> None:
    if len(experiments) > 1 and experiments[0].train.alone:
        raise UserError("with train.alone nothing is stacked: run one seed at a time")
    if len({program_key(experiment) for experiment in experiments}) != 1:
        raise UserError(
            "runs are stacked only if they differ in seed, partition, init, attack, detector, committee "
            "or a method's weights alone"
        )


def mandate(experiment: Experiment, classes: int) -> CommitteeSettings:
    """What the run asks of its committee."""
    e = experiment
    task = Task(
        e.detector, e.method.rule(), e.method.precision(), e.clients, classes, e.prototype_size()
    )
    return CommitteeSettings(task, e.seed, experiment_digest(e.table()))


def deal(experiment: Experiment, dataset: Dataset) -> Partition:
    generator = _generator(experiment, Purpose.PARTITION)
    return validated(
        experiment, experiment.partition.deal(dataset, experiment.clients, generator), dataset
    )


def validated(experiment: Experiment, partition: Partition, dataset: Dataset) -> Partition:
    """With samples held back where the experiment asks for it."""
    if not experiment.validation:
        return partition
    return partition.validated(
        experiment.validation, dataset.train_y, _generator(experiment, Purpose.VALIDATION)
    )


def start(experiment: Experiment, client: int, dataset: Dataset) -> Params:
    """A client's random model before the first round: its own, or that of the first of its cohort."""
    first, model = experiment.place(client)
    if experiment.init == "own":
        who = client
    else:
        who = first
    generator = torch.Generator().manual_seed(
        counter_rng.integer(experiment.seed, Purpose.START, who)
    )
    return model.start(dataset.shape, len(dataset.classes), generator)


def tested(engine: Engine, params: Params) -> Tested:
    """The test samples of an engine's clients through their models."""
    c_KND, logits_KNJ = engine.features(params, engine.tests)
    y_KN = engine.tests.y[engine.tests.index_KN]
    weight_KN = engine.tests.weight_KN()
    return Tested(logits_KNJ, c_KND, engine.program.pool(c_KND), y_KN, weight_KN)


def participants(experiment: Experiment, number: int) -> list[int]:
    """Who trains in a round: a random share of the clients, in ascending order."""
    size = max(1, round(experiment.participation * experiment.clients))
    return _drawn(experiment, Purpose.PARTICIPATION, size, number)


def attackers(experiment: Experiment) -> list[int]:
    """The malicious clients, drawn by the seed, in ascending order."""
    return _drawn(experiment, Purpose.MALICIOUS, experiment.attack.clients)


def believed_labels(
    experiment: Experiment, partition: Partition, malicious: Sequence[int], dataset: Dataset
) -> list[Ints]:
    """The labels each client trains with: its samples' own, or those an attacker puts in their place."""
    labels = [dataset.train_y[index] for index in partition.train]
    for k in malicious:
        rng = _generator(experiment, Purpose.POISON, k)
        labels[k] = experiment.attack.poison(labels[k], len(dataset.classes), rng)
    return labels


def held(partitions: Sequence[Partition], classes: int) -> Tensor:
    """Which classes each client of each run holds."""
    rows = [
        np.isin(np.arange(classes), own) for partition in partitions for own in partition.classes
    ]
    return torch.from_numpy(np.stack(rows))


def _drawn(experiment: Experiment, purpose: Purpose, size: int, *more: int) -> list[int]:
    words = counter_rng.bits(counter_rng.key(experiment.seed, *more), purpose, experiment.clients)
    return sorted(words.argsort(stable=True)[:size].tolist())


def _generator(experiment: Experiment, purpose: Purpose, *more: int) -> Generator:
    return np.random.default_rng(counter_rng.integer(experiment.seed, purpose, *more))


def _by_run(cohorts: Sequence[Tensor], runs: int) -> Tensor:
    """Cohorts' rows, each run after run, as runs × clients."""
    return torch.cat([rows.view(runs, -1, *rows.shape[1:]) for rows in cohorts], 1)
