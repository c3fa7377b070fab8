"""What clients send and learn about their classes on a public map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.federation.public_task import PublicTask
from fedrfq.learning.public.classifier import CertifiedStatistics, PublicClassifier, classifier
from fedrfq.learning.public.features import vectors
from fedrfq.models.public_maps import PublicMap
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.class_means import quantise
from fedrfq.prototypes.class_statistics import moment_rows, statistics
from fedrfq.prototypes.fixed_point import Globals, Precision, Uploads


def public_task(map_: PublicMap, classes: int, privacy: Privacy | None = None) -> PublicTask | None:
    """Return what the committee is asked to do with statistics on the map; None without one.

    With `privacy`, it also says how much noise is in them.
    """
    if not map_.used:
        return None
    if privacy is not None and not privacy.used:
        privacy = None
    values = map_.values()
    moments = 0
    if map_.moments != "none":
        moments = moment_rows(values)
    return PublicTask(
        map=map_.identity(),
        norm=map_.limit(),
        precision=Precision(map_.bits),
        classes=classes,
        moments=moments,
        values=values,
        every=map_.every,
        revocable=map_.revocable,
        privacy=privacy,
    )


@dataclass(frozen=True)
class PublicExchange:
    """The training samples of one run's clients as vectors on the map."""

    map_: PublicMap
    classes: int
    vectors: tuple[Tensor, ...]  # N × V for each client
    labels: tuple[Tensor, ...]  # as the client believes them to be
    noisy: bool = False  # whether clients add noise to what they upload, for privacy
    # The newest statistics that classifiers were made from, and these.
    _made: dict[bytes, list[PublicClassifier]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def of(
        map_: PublicMap,
        partition: Partition,
        labels: Sequence[Ints],
        dataset: Dataset,
        device: torch.device,
        *,
        noisy: bool = False,
    ) -> PublicExchange:
        """Return the exchange of a partition's clients, who believe in these labels."""
        return PublicExchange(
            map_,
            len(dataset.classes),
            tuple(
                vectors(map_, dataset, "train", own, device, alone=noisy) for own in partition.train
            ),
            tuple(torch.from_numpy(own).to(device) for own in labels),
            noisy,
        )

    def uploads(self, clients: Sequence[int]) -> Uploads:
        """Return what these clients upload: statistics of their classes, in fixed point."""
        precision = Precision(self.map_.bits)
        moments = self.map_.moments != "none"
        counts = []
        values = []
        for k in clients:
            counts_R, values_RV = statistics(self.vectors[k], self.labels[k], self.classes, moments)
            counts.append(counts_R)
            values.append(values_RV)
        quantised_KRV, saturated_K, _ = quantise(torch.stack(values), precision)
        return Uploads(
            clients=tuple(clients),
            counts_KJ=torch.stack(counts).cpu().numpy(),
            values_KJV=quantised_KRV,
            saturated=int(saturated_K.sum()),
            precision=precision,
        )

    def classifiers(self, known: Globals) -> list[PublicClassifier]:
        """Return each client's classifier of all classes, from what was certified."""
        key = known.present_J.tobytes() + known.values_JV.tobytes()
        # Statistics mostly stay as they were, and a run asks again at every checkpoint.
        if key not in self._made:
            device = self.vectors[0].device
            certified = CertifiedStatistics.of(known, self.classes, device, self.noisy)
            self._made.clear()
            self._made[key] = [
                classifier(self.map_, certified, z_NV, y_N)
                for z_NV, y_N in zip(self.vectors, self.labels, strict=True)
            ]
        return self._made[key]
