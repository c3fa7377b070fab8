"""Shadow federations: the run and its likes, with other samples, trained in one stack.

They have the run's seed. A federation's seed is public, and with it every client's first weights,
batches and dropout: an attacker would not do without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrfq.committee import Direct
from fedrfq.data import Dataset
from fedrfq.data.client_data import client_data
from fedrfq.data.partition import Ints, Partition
from fedrfq.engine.engine import Engine
from fedrfq.experiment import Experiment
from fedrfq.leakage.candidates import Candidates
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.models.stacked import Params

# Called after each round.
Advanced = Callable[[], None]


@dataclass(frozen=True)
class TrainedStack:
    """The run and its shadows after a round; the run is the first."""

    loop: RoundLoop
    state: LoopState

    @property
    def federations(self) -> int:
        """Return how many federations there are, the run among them."""
        return len(self.loop.experiments)

    def of_client(self, client: int) -> tuple[Engine, Params]:
        """Return a client's engine, and its parameters in every federation."""
        for engine, params, clients in zip(
            self.loop.engines, self.state.params, self.loop.cohorts, strict=True
        ):
            if client in clients:
                first = client - clients.start
                return engine, {name: p[first :: len(clients)] for name, p in params.items()}
        raise AssertionError("the cohorts cover all clients")

    def features(self, client: int, index_C: Ints) -> Tensor:
        """Return the unpooled features that a client's models have of some training samples.

        There is a row for each federation.
        """
        dataset = self.loop.dataset
        everywhere = self.federations * (index_C,)
        tests = self.federations * (np.zeros(1, np.int64),)
        alike = Partition.of(dataset, everywhere, tests)
        labels = self.federations * [dataset.train_y[index_C]]
        samples, _ = client_data([alike], labels, dataset, False, self.loop.device)
        engine, params = self.of_client(client)
        return engine.features(params, samples)[0].cpu()


def trained(
    experiment: Experiment,
    dataset: Dataset,
    partitions: Sequence[Partition],
    device: torch.device,
    rounds: Sequence[int],
    advanced: Advanced,
) -> list[TrainedStack]:
    """Train a federation for each partition, all at once; return them after each of the rounds."""
    # One trusted server decides what a committee would; nobody looks at accuracies.
    alike = replace(
        experiment,
        committee=Direct(),
        checkpoint=experiment.rounds,
        train=replace(experiment.train, alone=False),
    )
    loop = RoundLoop([alike] * len(partitions), dataset, device, partitions)
    state = loop.start()
    found = []
    while state.round < max(rounds):
        state, _ = loop.advance(state)
        advanced()
        if state.round in rounds:
            found.append(TrainedStack(loop, state))
    return found


@dataclass(frozen=True)
class Seen:
    """Unpooled features of one client's class in every federation.

    `own_FND` are those of the samples behind the upload, and `targets_FTD` those of the targets.
    """

    asked: Candidates
    own_FND: Tensor
    targets_FTD: Tensor

    @staticmethod
    def by(stack: TrainedStack, asked: Candidates) -> Seen:
        """Return what every federation's model of the client makes of the candidates."""
        features_FCD = stack.features(asked.client, asked.index_C)
        return Seen.of(asked, features_FCD)

    @staticmethod
    def of(asked: Candidates, features_FCD: Tensor) -> Seen:
        """Return what is seen of candidates with these features."""
        held_FN = np.stack([np.flatnonzero(row) for row in asked.held_FC])
        row_F1 = np.arange(len(held_FN))[:, None]
        return Seen(asked, features_FCD[row_F1, held_FN], features_FCD[:, asked.targets_T])
