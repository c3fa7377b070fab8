"""One client of an experiment outside the round loop: it trains on its own share, and its model lies on its own disk.

To the byte what the client is in `fedrfq run` with `train.alone`: the same start, share, randomness, model and upload. It is
honest: what the experiment's attack would have it do is left out.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedrfq.data.client_data import client_data
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.files import tensors
from fedrfq.files.strict_json import to_json
from fedrfq.learning import metrics
from fedrfq.learning.round_loop import held, participants, start, tested
from fedrfq.methods import METHODS
from fedrfq.models.stacked import Params, stack
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.fixed_point import Globals, encode

_MORE_BYTES = 1 << 24  # of a model's file besides the model


class Interrupted(Exception):
    """Training was stopped from outside; the model is as it was."""


class Losses(NamedTuple):
    """Means over a round's training samples."""

    total: float
    classification: float
    prototype: float


@dataclass(frozen=True)
class Accuracies:
    """On the client's test samples, in percent: by its own head; by the nearest global prototype, of all classes and of
    those it holds."""

    head: float
    prototype: float
    prototype_own: float


class Participant:
    """`folder` is where the model is kept; one that lies there is taken up, with the round of `run` it was trained in.

    In a federation that was changed, `client` is still who it is in the experiment; `seat` is its number in this run, and
    `before` the rounds of the runs before.
    """

    def __init__(
        self,
        experiment: Experiment,
        client: int,
        holding: LocalDataset,
        device: torch.device,
        folder: Path,
        run: str = "",
        member: int | None = None,
        before: int = 0,
    ) -> None:
        if not experiment.method.exchanges:
            name = name_of(METHODS, experiment.method)
            raise UserError(
                f"over the network prototypes are exchanged, and '{name}' exchanges none: use `fedrfq run`"
            )
        self.experiment = replace(experiment, train=replace(experiment.train, alone=True))
        self.client = client
        self.holding = holding
        self.device = device
        self.run = run
        if member is None:
            self.member = client
        else:
            self.member = member
        self.before = before
        self.path = folder / "model.safetensors"
        dataset = holding.dataset
        labels = [dataset.train_y[index] for index in holding.partition.train]
        train, test = client_data(
            [holding.partition], labels, dataset, experiment.data.augment, device
        )
        program = Program(
            experiment.place(client)[1], experiment.method, experiment.pool, self.experiment.train
        )
        self.engine = Engine(program, train, test)
        self.held_1J = held([holding.partition], len(dataset.classes)).to(device)
        self.round = 0
        self.losses = Losses(0.0, 0.0, 0.0)
        self.params = self._on_device(stack([start(experiment, client, dataset)]))
        if self.path.exists():
            self._load()

    def takes_part(self, number: int) -> bool:
        """Whether the experiment has this client train in a round."""
        return self.client in participants(self.experiment, self.before + number)

    def train(self, number: int, globals_: Globals) -> bytes:
        """The client's upload of a round, given the global prototypes of the one before. The new model is on disk before
        it is returned; asked again for the round it was trained in last, the client does not train anew."""
        with self.experiment.train.kernels():
            if number != self.round:
                self.params, self.losses = self._trained(number, globals_)
                self.round = number
                self._save()
            return self._upload()

    def interrupt(self) -> None:
        """From another thread: training that is under way is given up."""
        self.engine.interrupt()

    def test(self, globals_: Globals) -> Accuracies:
        with self.experiment.train.kernels():
            found = tested(self.engine, self.params)
            values_JV = torch.from_numpy(globals_.floats()).to(found.p_KNV)
            present_1J = torch.from_numpy(globals_.present_J).to(self.device)[None]
            distance_1NJ = metrics.distances(found.p_KNV, values_JV)
            guesses = [
                metrics.nearest(distance_1NJ, allowed)
                for allowed in (present_1J, present_1J & self.held_1J)
            ]
            guesses = [found.logits_KNJ.argmax(-1), *guesses]
            return Accuracies(
                *(
                    float(metrics.accuracies(guess, found.y_KN, found.weight_KN)[0])
                    for guess in guesses
                )
            )

    def _trained(self, number: int, globals_: Globals) -> tuple[Params, Losses]:
        total = self.before + number
        guide = self.experiment.method.guide(total, globals_, self.params)
        keys_1 = counter_rng.key(self.experiment.seed, torch.tensor([self.client]), total).to(
            self.device
        )
        try:
            params, losses_13 = self.engine.train(self.params, self._on_device(guide), keys_1, [0])
        except KeyboardInterrupt:
            raise Interrupted from None
        self._check(losses_13, number)
        return params, Losses(*losses_13[0].tolist())

    def _upload(self) -> bytes:
        means_1JV, counts_1J = self.engine.class_means(
            self.params, len(self.holding.dataset.classes)
        )
        self._check(means_1JV, self.round)
        precision = self.experiment.method.precision()
        values_1JV, _, _ = quantise(means_1JV, precision)
        return encode(self.round, self.member, counts_1J[0].cpu().numpy(), values_1JV[0], precision)

    def _check(self, values: Tensor, number: int) -> None:
        if not values.isfinite().all():
            raise UserError(
                f"training failed in round {number}, its values are no numbers: lower train.lr or method.lam"
            )

    def _on_device(self, named: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.to(self.device) for name, tensor in named.items()}

    def _save(self) -> None:
        """The model as other programs load it, and beside it what it was trained on and when."""
        about = {"run": self.run, "round": str(self.round), "losses": to_json(self.losses)}
        facts = {
            key: to_json(getattr(self.holding.dataset, key))
            for key in ("classes", "shape", "mean", "std")
        }
        self.path.parent.mkdir(exist_ok=True)
        tensors.save(self.path, {name: p[0] for name, p in self.params.items()}, about | facts)

    def _load(self) -> None:
        length = sum(p.numel() * p.element_size() for p in self.params.values())
        found, about = tensors.load(self.path, length + _MORE_BYTES)
        own = {name: (p.shape[1:], p.dtype) for name, p in self.params.items()}
        if {name: (p.shape, p.dtype) for name, p in found.items()} != own:
            raise UserError(
                f"{self.path} is not a model of this federation's experiment: restore it, or remove it"
            )
        self.params = self._on_device({name: found[name][None] for name in own})
        if about.get("run") == self.run:  # in another run its rounds mean nothing
            self.round, self.losses = self._when(about)

    def _when(self, about: dict[str, str]) -> tuple[int, Losses]:
        try:
            return int(about["round"]), Losses(*map(float, json.loads(about["losses"])))
        except (KeyError, ValueError, TypeError) as error:
            raise UserError(
                f"{self.path} does not say when it was trained: restore it, or remove it"
            ) from error
