"""The round loop: every client trains, uploads its prototypes, and gets the global ones back.

Several runs that differ only in numbers (seeds, partitions, λ, attacks, detectors) can share one
loop: their clients are stacked into the same programs, and each run keeps its own prototypes and
records. In a stack, clients lie run after run.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from fedrfq.committee import AgreedRound, CommitteeSettings, PreviousRound
from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data, tests_of
from fedrfq.data.partition import Partition
from fedrfq.data.public_moments import with_public_moments
from fedrfq.engine import averaging, counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.engine.engine import Engine, home
from fedrfq.engine.program import Program
from fedrfq.engine.threads import one_thread, threads
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation.application import Task
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.federation.retained import withdrawal
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import CommonFigures, CommonTest
from fedrfq.learning.attackers_scene import attackers_scene, sendable
from fedrfq.learning.draws import (
    attackers,
    believed_labels,
    common_test,
    deal,
    generator,
    leavers,
    participants,
    start,
    targets,
    validated,
)
from fedrfq.learning.evaluation import Round, RoundOutcome, Tested, measure, side_by_side
from fedrfq.learning.public.exchange import public_task
from fedrfq.learning.public.noisy_exchange import Features
from fedrfq.learning.public_stack import PublicStack
from fedrfq.methods.method import Guide
from fedrfq.models.stacked import Params, stack
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust import detectors
from fedrfq.robust.aggregation import Decision

__all__ = [
    "Diverged",
    "LoopState",
    "RoundLoop",
    "attackers",
    "believed_labels",
    "check_stackable",
    "committee_settings",
    "common_test",
    "deal",
    "held",
    "own_means",
    "participants",
    "program_key",
    "start",
    "targets",
    "tested",
    "validated",
]


@dataclass(frozen=True)
class LoopState:
    """Everything that goes from one round to the next.

    There is no state of random generators: randomness is a function of seed, client and round.
    """

    round: int
    params: tuple[Params, ...]  # one for each cohort, with a row for each run and client
    globals_: tuple[Globals, ...]  # one for each run
    memory: tuple[detectors.State, ...]  # of detector and rule, one for each run
    # Global models, with a row for each run and centre; empty where none are averaged.
    centres: Params
    agreed: tuple[bytes, ...]  # what each run's committee goes on from
    # What a server that trains has learned, one for each run; empty where it does not train.
    server: tuple[Params, ...]
    # Statistics on the public map, one for each run; None before the first are decided.
    public: tuple[Globals | None, ...]
    attack: tuple[detectors.State, ...]  # what the attackers remember, one for each run


class Diverged(UserError):
    """Losses or predictions are no longer numbers.

    `runs` has a message for each run of the stack that diverged, by the run's place.
    """

    def __init__(self, runs: Mapping[int, str], last: str = "") -> None:
        super().__init__(next(iter(runs.values())) + last)
        self.runs = runs


class RoundLoop:
    """Runs of one shape, advanced together a round at a time."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        dataset: Dataset,
        device: torch.device,
        partitions: Sequence[Partition] = (),
    ) -> None:
        """Prepare the runs; their seeds decide who holds what, unless `partitions` say so."""
        check_stackable(experiments)
        if experiments[0].train.private:
            dataset = with_public_moments(dataset)
        self.experiments = tuple(experiments)
        self._cores = experiments[0].train.cores()
        self.dataset = dataset
        self.trains_on = device
        # Where everything else is computed.
        self.device = home(device)
        self.partitions = tuple(partitions)
        if not partitions:
            self.partitions = tuple(deal(experiment, dataset) for experiment in experiments)
        self.malicious = tuple(attackers(experiment) for experiment in experiments)
        self.public = PublicStack(
            self.experiments, self.partitions, self.malicious, dataset, self.device
        )
        self.settings = tuple(
            committee_settings(experiment, len(dataset.classes)) for experiment in experiments
        )
        self.held_KJ = held(self.partitions, len(dataset.classes)).to(self.device)
        # All runs have the cohorts of the first: they are stackable.
        self.cohorts: list[range] = []
        for cohort in experiments[0].models():
            first_client = sum(map(len, self.cohorts))
            self.cohorts.append(range(first_client, first_client + cohort.clients))
        self.engines = self._make_engines()

    def _make_engines(self) -> list[Engine]:
        """Return an engine for each cohort, with its clients of all runs."""
        first = self.experiments[0]
        labels = []
        for run in zip(self.experiments, self.partitions, self.malicious, strict=True):
            labels += believed_labels(*run, self.dataset)
        train, test = client_data(
            self.partitions, labels, self.dataset, first.data.augment, self.device
        )
        engines = []
        for cohort, clients in zip(first.models(), self.cohorts, strict=True):
            rows = self._stacked_rows(clients)
            program = Program(cohort.model, first.method, first.pool, first.train)
            engines.append(Engine(program, train.of(rows), test.of(rows), self.trains_on))
        return engines

    def _stacked_rows(self, clients: range) -> list[int]:
        """Return the rows of some clients of every run, where all clients lie run after run."""
        first = self.experiments[0]
        return [r * first.clients + k for r in range(len(self.experiments)) for k in clients]

    @cached_property
    def common(self) -> CommonTest:
        """The common tests of all runs; made when first used, which not every round does."""
        dealt = zip(self.experiments, self.partitions, strict=True)
        sets = [common_test(experiment, own, self.dataset) for experiment, own in dealt]
        tests = tests_of(sets, self.dataset, self.device)
        cohorts = [self._stacked_rows(clients) for clients in self.cohorts]
        thresholds = torch.tensor([experiment.public.threshold for experiment in self.experiments])
        threshold_K = thresholds.repeat_interleave(self.experiments[0].clients).to(self.device)
        return CommonTest(tests, self.held_KJ, threshold_K, cohorts, len(self.experiments))

    def start(self) -> LoopState:
        """Return the state before the first round: random models and no global prototypes.

        Clients start alike in the parameters that they will share.
        """
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
        memory = tuple(settings.task.start_state() for settings in self.settings)
        nothing = tuple(Globals.none(classes, size) for _ in memory)
        agreed = tuple(b"" for _ in memory)
        server = tuple(
            experiment.method.server_start(classes, size, generator(experiment, Purpose.SERVER))
            for experiment in self.experiments
        )
        unknown = tuple(None for _ in memory)
        blank: tuple[detectors.State, ...] = tuple({} for _ in memory)
        return LoopState(0, params, nothing, memory, centres, agreed, server, unknown, blank)

    def federations(self) -> list[Federation | None]:
        """Return each run's federation, by which its committee can be checked; None without one."""
        pairs = zip(self.experiments, self.settings, strict=True)
        return [experiment.committee.federation(settings) for experiment, settings in pairs]

    def advance(self, state: LoopState) -> tuple[LoopState, list[RoundOutcome]]:
        """Run one round of every run; the given state is left as it was."""
        # The engines' threads need the cores, which further threads of this one would take.
        with one_thread():
            return self._advance(state)

    def _advance(self, state: LoopState) -> tuple[LoopState, list[RoundOutcome]]:
        began = time.perf_counter()
        number = state.round + 1
        who = [participants(experiment, number) for experiment in self.experiments]
        # Before any noise is drawn: it counts even if the round is never finished.
        self.public.begin_training(who)
        params, losses = self._train(state, number, who)
        seconds_train = self._elapsed(began)
        self._check_finite("loss", losses, number)
        honest = self._upload(number, params, who)
        attacked = [self._attacked(r, state, uploads) for r, uploads in enumerate(honest)]
        sent = [self._taken_back(r, number, uploads) for r, (uploads, _) in enumerate(attacked)]
        agreed = [self._decided(r, state, uploads) for r, uploads in enumerate(sent)]
        served = [self._served(r, state, a.decision) for r, a in enumerate(agreed)]
        params, centres = self._averaged(state, params, who)
        tested = self._test(params)
        largest = tested.logits_KNJ.abs().amax((1, 2)).cpu().view(len(who), -1)
        self._check_finite("prediction", list(largest), number)
        common = self._test_common(number, params, [decision for _, decision in served])
        seconds = self._elapsed(began)
        # Each run's part of the time that all runs took together.
        share = 1 / len(self.experiments)
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
                decision=served[r][1],
                report=agreed[r].report,
                values=values,
                public=self.settings[r].task.public_in(number),
                seconds_train=seconds_train * share,
                seconds=seconds * share,
            )
            for r, experiment in enumerate(self.experiments)
        ]
        after = LoopState(
            round=number,
            params=params,
            globals_=tuple(decision.globals_ for _, decision in served),
            memory=tuple(decision.state for _, decision in served),
            centres=centres,
            agreed=tuple(a.last for a in agreed),
            server=tuple(server for server, _ in served),
            public=tuple(decision.public for _, decision in served),
            attack=tuple(remembered for _, remembered in attacked),
        )
        return after, measure(rounds, tested, self.held_KJ, common)

    def silhouettes(self, state: LoopState) -> list[tuple[float, float]]:
        """Return the silhouettes of each run's test prototypes, by class: pooled, and unpooled."""
        silhouettes = []
        with one_thread():
            tested = self._test(state.params)
        everyone = range(self.experiments[0].clients)
        for r, experiment in enumerate(self.experiments):
            p, c, y = tested.rows(self.rows(r, everyone)).vectors()
            pooled = metrics.silhouette(p, y, experiment.seed)
            unpooled = metrics.silhouette(c, y, experiment.seed)
            silhouettes.append((pooled, unpooled))
        return silhouettes

    def rows(self, run: int, clients: range) -> slice:
        """Return where a run's clients are in their cohort's stack."""
        return slice(run * len(clients), (run + 1) * len(clients))

    def held_of(self, run: int) -> Tensor:
        """Return which classes each client of a run holds."""
        clients = self.experiments[0].clients
        return self.held_KJ[run * clients : (run + 1) * clients]

    def _models(self, clients: range) -> list[Params]:
        """Return the random models of a cohort's clients, run after run."""
        return [
            start(experiment, client, self.dataset)
            for experiment in self.experiments
            for client in clients
        ]

    def _train(
        self, state: LoopState, number: int, who: list[list[int]]
    ) -> tuple[tuple[Params, ...], list[Tensor]]:
        """Train the clients in `who`.

        Return the cohorts' new parameters, and the losses of each run's clients (total,
        classification, prototype).
        """
        losses = [torch.zeros(experiment.clients, 3) for experiment in self.experiments]
        trained = []
        for engine, params, clients in zip(self.engines, state.params, self.cohorts, strict=True):
            chosen = [(r, k) for r, trains in enumerate(who) for k in trains if k in clients]
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
        """Return what a cohort's clients of all runs know while they train."""
        guides = []
        for r, experiment in enumerate(self.experiments):
            own = {name: p[self.rows(r, clients)] for name, p in params.items()}
            known = targets(experiment, state.round, state.globals_[r])
            guides.append(experiment.method.guide(state.round + 1, known, own))
        guide = {
            name: torch.cat([guide[name] for guide in guides]).to(self.device) for name in guides[0]
        }
        if self.experiments[0].method.own_means:
            engine = self.engines[self.cohorts.index(clients)]
            guide |= own_means(engine, params, len(self.dataset.classes), state.round)
        return guide

    def keys(self, number: int, clients: range) -> Tensor:
        """Return the key of each client's randomness in a round, of all runs."""
        ids = torch.tensor(list(clients))
        keys = [counter_rng.key(e.seed, ids, number) for e in self.experiments]
        return torch.cat(keys).to(self.device)

    def _upload(
        self, number: int, params: tuple[Params, ...], who: list[list[int]]
    ) -> list[Uploads]:
        """Return each run's uploads, in fixed point: prototypes, or statistics on a public map."""
        due = [settings.task.public_in(number) is not None for settings in self.settings]
        prototypes: list[Uploads] = []
        if not all(due):
            prototypes = self._prototypes(number, params, who)
        # A public map may have large layers.
        with threads(self._cores):
            return [
                self.public.uploads(r, who[r], number) if due[r] else prototypes[r]
                for r in range(len(due))
            ]

    def _prototypes(
        self, number: int, params: tuple[Params, ...], who: list[list[int]]
    ) -> list[Uploads]:
        """Return each run's prototypes: P̄ of every class a participant holds."""
        first = self.experiments[0]
        if not first.method.exchanges:
            return [self._nothing(r, clients) for r, clients in enumerate(who)]
        if first.privacy.prototype_norm:
            return self._noisy_prototypes(number, params, who)
        classes = len(self.dataset.classes)
        found = [
            engine.class_means(p, classes) for engine, p in zip(self.engines, params, strict=True)
        ]
        runs = len(who)
        means_RKJV = _by_run([means for means, _ in found], runs)
        counts_RKJ = _by_run([counts for _, counts in found], runs)
        precision = first.method.precision()
        quantised = quantise(means_RKJV.flatten(0, 1), precision)
        values_RKJV, saturated_RK, missing_RK = (
            _by_run([torch.from_numpy(array)], runs).numpy() for array in quantised
        )
        uploads = []
        for r, clients in enumerate(who):
            refused = {
                k: f"{missing_RK[r, k]} values are not numbers" for k in clients if missing_RK[r, k]
            }
            senders = [k for k in clients if k not in refused]
            uploads.append(
                Uploads(
                    clients=tuple(senders),
                    counts_KJ=counts_RKJ[r, senders].cpu().numpy(),
                    values_KJV=values_RKJV[r, senders],
                    saturated=int(saturated_RK[r, senders].sum()),
                    refused=refused,
                    precision=precision,
                )
            )
        return uploads

    def _noisy_prototypes(
        self, number: int, params: tuple[Params, ...], who: list[list[int]]
    ) -> list[Uploads]:
        """Return each run's prototypes with noise; each client draws its own, and once."""
        pooled = [engine.pooled(p) for engine, p in zip(self.engines, params, strict=True)]
        uploads = []
        for r, clients in enumerate(who):
            # A cohort's clients lie run after run, and a run's cohorts one after the other.
            rows = [pairs[self.rows(r, c)] for pairs, c in zip(pooled, self.cohorts, strict=True)]
            samples = Features(*zip(*chain.from_iterable(rows), strict=True))
            task = self.settings[r].task
            uploads.append(self.public.noisy(r, samples, task, clients, number))
        return uploads

    def _nothing(self, r: int, clients: list[int]) -> Uploads:
        """Return uploads without any class.

        Servers that agree must hear from clients in every round; one that is trusted need not.
        """
        experiment = self.experiments[r]
        senders: list[int] = []
        if experiment.committee.federation(self.settings[r]) is not None:
            senders = clients
        classes = len(self.dataset.classes)
        counts_KJ = np.zeros((len(senders), classes), np.int64)
        values_KJV = np.zeros((len(senders), classes, experiment.prototype_size()), np.int64)
        return Uploads(
            tuple(senders), counts_KJ, values_KJV, precision=experiment.method.precision()
        )

    def _attacked(
        self, r: int, state: LoopState, uploads: Uploads
    ) -> tuple[Uploads, detectors.State]:
        """Return run `r`'s uploads as they are sent, after its attackers have seen everyone's.

        Return also what the attackers remember.
        """
        attack = self.experiments[r].attack
        number = state.round + 1
        if number < attack.start_round or not self.malicious[r]:
            return uploads, state.attack[r]
        task = self.settings[r].task
        scene = attackers_scene(task, number, self._previous(r, state), uploads, self.malicious[r])
        rng = generator(self.experiments[r], Purpose.CORRUPT, number)
        sent, remembered = attack.corrupt(scene, state.attack[r], rng)
        return sendable(task, number, sent), remembered

    def _taken_back(self, r: int, number: int, uploads: Uploads) -> Uploads:
        """Return run `r`'s uploads; who leaves in this round takes its statistics back instead."""
        public = self.settings[r].task.public
        if public is None:
            return uploads
        leaving = leavers(self.experiments[r], number)
        return uploads.replacing({k: withdrawal(number, k, public) for k in leaving})

    def _previous(self, r: int, state: LoopState) -> PreviousRound:
        """Return what the last round left to run `r`'s next one."""
        return PreviousRound(state.agreed[r], state.memory[r], state.globals_[r], state.public[r])

    def _decided(self, r: int, state: LoopState, sent: Uploads) -> AgreedRound:
        """Return what run `r`'s committee makes of the uploads."""
        committee = self.experiments[r].committee
        number = state.round + 1
        return committee.decide(self.settings[r], number, self._previous(r, state), sent)

    def _served(self, r: int, state: LoopState, decision: Decision) -> tuple[Params, Decision]:
        """Return what run `r`'s server has learned from a round, and the decision with its result.

        Only one trusted server trains, on prototypes; others leave the decision as it is.
        """
        experiment = self.experiments[r]
        if self.settings[r].task.public_in(state.round + 1) is not None:
            return state.server[r], decision
        kept = decision.kept_uploads()
        rng = generator(experiment, Purpose.SERVER, state.round + 1)
        server, globals_ = experiment.method.server_step(
            state.server[r], kept, decision.globals_, rng
        )
        return server, replace(decision, globals_=globals_)

    def _averaged(
        self, state: LoopState, params: tuple[Params, ...], who: list[list[int]]
    ) -> tuple[tuple[Params, ...], Params]:
        """Average what clients share, where the method shares parameters.

        Return the clients' parameters with what came back, and the new global models.
        """
        if not state.centres:
            return params, {}
        engine = self.engines[0]
        method = self.experiments[0].method
        counts_RK = torch.tensor(engine.shares.counts).view(len(who), -1)
        if self.experiments[0].train.private:
            # How many samples a client has is a secret, too: all count alike.
            counts_RK = torch.ones_like(counts_RK)
        took_part_RK = torch.zeros_like(counts_RK)
        for row, clients in zip(took_part_RK, who, strict=True):
            row[clients] = 1
        centres, own = averaging.exchange(
            method,
            engine.program.model,
            state.centres,
            params[0],
            (counts_RK * took_part_RK).to(self.device),
            first=state.round == 0,
        )
        return (own,), centres

    def _values(self, centres: Params) -> int:
        """Return how many parameters a client sends, and gets back."""
        rows = len(self.experiments) * self.experiments[0].method.centres
        return sum(p.numel() for p in centres.values()) // max(rows, 1)

    def _test(self, params: tuple[Params, ...]) -> Tested:
        """Evaluate all runs' test samples: run after run, with each run's cohorts together."""
        found = [tested(engine, p) for engine, p in zip(self.engines, params, strict=True)]
        return side_by_side(found, len(self.experiments))

    def _test_common(
        self, number: int, params: tuple[Params, ...], decisions: Sequence[Decision]
    ) -> Sequence[CommonFigures | None]:
        """Return each run's figures on its common test set; None in rounds that have none."""
        if not self.experiments[0].at_checkpoint(number) or not any(self.common.tests.counts):
            return [None for _ in self.experiments]
        pairs = zip(self.experiments, decisions, strict=True)
        known = [targets(experiment, number, decision.globals_) for experiment, decision in pairs]
        longest = self.common.tests.index_KN.shape[1]
        with threads(self._cores):
            public_KNJ = self.public.log_probabilities([d.public for d in decisions], longest)
        return self.common.measure(self.engines, params, known, public_KNJ)

    def _check_finite(self, what: str, values: Sequence[Tensor], number: int) -> None:
        """Raise Diverged where an honest client's value is not a number.

        Malicious clients may ruin their own training.
        """
        diverged = {}
        for r, value_K in enumerate(values):
            finite_K = torch.isfinite(value_K.view(len(value_K), -1)).all(1).tolist()
            clients = [
                k for k, finite in enumerate(finite_K) if not finite and k not in self.malicious[r]
            ]
            if clients:
                seed = self.experiments[r].seed
                diverged[r] = (
                    f"the {what} of client {clients[0]} is not a number in round {number} "
                    f"(seed {seed}, {len(clients)} of {len(value_K)} clients): "
                    "lower train.lr or method.lam"
                )
        if diverged:
            raise Diverged(diverged)

    def _elapsed(self, since: float) -> float:
        """Return the seconds since then, once the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - since


def program_key(experiment: Experiment) -> Hashable:
    """Return what must be equal for two runs to be stacked: all but what is data to the program."""
    e = experiment
    only = ""
    if e.train.alone:
        only = e.hash()  # a run whose clients train alone is stacked with no other
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
        e.public.used,
        e.privacy.prototype_norm > 0,
        only,
    )


def check_stackable(experiments: Sequence[Experiment]) -> None:
    """Raise UserError where runs cannot share a loop."""
    if len(experiments) > 1 and experiments[0].train.alone:
        raise UserError("runs with train.alone = true cannot be stacked: run one seed at a time")
    if len({program_key(experiment) for experiment in experiments}) != 1:
        raise UserError(
            "these runs cannot be stacked: stacked runs may differ only in seed, partition, init, "
            "attack, detector, committee, which public map they have, and a method's weights"
        )


def committee_settings(experiment: Experiment, classes: int) -> CommitteeSettings:
    """Return the run's committee settings: what it asks of its committee."""
    e = experiment
    task = Task(
        e.detector,
        e.method.rule(),
        e.method.precision(),
        e.clients,
        classes,
        e.prototype_size(),
        public_task(e.public, classes, e.privacy),
    )
    return CommitteeSettings(task, e.seed, experiment_digest(e.table()))


