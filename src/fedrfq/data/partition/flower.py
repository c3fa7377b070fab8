"""Partitions by flwr-datasets: https://flower.ai/docs/datasets.

The partitioner sees the training samples' labels, in a column "label", and their groups where there
are any, in a column "group". It draws by the run's seed. Test samples are ours: drawn uniformly
from the classes that a client holds.
"""

from __future__ import annotations

import inspect
import tomllib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import check_clients, deal_test
from fedrfq.data.partition.iid import uniform
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.errors import UserError, did_you_mean
from fedrfq.files.options import check_ranges, option

_EXTRA = "pip install 'fedrfq[huggingface]'"


@dataclass(frozen=True)
class FlowerPartitioner:
    """Each client holds a partition of flwr-datasets' partitioner of that name."""

    partitioner: str = option(
        "DirichletPartitioner",
        "Name of a class of flwr_datasets.partitioner",
        "such as PathologicalPartitioner",
    )
    arguments: str = option(
        "",
        "Its arguments besides the number of clients and the seed",
        "as in a TOML table, such as alpha = 0.5",
    )
    test_samples: int = option(100, "Test samples of each client, at most", "1 or more")

    def __post_init__(self) -> None:
        check_ranges("partition", self)
        self._arguments()

    def _arguments(self) -> dict[str, Any]:
        try:
            given: dict[str, Any] = tomllib.loads(f"given = {{ {self.arguments} }}")["given"]
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"partition.arguments must be as in a TOML table, such as alpha = 0.5, beta = 1, "
                f"not {self.arguments!r:.100}"
            ) from error
        return given

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples; equal generators give equal partitions."""
        check_clients(clients)
        train = self._train(dataset, clients, rng)
        for client, own in enumerate(train):
            if not len(own):
                raise UserError(
                    f"{self.partitioner} leaves client {client} without samples; "
                    "change partition.arguments or lower clients"
                )
        classes = len(dataset.classes)
        counts = [np.bincount(dataset.train_y[own], minlength=classes) for own in train]

        def test(count_J: Ints, available_J: Ints) -> Ints:
            return uniform(min(self.test_samples, int(available_J.sum())), available_J, rng)

        return Partition.of(dataset, train, deal_test(dataset, counts, test, rng))

    def _train(self, dataset: Dataset, clients: int, rng: Generator) -> list[Ints]:
        columns = {"label": dataset.train_y, "index": np.arange(len(dataset.train_y))}
        if dataset.train_groups is not None:
            columns["group"] = dataset.train_groups
        made = self._made(clients, int(rng.integers(2**31)))
        try:
            import datasets

            made.dataset = datasets.Dataset.from_dict(columns)
            parts = [made.load_partition(client) for client in range(clients)]
        # Flower's own checks of its arguments and of the data.
        except (ValueError, TypeError, KeyError, IndexError) as error:
            raise UserError(
                f"{self.partitioner} cannot deal {dataset.name} to {clients} clients: {error}"
            ) from error
        return [np.sort(np.asarray(part["index"], np.int64)) for part in parts]

    def _made(self, clients: int, seed: int) -> Any:
        """Return Flower's partitioner with what it takes of our settings."""
        kind = self._kind()
        known = inspect.signature(kind).parameters
        usual: dict[str, Any] = {"num_partitions": clients, "seed": seed, "partition_by": "label"}
        chosen = {key: value for key, value in usual.items() if key in known}
        try:
            return kind(**{**chosen, **self._arguments()})
        except (ValueError, TypeError) as error:
            raise UserError(
                f"{self.partitioner}: {error}; set partition.arguments to what it takes: "
                f"{', '.join(known)}"
            ) from error

    def _kind(self) -> Any:
        try:
            from flwr_datasets import partitioner
        except ImportError as error:
            raise UserError(f"Flower's partitioners need flwr-datasets: {_EXTRA}") from error
        known = [name for name in partitioner.__all__ if name.endswith("Partitioner")]
        if self.partitioner not in known:
            raise UserError(
                f"partition.partitioner: there is no {self.partitioner!r:.60}"
                f"{did_you_mean(self.partitioner, known)}; there are: {', '.join(known)}"
            )
        return getattr(partitioner, self.partitioner)
