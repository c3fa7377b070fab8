"""One client of an experiment outside the round loop: its data, its training, its model on disk.

Byte for byte it is the client that `fedrfq run` with `train.alone` has: the same start, share,
randomness, model and upload. It is honest: the experiment's attack is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedrfq.data.client_data import client_data, tests_of
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.files import tensors
from fedrfq.files.strict_json import to_json
from fedrfq.learning import metrics
from fedrfq.learning.all_classes import GlobalPrototypes, evaluate
from fedrfq.learning.round_loop import held, participants, start, targets, tested
from fedrfq.methods import METHODS
from fedrfq.models.stacked import Params, stack
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, encode

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
    classes; `prototype_own` by the nearest of the classes that the client holds.

    The others are on the common test set: on all classes, on those the client holds, and on those
    it does not. There are none in rounds without that test, and where the client has samples of its
    own.
    """

    head: float
    prototype: float
    prototype_own: float
    accuracy_all: float | None = None
    accuracy_held: float | None = None
    accuracy_unheld: float | None = None


class Participant:
    """The learning of one client.

    `folder` is where the model is kept; a model found there is taken up, with the round of `run` it
    was trained in. After a change of the federation, `client` is still the client's number in the
    experiment, `member` is its number in this run, and `before` counts the rounds of earlier runs.
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
    ) -> None:
        if not experiment.method.exchanges:
            name = name_of(METHODS, experiment.method)
            raise UserError(
                f"clients of a federation exchange prototypes, and '{name}' exchanges none:"
                " use `fedrfq run`, or a method with prototypes"
            )
        self.experiment = replace(experiment, train=replace(experiment.train, alone=True))
        self.client = client
        self.device = device
        self.run = run
        self.member = client if member is None else member
        self.before = before
        self.path = folder / "model.safetensors"
        self._dataset = local.dataset
        labels = [local.dataset.train_y[index] for index in local.partition.train]
        train, test = client_data(
            [local.partition], labels, local.dataset, experiment.data.augment, device
        )
        self._common = None
        if local.common is not None:
            self._common = tests_of([local.common], local.dataset, device)
        program = Program(
            experiment.place(client)[1], experiment.method, experiment.pool, self.experiment.train
        )
        self.engine = Engine(program, train, test)
        self.held_1J = held([local.partition], len(local.dataset.classes)).to(device)
        self.round = 0
        self.losses = Losses(0.0, 0.0, 0.0)
        self.params = self._on_device(stack([start(experiment, client, local.dataset)]))
        if self.path.exists():
            self._load()

    def takes_part(self, number: int) -> bool:
        """Tell whether the experiment selects this client for a round."""
        return self.client in participants(self.experiment, self.before + number)

    def train(self, number: int, globals_: Globals) -> bytes:
        """Return the client's upload of a round, given the globals of the round before.

        Asked again for the round it was last trained in, the client does not train again: it must
        never sign two different uploads of one round.
        """
        with self.experiment.train.kernels():
            if number != self.round:
                self.params, self.losses = self._train(number, globals_)
                self.round = number
                # Before the upload is returned, and so before it can be signed.
                self._save()
            return self._upload()

    def interrupt(self) -> None:
        """Give up training that is under way; callable from another thread."""
        self.engine.interrupt()

    def test(self, number: int, globals_: Globals) -> ClientAccuracies:
        """Test the model on the client's test samples, given the globals of round `number`."""
        with self.experiment.train.kernels():
            tests = tested(self.engine, self.params)
            known = targets(self.experiment, self.before + number, globals_)
            values_JV = torch.from_numpy(known.floats()).to(tests.p_KNV)
            present_1J = torch.from_numpy(known.present_J).to(self.device)[None]
            distance_1NJ = metrics.distances(tests.p_KNV, values_JV)

            def accuracy(guess_1N: Tensor) -> float:
                return float(metrics.accuracies(guess_1N, tests.y_KN, tests.weight_KN)[0])

            common: dict[str, float | None] = {}
            if self._common is not None and self.experiment.at_checkpoint(self.before + number):
                own = GlobalPrototypes.of([known], self.device)
                found = evaluate(self.engine, self.params, self._common, self.held_1J, own)
                common = found.client(0)
            return ClientAccuracies(
                head=accuracy(tests.logits_KNJ.argmax(-1)),
                prototype=accuracy(metrics.nearest(distance_1NJ, present_1J)),
                prototype_own=accuracy(metrics.nearest(distance_1NJ, present_1J & self.held_1J)),
                accuracy_all=common.get("accuracy_all"),
                accuracy_held=common.get("accuracy_held"),
                accuracy_unheld=common.get("accuracy_unheld"),
            )

    def _train(self, number: int, globals_: Globals) -> tuple[Params, Losses]:
        # Randomness and schedules follow the rounds of the experiment, not those of this run.
        total = self.before + number
        known = targets(self.experiment, total - 1, globals_)
        guide = self.experiment.method.guide(total, known, self.params)
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
        means_1JV, counts_1J = self.engine.class_means(self.params, len(self._dataset.classes))
        self._check_finite(means_1JV, self.round)
        precision = self.experiment.method.precision()
        values_1JV, _, _ = quantise(means_1JV, precision)
        return encode(self.round, self.member, counts_1J[0].cpu().numpy(), values_1JV[0], precision)

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
