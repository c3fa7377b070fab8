"""One client of an experiment outside the round loop: its data, its training, its model on disk.

Byte for byte it is the client that `fedrfq run` with `train.alone` has: the same start, share,
randomness, model and upload. It is honest: the experiment's attack is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedrfq.data.client_data import client_data, tests_of
from fedrfq.data.public_moments import with_public_moments
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program, home
from fedrfq.engine.threads import one_thread
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.federation.retained import MARK, statistics_of
from fedrfq.files import tensors
from fedrfq.files.strict_json import to_json
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import GlobalPrototypes, evaluate
from fedrfq.learning.evaluation import Tested
from fedrfq.learning.public.combination import combined
from fedrfq.learning.public.noisy_exchange import Features
from fedrfq.learning.round_loop import (
    committee_settings,
    held,
    own_means,
    participants,
    start,
    targets,
    tested,
)
from fedrfq.methods import METHODS
from fedrfq.models.stacked import Params, stack
from fedrfq.node.client_privacy import ClientPrivacy
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.public_knowledge import PublicKnowledge
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, Ints, Precision, encode

# What a model's file may have besides the tensors: names, shapes and metadata.
_MAX_HEADER_BYTES = 1 << 24


class Interrupted(Exception):
    """Training was stopped from outside; the model is as it was before."""


class Losses(NamedTuple):
    """The mean losses over a round's training samples."""

    total: float
    classification: float
    prototype: float


@dataclass(frozen=True)
class ClientAccuracies:
    """Accuracies on the client's test samples, in percent.

    `head` is by the client's own classifier; `prototype` by the nearest global prototype of all
    classes; `prototype_own` by the nearest of the classes that the client holds; both are missing
    where a method has no prototypes to predict by. `combined` is by the own classifier together
    with the one on the public map, if there is a map.

    The others are of the final prediction on the common test set: on all classes, on those the
    client holds, and on those it does not. There are none in rounds without that test, and where
    the client has samples of its own.
    """

    head: float
    prototype: float | None
    prototype_own: float | None
    combined: float | None = None
    accuracy_all: float | None = None
    accuracy_held: float | None = None
    accuracy_unheld: float | None = None


