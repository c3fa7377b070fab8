"""The round loop: every client trains, uploads its prototypes, and gets the global ones back.

Several runs that differ only in numbers (seeds, partitions, λ) can share one loop: their clients are stacked into the
same programs, and each run keeps its own prototypes and records.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrfq import metrics, noise
from fedrfq.data import Dataset
from fedrfq.engine import Engine, Program, Shares
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.methods.method import Guide
from fedrfq.noise import Purpose
from fedrfq.partition import Partition
from fedrfq.prototypes import Globals, Uploads, class_means, encode, quantise
from fedrfq.stacked import Params, stack


@dataclass(frozen=True)
class State:
    """Everything that goes from one round to the next; randomness is a function of (seed, client, round)."""

    round: int
    params: tuple[Params, ...]  # a cohort each, with a row for each run and client
    globals_: tuple[Globals, ...]  # a run each


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
class _Tested:
    """The test samples of one cohort through its models."""

    head_K: NDArray[np.float64]
    logit_K: Tensor  # the largest in size
    p_KNV: Tensor
    c_KND: Tensor
    y_KN: Tensor
    weight_KN: Tensor


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
        train, test = _shares(self.partitions, dataset, first.data.augment, device)
        self.engines = [
            Engine(
                Program(cohort.model, first.method, first.pool, first.train),
                self._of_cohort(train, clients),
                self._of_cohort(test, clients),
            )
            for cohort, clients in zip(first.models(), self.cohorts, strict=True)
        ]

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
        after = State(number, params, globals_)
        tested = self._test(params)
        self._check("prediction", *self._largest_logits(tested), number)
        times = (seconds_train / len(self.experiments), self._elapsed(began) / len(self.experiments))
        outcomes = [self._outcome(r, after, who[r], uploads[r], losses[r], tested, times) for r in range(len(who))]
        return after, outcomes

    def silhouettes(self, state: State) -> list[tuple[float, float]]:
        """Each run's silhouette, by class, of its test samples' prototypes: pooled, and unpooled."""
        tested, found = self._test(state.params), []
        for r, experiment in enumerate(self.experiments):
            parts = [(t, self.rows(r, clients)) for t, clients in zip(tested, self.cohorts, strict=True)]
            real = [t.weight_KN[rows].bool() for t, rows in parts]
            y = torch.cat([t.y_KN[rows][keep] for (t, rows), keep in zip(parts, real, strict=True)]).cpu().numpy()
            p = torch.cat([t.p_KNV[rows][keep] for (t, rows), keep in zip(parts, real, strict=True)]).cpu().numpy()
            c = torch.cat([t.c_KND[rows][keep] for (t, rows), keep in zip(parts, real, strict=True)]).cpu().numpy()
            found.append((metrics.silhouette(p, y, experiment.seed), metrics.silhouette(c, y, experiment.seed)))
        return found

    def rows(self, run: int, clients: range) -> slice:
        """Where a run's clients stand in their cohort's stack: runs one after the other."""
        return slice(run * len(clients), (run + 1) * len(clients))

    def _of_cohort(self, shares: Shares, clients: range) -> Shares:
        rows = [r * self.experiments[0].clients + k for r in range(len(self.experiments)) for k in clients]
        counts = tuple(shares.counts[row] for row in rows)
        return replace(shares, index_KN=shares.index_KN[rows][:, : max(counts)], counts=counts)

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

    def _test(self, params: tuple[Params, ...]) -> list[_Tested]:
        found = []
        for engine, p in zip(self.engines, params, strict=True):
            c_KND, logits_KNJ = engine.features(p, engine.tests)
            y_KN, weight_KN = engine.tests.y[engine.tests.index_KN], engine.tests.weight_KN()
            head_K = metrics.accuracies(logits_KNJ.argmax(-1), y_KN, weight_KN)
            logit_K = logits_KNJ.abs().amax((1, 2)).cpu()
            found.append(_Tested(head_K, logit_K, engine.program.pool(c_KND), c_KND, y_KN, weight_KN))
        return found

    def _outcome(
        self,
        r: int,
        state: State,
        who: list[int],
        uploads: Uploads,
        losses_K3: Tensor,
        tested: list[_Tested],
        times: tuple[float, float],
    ) -> Outcome:
        """What is known of run `r` after the round."""
        experiment, partition, globals_ = self.experiments[r], self.partitions[r], state.globals_[r]
        rows = [self.rows(r, cohort) for cohort in self.cohorts]
        head_K = np.concatenate([t.head_K[s] for t, s in zip(tested, rows, strict=True)])
        by_prototype = self._by_prototype(r, globals_, tested) if experiment.method.exchanges else None
        sent = [len(message) for message in uploads.encoded(state.round)]
        message = encode(state.round, 0, globals_.present_J.astype(np.int64), globals_.values_JV)
        receivers = len(who) if experiment.method.exchanges else 0
        counts = np.array([len(test) for test in partition.test])
        loss = losses_K3[who].mean(0).tolist()
        record = RoundRecord(
            round=state.round,
            accuracy_mean=float(head_K.mean()),
            accuracy_std=float(head_K.std()),
            accuracy_std_running=metrics.running_std(head_K, counts),
            prototype_accuracy_mean=float(by_prototype[0].mean()) if by_prototype else None,
            prototype_accuracy_std=float(by_prototype[0].std()) if by_prototype else None,
            prototype_accuracy_own_mean=float(by_prototype[1].mean()) if by_prototype else None,
            prototype_failure=by_prototype[2] if by_prototype else None,
            loss=loss[0],
            loss_classification=loss[1],
            loss_prototype=loss[2],
            participants=len(who),
            samples=sum(len(partition.train[k]) for k in who) * experiment.train.epochs,
            parameters_up=uploads.parameters(),
            parameters_down=globals_.parameters() * receivers,
            bytes_up=sum(sent),
            bytes_down=len(message) * receivers,
            saturated=uploads.saturated,
            collapsed_clients=self._collapsed(r, tested),
            seconds_train=times[0],
            seconds=times[1],
        )
        return Outcome(record, self._client_rows(r, record, head_K, by_prototype, losses_K3, set(who)))

    def _client_rows(
        self,
        r: int,
        record: RoundRecord,
        head_K: NDArray[np.float64],
        by_prototype: tuple[NDArray[np.float64], NDArray[np.float64], float] | None,
        losses_K3: Tensor,
        who: set[int],
    ) -> list[dict[str, Any]]:
        partition = self.partitions[r]
        return [
            {
                "round": record.round,
                "client": k,
                "trained": int(k in who),
                "classes": len(partition.classes[k]),
                "samples": len(partition.train[k]),
                "accuracy": float(head_K[k]),
                "prototype_accuracy": float(by_prototype[0][k]) if by_prototype else None,
                "prototype_accuracy_own": float(by_prototype[1][k]) if by_prototype else None,
                "loss_classification": float(losses_K3[k, 1]) if k in who else None,
                "loss_prototype": float(losses_K3[k, 2]) if k in who else None,
            }
            for k in range(len(head_K))
        ]

    def _by_prototype(
        self, r: int, globals_: Globals, tested: list[_Tested]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """Accuracy of the nearest global prototype, among all and among the client's own classes; prototype failure."""
        values_JV = torch.from_numpy(globals_.floats()).to(self.device)
        present_J = torch.from_numpy(globals_.present_J).to(self.device)
        everywhere, own, far, labels = [], [], [], []
        for t, clients in zip(tested, self.cohorts, strict=True):
            rows = self.rows(r, clients)
            y_KN, weight_KN = t.y_KN[rows], t.weight_KN[rows]
            distance_KNJ = metrics.distances(t.p_KNV[rows], values_JV)
            held_KJ = self._held(r, clients) & present_J
            present_KJ = present_J.expand_as(held_KJ)
            everywhere.append(metrics.accuracies(metrics.nearest(distance_KNJ, present_KJ), y_KN, weight_KN))
            own.append(metrics.accuracies(metrics.nearest(distance_KNJ, held_KJ), y_KN, weight_KN))
            far.append(distance_KNJ[weight_KN.bool()])
            labels.append(y_KN[weight_KN.bool()])
        failure = metrics.prototype_failure(torch.cat(far), torch.cat(labels), present_J)
        return np.concatenate(everywhere), np.concatenate(own), failure

    def _collapsed(self, r: int, tested: list[_Tested]) -> int:
        total = 0
        for t, clients in zip(tested, self.cohorts, strict=True):
            rows = self.rows(r, clients)
            total += int(
                metrics.collapsed(t.c_KND[rows], t.p_KNV[rows], t.weight_KN[rows], self._held(r, clients).sum(1)).sum()
            )
        return total

    def _held(self, r: int, clients: range) -> Tensor:
        held = np.zeros((len(clients), len(self.dataset.classes)), np.bool_)
        for row, k in enumerate(clients):
            held[row, self.partitions[r].classes[k]] = True
        return torch.from_numpy(held).to(self.device)

    def _largest_logits(self, tested: list[_Tested]) -> tuple[list[Tensor], list[list[int]]]:
        """Each run's clients' largest logits, and all clients: a model can blow up in its very last step."""
        every = [list(range(experiment.clients)) for experiment in self.experiments]
        pairs = list(zip(tested, self.cohorts, strict=True))
        return [torch.cat([t.logit_K[self.rows(r, cohort)] for t, cohort in pairs]) for r in range(len(every))], every

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


