"""What a network client sends and learns about classes on the federation's public map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrfq.learning.public.classifier import PublicClassifier
from fedrfq.learning.public.classifier_file import CLASSIFIERS, save_classifiers
from fedrfq.learning.public.exchange import PublicExchange
from fedrfq.learning.public.features import vectors_of_tests
from fedrfq.models.public_maps import PublicMap
from fedrfq.node.client_privacy import ClientPrivacy
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.prototypes.fixed_point import Globals, encode


class PublicKnowledge:
    """One client's samples on the public map, and the classifier it made of what was certified.

    All vectors are computed at once, so that missing weights or unsuitable images are reported
    before the client has signed anything. The classifier is kept in `folder`. With `privacy`, what
    is sent has noise.
    """

    def __init__(
        self,
        map_: PublicMap,
        local: LocalDataset,
        held_1J: Tensor,
        device: torch.device,
        folder: Path,
        *,
        privacy: ClientPrivacy | None = None,
    ) -> None:
        labels = [local.dataset.train_y[index] for index in local.partition.train]
        self._exchange = PublicExchange.of(
            map_, local.partition, labels, local.dataset, device, noisy=privacy is not None
        )
        self._tests_NV = vectors_of_tests(map_, local.dataset, local.partition, device)
        self._common_NV = None
        if local.common is not None:
            self._common_NV = vectors_of_tests(map_, local.dataset, local.common, device)
        self._held_1J = held_1J
        self._folder = folder
        self._privacy = privacy
        self._known: Globals | None = None
        self._classifier: PublicClassifier | None = None

    def upload(self, round_: int, member: int) -> bytes:
        """Return the client's statistics as the upload of a round."""
        if self._privacy is None:
            sent = self._exchange.uploads([0])
        else:
            sent = self._privacy.upload(self._exchange, self._privacy.task, round_)
        return encode(round_, member, sent.counts_KJ[0], sent.values_KJV[0], sent.precision)

    def learn(self, known: Globals | None) -> None:
        """Make the classifier of certified statistics, and keep it; the same are learned once.

        Where there are none, because everybody has taken theirs back, the classifier goes, too.
        """
        if known is None:
            self._unlearn()
            return
        if self._known is not None and _equal(known, self._known):
            return
        (made,) = self._exchange.classifiers(known)
        self._folder.mkdir(exist_ok=True)
        save_classifiers(self._folder, [made], self._held_1J)
        self._classifier = made
        self._known = known

    def _unlearn(self) -> None:
        (self._folder / CLASSIFIERS).unlink(missing_ok=True)
        self._classifier = None
        self._known = None

    def tests(self) -> Tensor | None:
        """Return log-probabilities of the client's test samples, 1 × N × J; None if untaught."""
        return self._chances(self._tests_NV)

    def common(self) -> Tensor | None:
        """Return those of the common test set; None if there is none, too."""
        return self._chances(self._common_NV)

    def _chances(self, z_NV: Tensor | None) -> Tensor | None:
        if self._classifier is None or z_NV is None:
            return None
        return self._classifier.log_probabilities(z_NV)[None]


def _equal(known: Globals, other: Globals) -> bool:
    same_classes = np.array_equal(known.present_J, other.present_J)
    return same_classes and np.array_equal(known.values_JV, other.values_JV)
