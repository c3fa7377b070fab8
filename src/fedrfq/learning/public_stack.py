"""The clients of stacked runs on their public maps; runs may have different maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.partition import Partition
from fedrfq.experiment import Experiment
from fedrfq.learning.draws import believed_labels, common_test
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors_of_tests
from fedrfq.learning.public.noisy_exchange import NoisyExchange, NoisyTask, Samples
from fedrfq.privacy.claim import PrivacyClaim, claim
from fedrfq.privacy.drawn_uploads import DrawnUploads
from fedrfq.privacy.trained_rounds import TrainedRounds
from fedrfq.prototypes.fixed_point import Bools, Globals, Uploads


@dataclass(frozen=True)
class PublicStack:
    """What every run's clients send and learn on its map.

    Vectors are computed when they are first needed, which may take minutes.
    """

    experiments: Sequence[Experiment]
    partitions: Sequence[Partition]
    malicious: Sequence[Sequence[int]]
    dataset: Dataset
    device: torch.device
    # What each run's clients have drawn with noise: in memory, unless `keep` names folders.
    drawn: list[DrawnUploads] = field(default_factory=list)
    # … and the rounds that they trained by DP-SGD.
    trained: list[TrainedRounds] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.drawn.extend(DrawnUploads() for _ in self.experiments)
        self.trained.extend(TrainedRounds() for _ in self.experiments)

    def keep(self, folders: Sequence[Path]) -> None:
        """Keep each run's noisy uploads in a folder, and take up those that are there."""
        self.drawn[:] = [DrawnUploads(folder) for folder in folders]
        self.trained[:] = [TrainedRounds(folder) for folder in folders]

    def begin_training(self, who: Sequence[Sequence[int]]) -> None:
        """Write down who trains in each run, where noise is drawn for it."""
        for experiment, begun, clients in zip(self.experiments, self.trained, who, strict=True):
            if experiment.train.private:
                begun.begin(clients)

    def uploads(self, r: int, clients: Sequence[int], number: int) -> Uploads:
        """Return what some clients of run `r` upload in a round, with noise if they add any."""
        experiment = self.experiments[r]
        exchange = self.exchanges[r]
        if not experiment.privacy.used:
            return exchange.uploads(clients)
        task = public_task(experiment.public, exchange.classes, experiment.privacy)
        assert task is not None
        return self.noisy(r, exchange, task, clients, number)

    def noisy(
        self, r: int, samples: Samples, task: NoisyTask, clients: Sequence[int], number: int
    ) -> Uploads:
        """Return what some clients of run `r` upload with noise: each upload is drawn once."""
        noisy = NoisyExchange(samples, task, self.declared(r), self.drawn[r])
        return noisy.uploads(clients, clients, number)

    def declared(self, r: int) -> list[Bools]:
        """Return the classes that each client of run `r` declares, by the partition or all.

        Attackers declare what they like.
        """
        classes = np.arange(len(self.dataset.classes))
        if self.experiments[r].privacy.classes == "all":
            return [classes >= 0 for _ in self.partitions[r].classes]
        held = list(self.partitions[r].classes)
        for k in self.malicious[r]:
            held[k] = self.exchanges[r].labels[k].cpu().numpy()
        return [np.isin(classes, own) for own in held]

    def claims(self, r: int) -> list[PrivacyClaim]:
        """Return what may be claimed of each client's privacy in run `r`; nothing without noise."""
        experiment = self.experiments[r]
        if not experiment.has_noise:
            return []
        uncovered = experiment.uncovered()
        found: dict[tuple[int, int], PrivacyClaim] = {}
        claims = []
        for client in range(experiment.clients):
            drawn = self.drawn[r].of(client)
            rounds = self.trained[r].of(client)
            alike = (len(drawn), rounds)
            # Composing steps takes a while; most clients have spent the same.
            if alike not in found:
                found[alike] = claim(
                    experiment.privacy, drawn, uncovered, experiment.noisy_steps(rounds)
                )
            claims.append(found[alike])
        return claims

    @cached_property
    def exchanges(self) -> list[PublicExchange]:
        """The training samples of each run's clients on its map."""
        exchanges = []
        for run in zip(self.experiments, self.partitions, self.malicious, strict=True):
            experiment, partition, _ = run
            labels = believed_labels(*run, self.dataset)
            exchanges.append(
                PublicExchange.of(
                    experiment.public,
                    partition,
                    labels,
                    self.dataset,
                    self.device,
                    noisy=experiment.privacy.used,
                )
            )
        return exchanges

    @cached_property
    def tests(self) -> list[Tensor]:
        """The vectors of each run's common test samples on its map."""
        found = []
        for experiment, partition in zip(self.experiments, self.partitions, strict=True):
            common = common_test(experiment, partition, self.dataset)
            found.append(vectors_of_tests(experiment.public, self.dataset, common, self.device))
        return found

    def log_probabilities(self, known: Sequence[Globals | None], longest: int) -> Tensor | None:
        """Return what each client's public classifier makes of its common test, K × N × J.

        `known` are each run's certified statistics. Rows are padded to the `longest` test. Without
        maps there is nothing to return.
        """
        chances = []
        for r, experiment in enumerate(self.experiments):
            task = public_task(experiment.public, len(self.dataset.classes))
            if task is None:
                return None
            z_NV = self.tests[r]
            for made in self.exchanges[r].classifiers(known[r] or task.nothing()):
                missing = (0, 0, 0, longest - len(z_NV))
                chances.append(F.pad(made.log_probabilities(z_NV), missing))
        return torch.stack(chances)
