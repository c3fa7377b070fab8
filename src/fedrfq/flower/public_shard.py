"""A node's clients on the public map: what they upload, and what they learn from the others.

Vectors are made when they are first needed: most rounds need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from fedrfq.data.partition import Ints
from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors_of_tests
from fedrfq.models.public_maps import PublicMap
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.fixed_point import Globals, Uploads


class PublicShard:
    """The clients of a node by their rows, with the labels that they believe."""

    def __init__(
        self,
        map_: PublicMap,
        local: LocalDataset,
        labels: Sequence[Ints],
        device: torch.device,
    ) -> None:
        self._map = map_
        self._local = local
        self._labels = labels
        self._device = device

    @cached_property
    def _exchange(self) -> PublicExchange:
        local = self._local
        return PublicExchange.of(
            self._map, local.partition, self._labels, local.dataset, self._device
        )

    @cached_property
    def _tests_NV(self) -> Tensor:
        """The vectors of the samples that all clients are tested on."""
        common = self._local.common
        assert common is not None
        return vectors_of_tests(self._map, self._local.dataset, common, self._device)

    def upload(self, client: int, row: int) -> Uploads:
        """Return the statistics that the client in this row uploads."""
        return replace(self._exchange.uploads([row]), clients=(client,))

    def classifiers(self, known: Globals | None) -> list[PublicClassifier]:
        """Return each client's classifier of all classes, from the certified statistics."""
        if known is None:
            task = public_task(self._map, len(self._local.dataset.classes))
            assert task is not None
            known = task.nothing()
        return self._exchange.classifiers(known)

    def log_probabilities(self, classifiers: Sequence[PublicClassifier]) -> Tensor:
        """Return what these classifiers make of the common test, K × N × J."""
        return torch.stack([made.log_probabilities(self._tests_NV) for made in classifiers])
