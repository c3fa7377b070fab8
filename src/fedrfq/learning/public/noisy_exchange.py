"""What clients send where noise hides their samples: each upload is drawn once.

It is statistics on a public map or, of models that were trained with noise, prototypes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from fedrfq.privacy.claim import affordable
from fedrfq.privacy.drawn_uploads import DrawnUpload, DrawnUploads, UploadKey
from fedrfq.privacy.mechanism import noisy_statistics
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Bools, Precision, Uploads, decode, encode
from fedrfq.prototypes.noise_scale import NoiseScale


class NoisyTask(Protocol):
    """What the committee is asked to do with noisy uploads: a `Task`, or a `PublicTask`."""

    @property
    def classes(self) -> int: ...

    @property
    def values(self) -> int: ...

    @property
    def precision(self) -> Precision: ...

    @property
    def privacy(self) -> Privacy | None: ...

    @property
    def noise(self) -> NoiseScale | None: ...


class Samples(Protocol):
    """Clients' samples as vectors, N × V for each client, and their labels."""

    @property
    def vectors(self) -> Sequence[Tensor]: ...

    @property
    def labels(self) -> Sequence[Tensor]: ...


@dataclass(frozen=True)
class Features:
    """Samples as the pooled features that each client's own model has of them."""

    vectors: Sequence[Tensor]
    labels: Sequence[Tensor]


@dataclass(frozen=True)
class NoisyExchange:
    """The samples of some clients, the classes that each declared, and what was drawn before.

    `run` names the run that uploads are drawn for; it is empty where `drawn` knows one run only.
    """

    samples: Samples
    task: NoisyTask
    declared: Sequence[Bools]
    drawn: DrawnUploads
    run: str = ""

    def uploads(self, rows: Sequence[int], clients: Sequence[int], number: int) -> Uploads:
        """Return the uploads of a round; clients in these rows have these numbers.

        Who has no budget left sends no class, which tells nothing about its samples.
        """
        counts = []
        values = []
        saturated = 0
        for row, client in zip(rows, clients, strict=True):
            counts_J = np.zeros(self.task.classes, np.int64)
            values_JV = np.zeros((self.task.classes, self.task.values), np.int64)
            upload = self._upload(row, UploadKey(self.run, number, client))
            if upload is not None:
                _, _, counts_J, values_JV = decode(
                    upload.content, self.task.classes, self.task.values, self.task.precision
                )
                saturated += upload.saturated
            counts.append(counts_J)
            values.append(values_JV)
        return Uploads(
            clients=tuple(clients),
            counts_KJ=np.stack(counts),
            values_KJV=np.stack(values),
            saturated=saturated,
            precision=self.task.precision,
            noise=self.task.noise,
        )

    def _upload(self, row: int, key: UploadKey) -> DrawnUpload | None:
        """Return a client's upload, from the disk or drawn now; None if the budget is spent."""
        found = self.drawn.get(key)
        if found is None and not affordable(self._privacy, self.drawn.of(key.client)):
            return None
        return self.drawn.once(key, lambda: self._draw(row, key))

    def _draw(self, row: int, key: UploadKey) -> DrawnUpload:
        noise = self.task.noise
        assert noise is not None
        noisy = noisy_statistics(
            self.samples.vectors[row].cpu().numpy(),
            self.samples.labels[row].cpu().numpy(),
            self.declared[row],
            noise,
            self.task.precision,
            most=self._privacy.samples,
        )
        content = encode(
            key.round, key.client, noisy.counts_J, noisy.values_JV, self.task.precision
        )
        return DrawnUpload(content, self._privacy.noise, self._privacy.unit, noisy.saturated)

    @property
    def _privacy(self) -> Privacy:
        assert self.task.privacy is not None
        return self.task.privacy