class Participant:
    """The learning of one client.

    `folder` is where the model is kept; a model found there is taken up, with the round of `run` it
    was trained in. After a change of the federation, `client` is still the client's number in the
    experiment, `member` is its number in this run, and `before` counts the rounds of earlier runs.
    With `renew` the client replaces its statistics on the public map, until that has counted.
    `privacy` adds the noise that the experiment asks for, if it does.
    """

    def __init__(
        self,
        experiment: Experiment,
        client: int,
        local: LocalDataset,
        device: torch.device,
        folder: Path,
        *,
        run: str = "",
        member: int | None = None,
        before: int = 0,
        renew: bool = False,
        privacy: ClientPrivacy | None = None,
    ) -> None:
        _check_method(experiment)
        self.experiment = replace(experiment, train=replace(experiment.train, alone=True))
        self.client = client
        self.device = home(device)
        self.run = run
        self.member = client if member is None else member
        self.before = before
        self._renews = renew
        assert (privacy is not None) == experiment.privacy.used, "noise is not forgotten"
        self.privacy = privacy
        self.path = folder / "model.safetensors"
        if experiment.train.private:
            local = replace(local, dataset=with_public_moments(local.dataset))
        self._dataset = local.dataset
        labels = [local.dataset.train_y[index] for index in local.partition.train]
        train, test = client_data(
            [local.partition], labels, local.dataset, experiment.data.augment, self.device
        )
        self._common = None
        # Where clients share samples, there may be none that nobody trains on.
        if local.common is not None and len(local.common.test[0]):
            self._common = tests_of([local.common], local.dataset, self.device)
        program = Program(
            experiment.place(client)[1], experiment.method, experiment.pool, self.experiment.train
        )
        self.engine = Engine(program, train, test, device)
        self.held_1J = held([local.partition], len(local.dataset.classes)).to(self.device)
        self._public = self._make_public(local, folder)
        self.round = 0
        self.losses = Losses(0.0, 0.0, 0.0)
        self.params = self._on_device(stack([start(experiment, client, local.dataset)]))
        if self.path.exists():
            self._load()

    def _make_public(self, local: LocalDataset, folder: Path) -> PublicKnowledge | None:
        if not self.experiment.public.used:
            return None
        with one_thread():
            return PublicKnowledge(
                self.experiment.public,
                local,
                self.held_1J,
                self.device,
                folder,
                privacy=self.privacy,
            )

    def takes_part(self, number: int) -> bool:
        """Tell whether the experiment selects this client for a round."""
        # By the round of this run, as servers count: a new run begins with such an exchange.
        if self.experiment.public.due(number) or self._renews:
            return True
        return self.client in participants(self.experiment, self.before + number)

    def train(self, number: int, globals_: Globals) -> bytes:
        """Return the client's upload of a round, given the globals of the round before.

        Asked again for the round it was last trained in, the client does not train again: it must
        never sign two different uploads of one round.
        """
        with one_thread():
            if number != self.round:
                self.params, self.losses = self._train(number, globals_)
                self.round = number
                # Before the upload is returned, and so before it can be signed.
                self._save()
            return self._upload()

    def heard(self, number: int, counted: bytes) -> None:
        """Learn which upload of this client, if any, was decided on in a round."""
        if not self._renews or self._public is None:
            return
        # It may be one from before the client was started, of samples that it no longer has.
        self._renews = statistics_of(counted) != self._public.upload(number, self.member)

    def interrupt(self) -> None:
        """Give up training that is under way; callable from another thread."""
        self.engine.interrupt()

    def test(
        self, number: int, globals_: Globals, public: Globals | None = None
    ) -> ClientAccuracies:
        """Test the model on the client's test samples, given what was certified in round `number`.

        This is where the client learns from the statistics on the public map, if there are any.
        """
        with one_thread():
            if self._public is not None:
                self._public.learn(public)
            tests = tested(self.engine, self.params)
            known = targets(self.experiment, self.before + number, globals_)
            return ClientAccuracies(
                head=_accuracy(tests, tests.logits_KNJ.argmax(-1)),
                **self._by_prototype(tests, known),
                combined=self._combined(tests),
                **self._on_all_classes(number, known),
            )

    def _by_prototype(self, tests: Tested, known: Globals) -> dict[str, float | None]:
        if not self.experiment.method.predicts:
            return {"prototype": None, "prototype_own": None}
        values_JV = torch.from_numpy(known.floats()).to(tests.p_KNV)
        present_1J = torch.from_numpy(known.present_J).to(self.device)[None]
        distance_1NJ = metrics.distances(tests.p_KNV, values_JV)
        nearest_1N = metrics.nearest(distance_1NJ, present_1J)
        nearest_own_1N = metrics.nearest(distance_1NJ, present_1J & self.held_1J)
        return {
            "prototype": _accuracy(tests, nearest_1N),
            "prototype_own": _accuracy(tests, nearest_own_1N),
        }

    def _combined(self, tests: Tested) -> float | None:
        public_1NJ = None
        if self._public is not None:
            public_1NJ = self._public.tests()
        if public_1NJ is None:
            return None
        chance_1NJ = combined(tests.logits_KNJ, public_1NJ, self.held_1J[:, None])
        return _accuracy(tests, chance_1NJ.argmax(-1))

    def _on_all_classes(self, number: int, known: Globals) -> dict[str, float | None]:
        """Return the accuracies on the common test set, in rounds in which there is that test."""
        if self._common is None or not self.experiment.at_checkpoint(self.before + number):
            return {}
        public_1NJ = None
        if self._public is not None:
            public_1NJ = self._public.common()
        prototypes = GlobalPrototypes.of([known], self.device)
        threshold_1 = torch.tensor([self.experiment.public.threshold], device=self.device)
        figures = evaluate(
            self.engine,
            self.params,
            self._common,
            self.held_1J,
            prototypes,
            threshold_1,
            public_1NJ,
        ).client(0)
        names = ("accuracy_all", "accuracy_held", "accuracy_unheld")
        return {name: figures[name] for name in names}

    def _train(self, number: int, globals_: Globals) -> tuple[Params, Losses]:
        # One that is left over would end this training at once, and noise would count for nothing.
        if self.engine.was_interrupted():
            raise Interrupted
        if self.experiment.train.private:
            assert self.privacy is not None
            self.privacy.begin_training()
        # Randomness and schedules follow the rounds of the experiment, not those of this run.
        total = self.before + number
        known = targets(self.experiment, total - 1, globals_)
        guide = self.experiment.method.guide(total, known, self.params)
        if self.experiment.method.own_means:
            classes = len(self._dataset.classes)
            guide |= own_means(self.engine, self.params, classes, total - 1)
        keys_1 = counter_rng.key(self.experiment.seed, torch.tensor([self.client]), total)
        try:
            params, losses_13 = self.engine.train(
                self.params, self._on_device(guide), keys_1.to(self.device), [0]
            )
        except KeyboardInterrupt:
            # The engine's way to say that `interrupt` was called.
            raise Interrupted from None
        self._check_finite(losses_13, number)
        return params, Losses(*losses_13[0].tolist())

    def _upload(self) -> bytes:
        if self._public is not None and self.experiment.public.due(self.round):
            return self._public.upload(self.round, self.member)
        if self._public is not None and self._renews:
            return MARK + self._public.upload(self.round, self.member)
        precision = self.experiment.method.precision()
        if self.privacy is not None and self.experiment.privacy.prototype_norm:
            counts_J, values_JV = self._noisy_prototypes(self.privacy)
        else:
            counts_J, values_JV = self._prototypes(precision)
        return encode(self.round, self.member, counts_J, values_JV, precision)

    def _noisy_prototypes(self, privacy: ClientPrivacy) -> tuple[Ints, Ints]:
        samples = Features(*zip(*self.engine.pooled(self.params), strict=True))
        task = committee_settings(self.experiment, len(self._dataset.classes)).task
        sent = privacy.upload(samples, task, self.round)
        return sent.counts_KJ[0], sent.values_KJV[0]

    def _prototypes(self, precision: Precision) -> tuple[Ints, Ints]:
        """Return the sample counts and the prototypes that are sent; none without exchange."""
        classes = len(self._dataset.classes)
        if not self.experiment.method.exchanges:
            size = self.experiment.prototype_size()
            return np.zeros(classes, np.int64), np.zeros((classes, size), np.int64)
        means_1JV, counts_1J = self.engine.class_means(self.params, classes)
        self._check_finite(means_1JV, self.round)
        values_1JV, _, _ = quantise(means_1JV, precision)
        return counts_1J[0].cpu().numpy(), values_1JV[0]

    def _check_finite(self, values: Tensor, number: int) -> None:
        if not values.isfinite().all():
            raise UserError(
                f"training diverged in round {number} (NaN or infinite values):"
                " lower train.lr or method.lam"
            )

    def _on_device(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in named.items()}

    def _save(self) -> None:
        """Save the model as other programs load it, with what it was trained on and when."""
        about = {"run": self.run, "round": str(self.round), "losses": to_json(self.losses)}
        facts = {
            key: to_json(getattr(self._dataset, key)) for key in ("classes", "shape", "mean", "std")
        }
        self.path.parent.mkdir(exist_ok=True)
        tensors.save(self.path, {name: p[0] for name, p in self.params.items()}, about | facts)

    def _load(self) -> None:
        length = sum(p.numel() * p.element_size() for p in self.params.values())
        saved, about = tensors.load(self.path, length + _MAX_HEADER_BYTES)
        expected = {name: (p.shape[1:], p.dtype) for name, p in self.params.items()}
        if {name: (p.shape, p.dtype) for name, p in saved.items()} != expected:
            raise UserError(
                f"{self.path} is not a model of this federation's experiment:"
                " restore it, or remove it"
            )
        self.params = self._on_device({name: saved[name][None] for name in expected})
        # The rounds of another run mean nothing in this one; the model itself is kept.
        if about.get("run") == self.run:
            self.round, self.losses = self._trained_when(about)

    def _trained_when(self, about: dict[str, str]) -> tuple[int, Losses]:
        try:
            return int(about["round"]), Losses(*map(float, json.loads(about["losses"])))
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{self.path} does not say in which round it was trained: restore it, or remove it"
            ) from error


def _check_method(experiment: Experiment) -> None:
    """Refuse methods that average models, and those that leave servers nothing to decide."""
    method = experiment.method
    if method.centres or not (method.exchanges or experiment.public.used):
        raise UserError(
            "clients of a federation exchange prototypes, or statistics on a public map, and"
            f" '{name_of(METHODS, method)}' exchanges none: use `fedrfq run`, or another method"
        )
    if experiment.train.private and not experiment.privacy.used:
        raise UserError(
            "train.dp_noise covers the model alone, which a client of a federation never uploads:"
            " set privacy.noise for what it does upload, and privacy.prototype_norm for prototypes"
        )


def _accuracy(tests: Tested, guess_1N: Tensor) -> float:
    return float(metrics.accuracies(guess_1N, tests.y_KN, tests.weight_KN)[0])
