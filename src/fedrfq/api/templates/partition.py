"""example-partition: client k holds every K-th sample, so that all hold nearly the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

import fedrfq
from fedrfq.data import Dataset
from fedrfq.data.partition import Partition
from fedrfq.errors import UserError
from fedrfq.files.options import option


@fedrfq.register("partition", "example-partition")
@dataclass(frozen=True)
class ExamplePartition:
    """Deals shuffled samples like cards."""

    most: int = option(200, "Training samples that a client holds at most", "1 or more")

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples as sorted indices; random numbers from `rng` alone."""
        if clients > len(dataset.train_y):
            raise UserError(
                f"{dataset.name} has {len(dataset.train_y)} training samples for {clients} "
                "clients: lower clients"
            )
        train = []
        test = []
        order = rng.permutation(len(dataset.train_y))
        for client in range(clients):
            own = np.sort(order[client::clients][: self.most])
            train.append(own)
            # A client is tested on classes that it holds, and may share test samples.
            held = np.isin(dataset.test_y, dataset.train_y[own])
            test.append(np.flatnonzero(held))
        return Partition.of(dataset, train, test)
