"""The means on a public map that are attacked: as they were sent, and in other forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fedrfq.experiment import Experiment
from fedrfq.leakage.candidates import Candidates
from fedrfq.leakage.inversion import Wanted
from fedrfq.leakage.known_others import without_noise
from fedrfq.leakage.membership import Recorded, UploadForm, forms
from fedrfq.leakage.roc import Scored
from fedrfq.leakage.shadows import Seen
from fedrfq.leakage.with_noise import NoisyForm, known_others
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUploads, UploadKey
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Ints, Precision, decode
from fedrfq.prototypes.pooling import Pool
from fedrfq.runs.run_directory import RunDirectory

# What is said of uploads that nobody sent, because there was noise.
NOISELESS = ", had there been no noise"


@dataclass(frozen=True)
class MapUpload:
    """A form of the means on the map, its name in tables, and what the run recorded of it."""

    name: str
    form: UploadForm | NoisyForm
    was_sent: bool
    recorded: Recorded = field(default_factory=dict)

    def wanted(self, asked: Sequence[Candidates], own: Sequence[Tensor]) -> Wanted:
        """Return what is to be inverted: means as they were recorded, or else made again."""
        means = []
        for one, own_NV in zip(asked, own, strict=True):
            recorded_V = self.recorded.get((one.client, one.label))
            if recorded_V is None:
                means.append(self.form.uploads(own_NV[None])[0])
            else:
                means.append(recorded_V / 2.0**FRACTION_BITS)
        return Wanted.of(np.stack(means), asked, self.form.deviation)

    def known_others(self, seen: Sequence[Seen], questions: int) -> Scored:
        """Attack as somebody who knows all samples but one; noise is drawn for each question."""
        if isinstance(self.form, NoisyForm):
            classes = [one.own_FND[0].numpy() for one in seen]
            return known_others(classes, self.form, questions)
        return without_noise(seen, self.form)


def map_uploads(
    run: RunDirectory, experiment: Experiment, classes: int, clients: Sequence[int]
) -> list[MapUpload]:
    """Return the form that was sent, the same without its noise, and the same with fewer bits."""
    noisy = experiment.privacy.used
    found = []
    if noisy:
        found.append(_with_noise(run, experiment, classes, clients))
    for number, form in enumerate(forms(Pool("none"), Precision(experiment.public.bits))):
        name = f"means on the public map, {form.precision.bits} bits" + NOISELESS * noisy
        found.append(MapUpload(name, form, was_sent=not noisy and not number))
    return found


def _with_noise(
    run: RunDirectory, experiment: Experiment, classes: int, clients: Sequence[int]
) -> MapUpload:
    map_ = experiment.public
    form = NoisyForm(experiment.privacy.scale(map_.limit(), map_.values()), Precision(map_.bits))
    name = f"noisy means on the public map, {map_.bits} bits, noise {form.scale.sigma}"
    recorded = {
        (client, label): values_JV[label]
        for client, counts_J, values_JV in _drawn(run, experiment, classes, clients)
        for label in np.flatnonzero(counts_J).tolist()
    }
    return MapUpload(name, form, was_sent=True, recorded=recorded)


def noisy_counts(run: RunDirectory, experiment: Experiment, classes: int) -> Ints:
    """Return the counts that each client drew for round 1; none of one that drew nothing."""
    counts_KJ = np.zeros((experiment.clients, classes), np.int64)
    for client, counts_J, _ in _drawn(run, experiment, classes, range(experiment.clients)):
        counts_KJ[client] = counts_J
    return counts_KJ


def _drawn(
    run: RunDirectory, experiment: Experiment, classes: int, clients: Sequence[int]
) -> Iterator[tuple[int, Ints, Ints]]:
    """Yield the statistics that clients drew for round 1, as far as they lie in the run's folder.

    Of each client there are the counts and values of all classes.
    """
    kept = DrawnUploads(run.path / FOLDER)
    map_ = experiment.public
    for client in clients:
        upload = kept.get(UploadKey("", 1, client))
        if upload is not None:
            _, _, counts_J, values_JV = decode(
                upload.content, classes, map_.values(), Precision(map_.bits)
            )
            yield client, counts_J, values_JV
