"""An audit of what a run's clients uploaded: every attack that applies to it, and what it won."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Generator, Tensor

from fedrfq.data import Dataset
from fedrfq.data.client_data import normalised
from fedrfq.data.partition import Ints, Partition
from fedrfq.engine.threads import one_thread
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, name_of
from fedrfq.leakage.candidates import Candidates, candidates, partitions
from fedrfq.leakage.class_counts import CountFigures, count_figures
from fedrfq.leakage.inversion import Wanted
from fedrfq.leakage.likelihood_ratio import inverse_covariance
from fedrfq.leakage.map_uploads import NOISELESS, MapUpload, map_uploads, noisy_counts
from fedrfq.leakage.membership import Recorded, UploadForm, attacked, forms
from fedrfq.leakage.rebuilt import PublicPool, Rebuilt, drawn, rebuilt
from fedrfq.leakage.record import LeakageFigures, MembershipRow
from fedrfq.leakage.roc import Floats, Roc
from fedrfq.leakage.shadows import Seen, TrainedStack, trained
from fedrfq.leakage.with_noise import NoisyForm
from fedrfq.learning.draws import attackers, deal
from fedrfq.learning.public.features import vectors
from fedrfq.methods import METHODS
from fedrfq.models.stacked import LAYOUTS
from fedrfq.privacy.cost import auc
from fedrfq.runs.environment import here
from fedrfq.runs.given_modules import check_given
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.snapshot import PrototypeSnapshot

# Called with what is being done, how much of it is done, and how much there is.
Told = Callable[[str, int, int], None]

# Federations on a public map cost hardly anything: nothing is trained.
_MAP_SHADOWS = 24
# Clients of all federations together: it bounds memory and time.
_MAX_CLIENTS = 50_000
_SHADOW = "with shadows"
_RUN_ALONE = "with shadows, on this run alone"
_KNOWS_OTHERS = "knows all other samples"


@dataclass
class LeakageAudit:
    """A run, and the attacks on it."""

    run: RunDirectory
    experiment: Experiment
    dataset: Dataset
    partition: Partition
    shadows: int
    questions: int
    seed: int
    pictures: int
    device: torch.device
    told: Told
    revision: str
    notes: list[str] = field(default_factory=list)

    @staticmethod
    def of(
        run: RunDirectory,
        shadows: int,
        questions: int,
        seed: int,
        pictures: int,
        device: torch.device,
        told: Told,
    ) -> LeakageAudit:
        """Load the run's data, and deal them as the run did."""
        # Of the code that is loaded now: files may change while the audit runs.
        revision = str(here()["revision"])
        experiment = run.experiment()
        if experiment.clients * (1 + shadows) > _MAX_CLIENTS:
            raise UserError(
                f"{1 + shadows} federations of {experiment.clients} clients are too many: at most"
                f" {_MAX_CLIENTS:,} clients are trained; lower --shadows"
            )
        # Before hours of attacks on the public map; only shadows of prototypes train a model.
        if experiment.method.exchanges:
            check_given(experiment)
        dataset = experiment.data.load()
        recorded = run.environment()["data"].get("sha256")
        if dataset.sha256 != recorded:
            raise UserError(
                f"the data changed: the run began on sha256 {recorded!s:.64}, found"
                f" {dataset.sha256}; restore the data"
            )
        partition = deal(experiment, dataset)
        return LeakageAudit(
            run,
            experiment,
            dataset,
            partition,
            shadows,
            questions,
            seed,
            pictures,
            device,
            told,
            revision,
        )

    def made(self) -> tuple[LeakageFigures, bytes]:
        """Make all attacks that apply; return what they won, and the pictures as a PNG file."""
        rows: list[MembershipRow] = []
        shown: list[Rebuilt] = []
        if self.experiment.public.used:
            rows += self._on_map()
            self._note_uploads()
            shown += self._rebuilt(self._map_inverted)
        if self.experiment.method.exchanges:
            stacks = self._trained()
            rows += [row for stack in stacks for row in self._on_prototypes(stack)]
            shown += self._rebuilt(lambda asked: [self._prototypes_inverted(asked, stacks[-1])])
        if self.experiment.method.centres:
            name = name_of(METHODS, self.experiment.method)
            self.notes.append(f"{name} uploads models, which are not attacked here.")
        inversion = tuple(row for part in shown for row in part.rows)
        found = LeakageFigures(
            shadows=self.shadows,
            seed=self.seed,
            revision=self.revision,
            counts=self._counts(),
            membership=tuple(rows),
            inversion=inversion,
            notes=tuple(self.notes),
        )
        return found, drawn(shown)

    @cached_property
    def honest(self) -> list[int]:
        """Clients that upload what they hold: attackers' uploads tell little about samples."""
        malicious = attackers(self.experiment)
        return [k for k in range(self.experiment.clients) if k not in malicious]

    def _counts(self) -> CountFigures:
        classes = len(self.dataset.classes)
        labels = [self.dataset.train_y[own] for own in self.partition.train]
        held_KJ = np.stack([np.bincount(y_N, minlength=classes) for y_N in labels])
        privacy = self.experiment.privacy
        # Prototypes without noise have the true counts with them.
        is_clear = self.experiment.method.exchanges and not privacy.prototype_norm
        if is_clear or not privacy.used:
            return count_figures(held_KJ)
        self.notes.append(
            "Counts have noise: somebody who knows what clients hold guesses the nearest."
        )
        return count_figures(held_KJ, noisy_counts(self.run, self.experiment, classes))

    def _rng(self, purpose: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, purpose])

    def _asked(self, shadows: int) -> list[Candidates]:
        asked = candidates(self.dataset, self.partition, self.honest, shadows, self._rng(0))
        if not asked:
            raise UserError(
                "nobody holds a class of which there are other samples, so no attack can be"
                " measured: audit a run with fewer samples a client"
            )
        return asked

    # Attacks on the public map.

    def _vectors(self, index_N: Ints) -> Tensor:
        return vectors(self.experiment.public, self.dataset, "train", index_N, torch.device("cpu"))

    @cached_property
    def _map_uploads(self) -> list[MapUpload]:
        classes = len(self.dataset.classes)
        return map_uploads(self.run, self.experiment, classes, self.honest)

    def _on_map(self) -> Iterator[MembershipRow]:
        """Attack the means on the public map."""
        asked = self._asked(max(self.shadows, _MAP_SHADOWS))
        seen = [Seen.of(one, self._on_all(one)) for one in asked]
        members = float(np.mean([one.asked.members for one in seen]))
        covariance_VV = self._map_covariance()
        for number, sent in enumerate(self._map_uploads):
            self.told(f"membership: {sent.name}", number, len(self._map_uploads))
            # Of single vectors: a mean's, times how many are behind it.
            noise_VV = sent.form.deviation**2 / members * np.eye(len(covariance_VV))
            weigh_VV = inverse_covariance(covariance_VV + noise_VV)
            success = attacked(seen, sent.form, sent.recorded, self._rng(1), weigh_VV)
            knowing = sent.known_others(seen, self.questions).roc(self._rng(2))
            yield _row(sent.name, _SHADOW, success.alike, sent.form.most)
            if sent.was_sent:
                yield _row(sent.name, _RUN_ALONE, success.run, sent.form.most)
            yield _row(sent.name, _KNOWS_OTHERS, knowing, sent.form.most)

    def _note_uploads(self) -> None:
        """Say so where several uploads with noise allow more than the one that is attacked."""
        experiment = self.experiment
        uploads = sum(map(experiment.public.due, range(1, experiment.rounds + 1)))
        if experiment.privacy.used and uploads > 1:
            most = auc(experiment.privacy.noise, uploads)
            self.notes.append(
                f"Noisy means were sent {uploads} times, and those of round 1 were attacked: all "
                f"of them together allow an AUC of {most:.3f}."
            )

    def _on_all(self, one: Candidates) -> Tensor:
        """Return the candidates' vectors, which are the same in all federations."""
        z_CV = self._vectors(one.index_C)
        return z_CV.expand(len(one.held_FC), -1, -1)

    def _map_covariance(self) -> Floats:
        """Return how vectors of one class vary: known from images that nobody holds."""
        everybodys = np.concatenate(self.partition.train)
        public = np.setdiff1d(np.arange(len(self.dataset.train_y)), everybodys)
        if len(public) < 2:
            public = everybodys
        z_PV = self._vectors(public).double().numpy()
        y_P = self.dataset.train_y[public]
        for label in np.unique(y_P):
            z_PV[y_P == label] -= z_PV[y_P == label].mean(0)
        covariance_VV: Floats = z_PV.T @ z_PV / len(z_PV)
        return covariance_VV

    # Attacks on prototypes of trained features.

    def _trained(self) -> list[TrainedStack]:
        """Train the run again beside its shadows; return them after its first and last uploads."""
        experiment = self.experiment
        due = [n for n in range(1, experiment.rounds + 1) if not experiment.public.due(n)]
        if not due:
            raise UserError("the run has no round in which prototypes are uploaded")
        asked = self._asked(self.shadows)
        parts = partitions(self.partition, asked, self.shadows)
        done = 0

        def advanced() -> None:
            nonlocal done
            done += 1
            self.told("training shadow federations", done, due[-1])

        return trained(experiment, self.dataset, parts, self.device, (due[0], due[-1]), advanced)

    def _on_prototypes(self, stack: TrainedStack) -> Iterator[MembershipRow]:
        """Attack the prototypes that were uploaded in a round."""
        number = stack.state.round
        asked = self._asked(self.shadows)
        seen = [Seen.by(stack, one) for one in asked]
        recorded = self._recorded(number)
        tried = self._prototype_forms()
        for place, form in enumerate(tried):
            self.told(f"membership by prototypes of round {number}", place, len(tried))
            name = self._prototypes_name(form, number)
            sent = recorded if not place else {}
            success = attacked(seen, form, sent, self._rng(1))
            yield _row(name, _SHADOW, success.alike)
            if not place:
                yield _row(name, _RUN_ALONE, success.run)

    def _prototype_forms(self) -> list[UploadForm | NoisyForm]:
        """Return the form in which prototypes were sent, and others."""
        experiment = self.experiment
        precision = experiment.method.precision()
        found: list[UploadForm | NoisyForm] = [*forms(experiment.pool, precision)]
        scale = experiment.privacy.prototype_scale(experiment.prototype_size())
        if scale is not None:
            found.insert(0, NoisyForm(scale, precision, experiment.pool))
        return found

    def _prototypes_name(self, form: UploadForm | NoisyForm, number: int) -> str:
        pooled = "unpooled" if form.pool.name == "none" else "pooled"
        name = f"prototypes of round {number}, {pooled}, {form.precision.bits} bits"
        if isinstance(form, NoisyForm):
            return f"noisy {name}"
        return name + NOISELESS * (self.experiment.privacy.prototype_norm > 0)

    def _recorded(self, number: int) -> Recorded:
        """Return what the run's clients uploaded in a round, as far as it was recorded."""
        snapshot = PrototypeSnapshot.load(self.run.path)
        if snapshot is None or snapshot.round != number:
            return {}
        if snapshot.values_RV.shape[1] != self.experiment.prototype_size():
            raise UserError(
                f"{self.run.path} has prototypes of {snapshot.values_RV.shape[1]} values, but its"
                f" experiment {self.experiment.prototype_size()}: restore the files"
            )
        keys = zip(snapshot.client_R.tolist(), snapshot.label_R.tolist(), strict=True)
        return dict(zip(keys, snapshot.values_RV, strict=True))

    # Inversion.

    def _rebuilt(self, invert: Callable[[list[Candidates]], list[Rebuilt]]) -> list[Rebuilt]:
        """Invert some uploads: those of the fewest samples, where the most can be seen."""
        if self.dataset.train_x.dtype != np.uint8:
            self.notes.append("The samples are not images, so none were rebuilt from uploads.")
            return []
        asked = sorted(self._asked(1), key=lambda one: one.members)[: self.pictures]
        if not asked:
            return []
        self.told("rebuilding images from uploads", 0, 1)
        # A few small images: threads would mostly wait for each other.
        with one_thread():
            return invert(asked)

    @cached_property
    def _pool(self) -> PublicPool:
        return PublicPool.of(self.dataset, self.partition, self._rng(3))

    def _torch_rng(self) -> Generator:
        return torch.Generator().manual_seed(self.seed)

    def _map_inverted(self, asked: list[Candidates]) -> list[Rebuilt]:
        """Invert the means on the public map: as they were sent and, with noise, without it."""
        bits = self.experiment.public.bits
        inverted = [sent for sent in self._map_uploads if sent.form.precision.bits == bits]
        return [self._means_inverted(asked, sent) for sent in inverted]

    def _means_inverted(self, asked: list[Candidates], sent: MapUpload) -> Rebuilt:
        map_ = self.experiment.public

        def to_vectors(images: Tensor) -> Tensor:
            return map_.scaled(map_.raw(images))

        own = [self._vectors(one.index_C[: one.members]) for one in asked]
        vectors_PV = to_vectors(self._pool.images)
        return rebuilt(
            sent.name,
            sent.wanted(asked, own),
            asked,
            to_vectors,
            self._pool.with_vectors(vectors_PV.expand(len(asked), -1, -1)),
            self._pool,
            self.dataset,
            self._torch_rng(),
        )

    def _prototypes_inverted(self, asked: list[Candidates], stack: TrainedStack) -> Rebuilt:
        """Invert prototypes through the clients' models, which the attacker has stolen."""
        form = self._prototype_forms()[0]
        means = [
            form.uploads(stack.features(one.client, one.index_C[: one.members])[:1])
            for one in asked
        ]
        models = [self._map_of_model(stack, one.client) for one in asked]

        def to_vectors(images: Tensor) -> Tensor:
            rows = zip(models, images, strict=True)
            return torch.cat([model(image[None]) for model, image in rows])

        with torch.no_grad():
            vectors_RPV = torch.stack([model(self._pool.images) for model in models])
        return rebuilt(
            f"{self._prototypes_name(form, stack.state.round)}, by who has the model",
            Wanted.of(np.concatenate(means), asked, form.deviation),
            asked,
            to_vectors,
            self._pool.with_vectors(vectors_RPV),
            self._pool,
            self.dataset,
            self._torch_rng(),
        )

    def _map_of_model(self, stack: TrainedStack, client: int) -> Callable[[Tensor], Tensor]:
        """Return the map from images to pooled features that a client's model of the run is."""
        engine, params = stack.of_client(client)
        own = {name: p[:1].cpu() for name, p in params.items()}
        dataset = stack.loop.dataset

        def to_vectors(images: Tensor) -> Tensor:
            x_1NCHW = normalised(images, dataset.mean, dataset.std)[None]
            c_1ND, _ = engine.program.model.forward(LAYOUTS["cpu"], own, x_1NCHW, None)
            return self.experiment.pool(c_1ND[0])

        return to_vectors


def _row(upload: str, attacker: str, roc: Roc, most: float = 1.0) -> MembershipRow:
    return MembershipRow(
        upload=upload,
        attacker=attacker,
        members=roc.members,
        others=roc.others,
        auc=roc.auc.value,
        auc_low=roc.auc.low,
        auc_high=roc.auc.high,
        hits=roc.hits.value,
        hits_low=roc.hits.low,
        hits_high=roc.hits.high,
        most=most,
    )