def _shares(partitions: Sequence[Partition], dataset: Dataset, augment: bool, device: torch.device) -> tuple[Shares, Shares]:
    """The samples that some client of some run holds, normalised and on the device, for training and for testing."""
    train = _held_samples([i for p in partitions for i in p.train], dataset.train_x, dataset.train_y, dataset, device)
    x, y, held_out_from = dataset.test_x, dataset.test_y, len(dataset.test_y)
    if any(p.held_out for p in partitions):
        x, y = np.concatenate([x, dataset.train_x]), np.concatenate([y, dataset.train_y])
    tests = [i + held_out_from if p.held_out else i for p in partitions for i in p.test]
    return replace(train, augment=augment), _held_samples(tests, x, y, dataset, device)


def _held_samples(
    indices: Sequence[NDArray[np.int64]],
    x: NDArray[np.uint8],
    y: NDArray[np.int64],
    dataset: Dataset,
    device: torch.device,
) -> Shares:
    used, inverse = np.unique(np.concatenate(indices), return_inverse=True)
    counts = tuple(len(index) for index in indices)
    rows = np.zeros((len(indices), max(counts)), np.int64)
    for row, part in zip(rows, np.split(inverse, np.cumsum(counts)[:-1]), strict=True):
        row[: len(part)] = part
    mean = torch.tensor(dataset.mean)[:, None, None] * 255
    std = torch.tensor(dataset.std)[:, None, None] * 255
    images = (torch.from_numpy(x[used]).float() - mean) / std
    return Shares(images.to(device), torch.from_numpy(y[used]).to(device), torch.from_numpy(rows).to(device), counts)