def own_means(engine: Engine, params: Params, classes: int, rounds: int) -> Guide:
    """Return clients' own class means as the targets of their guide, after so many rounds.

    Before the first round there are none: a model that has not been trained has nothing to keep.
    """
    means_KJV, counts_KJ = engine.class_means(params, classes)
    present_KJ = (counts_KJ > 0) & (rounds > 0)
    return {"values_KJV": means_KJV, "present_KJ": present_KJ.float()}


def tested(engine: Engine, params: Params) -> Tested:
    """Evaluate the test samples of an engine's clients."""
    c_KND, logits_KNJ = engine.features(params, engine.tests)
    y_KN = engine.tests.y[engine.tests.index_KN]
    weight_KN = engine.tests.weight_KN()
    return Tested(logits_KNJ, c_KND, engine.program.pool(c_KND), y_KN, weight_KN)


def held(partitions: Sequence[Partition], classes: int) -> Tensor:
    """Return which classes each client of each run holds."""
    rows = [
        np.isin(np.arange(classes), own) for partition in partitions for own in partition.classes
    ]
    return torch.from_numpy(np.stack(rows))


def _by_run(cohorts: Sequence[Tensor], runs: int) -> Tensor:
    """Return cohorts' rows, each of which lie run after run, as runs × clients."""
    return torch.cat([rows.view(runs, -1, *rows.shape[1:]) for rows in cohorts], 1)
