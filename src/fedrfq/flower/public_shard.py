"""A node's clients on the public map: what they upload, and what they learn from the others.

Vectors are made when they are first needed: most rounds need none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrfq.data.partition import Ints
from fedrfq.experiment import Experiment
from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors_of_tests
from fedrfq.learning.public.noisy_exchange import NoisyExchange
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.privacy.drawn_uploads import DrawnUploads
from fedrfq.prototypes.fixed_point import Bools, Globals, Uploads


class PublicShard:
    """The clients of a node by their rows, with the labels that they believe."""

    def __init__(
        self,
        experiment: Experiment,
        local: LocalDataset,
        labels: Sequence[Ints],
        device: torch.device,
        drawn: DrawnUploads | None = None,
    ) -> None:
        self._experiment = experiment
        self._map = experiment.public
        self._drawn = drawn
        self._local = local
        self._labels = labels
        self._device = device

    @cached_property
    def _exchange(self) -> PublicExchange:
        local = self._local
        return PublicExchange.of(
            self._map,
            local.partition,
            self._labels,
            local.dataset,
            self._device,
            noisy=self._experiment.privacy.used,
        )

    @cached_property
    def _tests_NV(self) -> Tensor:
        """The vectors of the samples that all clients are tested on."""
        common = self._local.common
        assert common is not None
        return vectors_of_tests(self._map, self._local.dataset, common, self._device)

    def upload(self, client: int, row: int, number: int) -> Uploads:
        """Return the statistics that the client in this row uploads in a round."""
        privacy = self._experiment.privacy
        if not privacy.used:
            return replace(self._exchange.uploads([row]), clients=(client,))
        assert self._drawn is not None, "noise is drawn once, so what was drawn is kept"
        task = public_task(self._map, self._exchange.classes, privacy)
        assert task is not None
        noisy = NoisyExchange(self._exchange, task, self._declared(), self._drawn)
        return noisy.uploads([row], [client], number)

    def _declared(self) -> list[Bools]:
        """Return the classes that are uploaded: all, unless they are dealt, or lies."""
        local = self._local
        classes = np.arange(len(local.dataset.classes))
        if self._experiment.privacy.classes == "all" or local.common is None:
            return [classes >= 0 for _ in self._labels]
        # Those of attackers include what they make of their labels.
        pairs = zip(local.partition.classes, self._labels, strict=True)
        return [np.isin(classes, np.union1d(held, believed)) for held, believed in pairs]

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
