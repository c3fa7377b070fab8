"""An experiment as frozen dataclasses: everything that decides a run.

A value of `Experiment` is checked when it is made, so that whoever holds one can run it.
`fedrfq.experiment.reading` makes it from a TOML file.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, fields, replace

from fedrfq import plugins
from fedrfq.committee import Committee, Direct
from fedrfq.data import CONTRACT, Dataset, ImageForm, load
from fedrfq.data.image_form import AS_FOUND
from fedrfq.data.partition import Classes, PartitionKind
from fedrfq.engine.program import TrainingOptions
from fedrfq.errors import UserError
from fedrfq.experiment.kinds import KINDS, PLAIN_SECTIONS, SECTIONS, name_of
from fedrfq.files import toml
from fedrfq.files.options import check_ranges, one_of, option
from fedrfq.files.toml import Table
from fedrfq.methods import METHODS, Method
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.models import Model
from fedrfq.models.cnn import CNN
from fedrfq.models.public_maps import NoMap, PublicMap
from fedrfq.privacy.accountant import NoisySteps, check_installed
from fedrfq.privacy.claim import check_budget, planned
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import MAX_VALUES
from fedrfq.prototypes.pooling import Pool
from fedrfq.robust.aggregation import check_exact
from fedrfq.robust.attacks import ATTACKS, Attack
from fedrfq.robust.attacks.none import NoAttack
from fedrfq.robust.detectors import Detector
from fedrfq.robust.detectors.none import NoDetection

STARTS = ("own", "same")
# The tracker that writes into the run's directory alone. Others may send figures elsewhere.
_TRACKER_HERE = "tensorboard"
# A run's name is that of its directory: one plain path component, on any file system.
_PLAIN_NAME = re.compile(r"\w[\w .-]*")
_MAX_NAME_BYTES = 200


@dataclass(frozen=True)
class Data:
    """The dataset, and what is done to its training images."""

    name: str = option(
        "mnist5k",
        "Dataset: a name that `fedrfq data list` shows, or the path of your own",
    )
    augment: bool = option(False, "Whether training images are cropped and flipped at random")
    shape: str = option(
        "",
        "What your own images must be, as CHANNELSxHEIGHTxWIDTH; empty: as the first one is",
        "empty, or such as 1x28x28",
    )
    window: str = option(
        "",
        "Values that become black and white, as BLACK:WHITE, for your own images of over 8 bits",
        "empty, or such as 0:4095",
    )
    resize: bool = option(False, "Whether your own images of another size are resized to the shape")
    recolour: bool = option(
        False, "Whether your own grey images become colour, or the reverse, to fit the shape"
    )

    def __post_init__(self) -> None:
        self.form()

    def form(self) -> ImageForm:
        """Return how the user's own images are made alike."""
        return ImageForm.of(self.shape, self.window, self.resize, self.recolour)

    def load(self) -> Dataset:
        """Return the dataset, from the cache or from the user's path."""
        return load(self.name, self.form())

    def same_samples(self, other: Data) -> bool:
        """Return whether both name the same samples, read in the same way."""
        return replace(self, augment=other.augment) == other

    def table(self) -> Table:
        """Return the settings; those of the form only if there are any."""
        named = dict(vars(self))
        if self.form() == AS_FOUND:
            # Experiments from before there were forms keep their hashes.
            return {key: named[key] for key in ("name", "augment")}
        return named


@dataclass(frozen=True)
class Cohort:
    """Clients that hold one and the same model."""

    clients: int = option(help="Number of clients that hold this model", range="1 or more")
    model: Model = option(help="The model they hold: its name and the keys of [model]")


@dataclass(frozen=True)
class Experiment:
    """One run: sections with a `name` are one of several kinds, each with its own options."""

    name: str = option(
        "run",
        "Name of the run and of its directory; made from the data and the method if not set",
        f"letters, digits, spaces, '.', '_', '-'; at most {_MAX_NAME_BYTES} bytes",
    )
    seed: int = option(0, "Seed of everything random in the run", "0 or more")
    rounds: int = option(100, "Number of rounds", "1 or more")
    clients: int = option(20, "Number of clients", "1 or more")
    participation: float = option(
        1.0, "Share of the clients that train in a round, drawn at random", "above 0, at most 1"
    )
    init: str = option(
        "own",
        "Whether each client starts from its own random model or all from one",
        one_of(STARTS),
    )
    checkpoint: int = option(
        10, "Number of rounds between two snapshots, and two tests on all classes", "1 or more"
    )
    validation: float = option(
        0.0,
        "Share of each client's training samples held back and tested on instead of test samples",
        "0 to below 1",
    )
    track: str = option(
        "",
        "Trackers that the run's figures are also written to, one or several",
        "tensorboard, mlflow, wandb, trackio, or a plugin's",
    )
    data: Data = option(help="The dataset", factory=Data)
    partition: PartitionKind = option(
        help="How the samples are dealt to the clients", factory=Classes
    )
    model: Model = option(help="The model that clients train", factory=CNN)
    cohorts: tuple[Cohort, ...] = option(
        (), "Groups of clients with different models; without any, every client holds [model]"
    )
    pool: Pool = option(help="How prototypes are pooled before they are uploaded", factory=Pool)
    method: Method = option(help="The federated learning method", factory=FedRFQ)
    train: TrainingOptions = option(
        help="How clients train between exchanges", factory=TrainingOptions
    )
    attack: Attack = option(help="What malicious clients do", factory=NoAttack)
    detector: Detector = option(
        help="How servers find and drop malicious uploads", factory=NoDetection
    )
    committee: Committee = option(
        help="The servers that turn a round's uploads into the next global prototypes",
        factory=Direct,
    )
    public: PublicMap = option(
        help="The public feature map on which clients exchange statistics of their classes",
        factory=NoMap,
    )
    privacy: Privacy = option(
        help="The noise that hides single samples, or clients, on the public map", factory=Privacy
    )

    def __post_init__(self) -> None:
        check_ranges("", self)
        if not _PLAIN_NAME.fullmatch(self.name) or len(self.name.encode()) > _MAX_NAME_BYTES:
            raise UserError(
                f"name must be a plain folder name of at most {_MAX_NAME_BYTES} bytes "
                f"(letters, digits, spaces, '.', '_', '-'), not {self.name!r}"
            )
        self._check_method()
        check_exact(self.detector, self.method.rule(), getattr(self.committee, "servers", 1))
        self._check_attack()
        self._check_cohorts()
        self._check_prototypes()
        self._check_private_training()
        self._check_privacy()

    def _check_attack(self) -> None:
        """Refuse an attack without attackers, or by more clients than there are."""
        attack = self.attack
        if attack.clients > self.clients:
            raise UserError(
                f"attack.clients is {attack.clients}, but the experiment has only "
                f"{self.clients} clients: lower attack.clients or raise clients"
            )
        if attack.harms and not attack.clients:
            raise UserError(
                f"attack '{name_of(ATTACKS, attack)}' has no attackers: "
                "set attack.clients to their number"
            )

    def check_untracked(self, why: str) -> None:
        """Refuse trackers where none would be told anything."""
        if self.track:
            raise UserError(
                f"track = {self.track!r} is for `fedrfq run`, and {why}: remove track from the "
                "experiment"
            )

    def _check_method(self) -> None:
        """Refuse what needs prototypes, or servers that agree, where the method has none."""
        method = name_of(METHODS, self.method)
        if self.pool.name != "none" and not self.method.pools:
            raise UserError(
                f"method '{method}' does not pool prototypes: "
                'set pool.name = "none" or method.name = "fedrfq"'
            )
        if not self.method.trains_server and (
            type(self.method).server_step is not Method.server_step
        ):
            raise UserError(
                f"method '{method}' has a server_step: declare `trains_server = True`, so that "
                "only one trusted server takes it"
            )
        if self.method.trains_server and not isinstance(self.committee, Direct):
            raise UserError(
                f"method '{method}' trains one trusted server in floating point on single "
                "uploads, which a committee cannot agree on to the bit: "
                'set committee.name = "direct"'
            )
        if self.method.exchanges and self.public.used and self.public.every == 1:
            raise UserError(
                "public.every = 1 exchanges statistics in every round and leaves method "
                f"'{method}' none for its prototypes: set public.every to 0 for one exchange, "
                "or to 2 or more"
            )
        self._check_leaving()
        if self.method.exchanges or self.public.used:
            return
        if self.attack.on_uploads:
            raise UserError(
                f"attack '{name_of(ATTACKS, self.attack)}' changes uploaded prototypes, "
                f"but method '{method}' uploads none: choose another attack or method"
            )
        if not isinstance(self.detector, NoDetection):
            raise UserError(
                f"detectors judge uploaded prototypes, but method '{method}' uploads none: "
                'set detector.name = "none"'
            )
        if not isinstance(self.committee, Direct):
            raise UserError(
                f"a committee agrees on prototypes, but method '{method}' uploads none: "
                'set committee.name = "direct", or public.name = "random"'
            )

    def _check_leaving(self) -> None:
        """Refuse leavers that there are not, and rounds in which no client is left."""
        leaving = self.public.leaving()
        if leaving and max(leaving) >= self.clients:
            raise UserError(
                f"public.leave names client {max(leaving)}: there are 0 to {self.clients - 1}"
            )
        if len(leaving) == self.clients:
            raise UserError("public.leave names all clients: leave one that stays")

    def _check_cohorts(self) -> None:
        """Refuse cohorts of the wrong size, and different models where models are averaged."""
        if self.cohorts and sum(cohort.clients for cohort in self.cohorts) != self.clients:
            sizes = " + ".join(str(cohort.clients) for cohort in self.cohorts)
            raise UserError(
                f"the cohorts have {sizes} clients, but the experiment has {self.clients}: "
                "make them equal"
            )
        if not self.method.centres:
            return
        method = name_of(METHODS, self.method)
        if len(self.cohorts) > 1:
            raise UserError(
                f"method '{method}' averages models, so all clients must hold the same model: "
                "remove the cohorts"
            )
        if self.method.centres > self.clients:
            raise UserError(
                f"method.clusters is {self.method.centres}, but the experiment has only "
                f"{self.clients} clients: lower method.clusters"
            )
        if self.train.alone:
            raise UserError(
                f"method '{method}' averages models, which are trained in one stack: "
                "set train.alone = false"
            )

    def _check_prototypes(self) -> None:
        """Refuse prototypes that cannot be pooled, compared or uploaded."""
        lengths = {cohort.model.features() for cohort in self.models()}
        if len(lengths) > 1:
            raise UserError(
                f"the cohorts' prototypes have {sorted(lengths)} values: "
                "choose models whose prototypes have the same length"
            )
        self.pool.check(min(lengths))
        if self.prototype_size() > MAX_VALUES:
            raise UserError(
                f"a prototype has {self.prototype_size()} values, "
                f"more than the {MAX_VALUES} an upload can hold: choose a smaller model"
            )

    @property
    def has_noise(self) -> bool:
        """Whether noise hides samples: in statistics on the public map, or in training."""
        return self.privacy.used or self.train.private

    def noisy_uploads(self, rounds: int) -> int:
        """Return how many uploads with noise a client makes at most in so many rounds."""
        if not self.privacy.used:
            return 0
        if self.privacy.prototype_norm:
            return rounds
        return sum(self.public.due(number) for number in range(1, rounds + 1))

    def noisy_steps(self, rounds: int) -> NoisySteps | None:
        """Return the steps of so many rounds of a client; None if it trains without noise."""
        if not self.train.private:
            return None
        steps = rounds * self.train.steps(self.method.epochs(self.train.epochs))
        return NoisySteps(steps, self.train.dp_rate, self.train.dp_noise)

    def planned_privacy(self) -> str:
        """Say what all rounds will cost a client that adds noise."""
        uploads = self.noisy_uploads(self.rounds)
        training = self.noisy_steps(self.rounds)
        return planned(self.privacy, uploads, self.uncovered(), training)

    def check_privacy(self) -> None:
        """Raise UserError where ε cannot be computed, or the budget pays for no upload at all."""
        if self.has_noise and not self.uncovered():
            check_installed()
            check_budget(self.privacy)

    def _check_private_training(self) -> None:
        """Refuse DP-SGD where it would not protect what it says."""
        if not self.train.private:
            return
        if self.method.own_means:
            raise UserError(
                f"method '{name_of(METHODS, self.method)}' trains toward the means of the client's"
                " own samples, which have no noise: with train.dp_noise, choose another method"
            )
        if not self.method.is_mean_of_samples:
            raise UserError(
                "method.reduction = 'classes' weighs a sample by the others of its batch, and"
                " train.dp_noise takes each by itself: set method.reduction = 'samples'"
            )
        if self.privacy.unit != "sample":
            raise UserError("train.dp_noise protects single samples: set privacy.unit = 'sample'")
        if self.privacy.budget:
            raise UserError(
                "privacy.budget does not stop training with train.dp_noise: remove it, and choose"
                " rounds by what `fedrfq run --dry-run` says that they cost"
            )

    def _check_privacy(self) -> None:
        """Refuse noise without anything to add it to, or that others would misunderstand."""
        if not self.privacy.used:
            return
        if not self.public.used:
            raise UserError(
                "privacy.noise is added to statistics on a public map, whose vectors have a norm"
                " that one sample cannot exceed: set public.name, such as 'random'"
            )
        if self.public.moments != "none":
            raise UserError(
                "public.moments with privacy.noise: one sample changes second moments by far more"
                " than means, and they are sent without noise; set public.moments = 'none'"
            )
        if not self.detector.knows_noise:
            raise UserError(
                f"detector '{name_of(KINDS['detector'], self.detector)}' does not know how much"
                " noise honest clients add, and would drop them for it: use detector.name ="
                " 'sampling', 'adaptive' or 'none'"
            )
        if self.privacy.budget and self.uncovered():
            raise UserError(
                f"privacy.budget cannot be kept, since there is no ε: {self.uncovered()}"
            )
        self._check_private_prototypes()
        # Both raise where the noise does not suit the grid.
        self.privacy.scale(self.public.limit(), self.public.values())
        self.privacy.prototype_scale(self.prototype_size())

    def _check_private_prototypes(self) -> None:
        if not self.privacy.prototype_norm:
            return
        if not self.method.exchanges:
            raise UserError(
                f"method '{name_of(METHODS, self.method)}' uploads no prototypes: remove"
                " privacy.prototype_norm"
            )
        if not self.train.private:
            raise UserError(
                "privacy.prototype_norm adds noise to means of features, and the features"
                " themselves were trained on the samples without any: set train.dp_noise"
            )

    def uncovered(self) -> str:
        """Return what leaves clients besides noisy statistics, and so why there is no ε; or ""."""
        return self._uncovered_settings() or self._uncovered_uploads() or self._uncovered_classes()

    def _uncovered_settings(self) -> str:
        if not self.has_noise:
            return ""
        if self.validation:
            return (
                "which samples are held back by `validation` depends on how many there are, so one"
                " more changes what others do: set validation = 0"
            )
        elsewhere = [name for name in tracker_names(self.track) if name != _TRACKER_HERE]
        if elsewhere:
            return (
                f"the tracker '{elsewhere[0]}' may send accuracies and losses to other machines:"
                f" set track = '{_TRACKER_HERE}', or none"
            )
        return ""

    def _uncovered_uploads(self) -> str:
        method = name_of(METHODS, self.method)
        if self.method.centres and not self.train.private:
            return f"method '{method}' uploads models that were trained on the samples"
        if self.public.used and not self.privacy.used:
            return "statistics on the public map have no noise: set privacy.noise"
        if self.method.exchanges and self.train.private and not self.privacy.prototype_norm:
            return (
                f"method '{method}' uploads means of its samples' features without noise;"
                " train.dp_noise covers the model alone: set privacy.prototype_norm"
            )
        if self.method.exchanges and not self.train.private:
            return (
                f"method '{method}' uploads prototypes of features that were trained on the samples"
            )
        return ""

    def _uncovered_classes(self) -> str:
        """Return why the classes that clients upload follow from their samples; "" if not."""
        if not self.privacy.used or self.privacy.classes == "all":
            return ""
        # Only this kind says who has which classes before it deals any sample. Clients that bring
        # samples of their own declare classes themselves.
        if isinstance(self.partition, Classes) or self.data.name == CONTRACT:
            return ""
        kind = name_of(KINDS["partition"], self.partition)
        return (
            f"with partition '{kind}' the classes that a client uploads are those that it has"
            " samples of; set privacy.classes = 'all'"
        )

    def at_checkpoint(self, number: int) -> bool:
        """Return whether a checkpoint, and the test on all classes, are made after this round."""
        return number % self.checkpoint == 0 or number == self.rounds

    def models(self) -> tuple[Cohort, ...]:
        """Return what one program computes: a cohort each, or, if they train alone, each client."""
        if not self.train.alone:
            return self._cohorts()
        return tuple(
            Cohort(1, cohort.model) for cohort in self._cohorts() for _ in range(cohort.clients)
        )

    def place(self, client: int) -> tuple[int, Model]:
        """Return the first client that holds the same model as this one, and that model."""
        first = 0
        for cohort in self._cohorts():
            if first <= client < first + cohort.clients:
                return first, cohort.model
            first += cohort.clients
        raise UserError(
            f"there is no client {client}: the experiment has clients 0 to {self.clients - 1}"
        )

    def _cohorts(self) -> tuple[Cohort, ...]:
        """Return the cohorts, where there are none one of all clients."""
        return self.cohorts or (Cohort(self.clients, self.model),)

    def prototype_size(self) -> int:
        """Return V, the number of values of a pooled prototype."""
        return self.pool.size(self.models()[0].model.features())

    def table(self) -> Table:
        """Return the whole experiment as plain values; `from_table` reads it back."""
        table: Table = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in SECTIONS
        }
        if not self.track:
            del table["track"]
        for key in PLAIN_SECTIONS:
            table[key] = dict(vars(getattr(self, key)))
        table["data"] = self.data.table()
        if not self.train.alone:
            # Experiments from before there was the option keep their hashes, and runs their ids.
            del table["train"]["alone"]
        if not self.train.private:
            # … and those from before there was DP-SGD.
            for key in ("dp_noise", "dp_clip", "dp_rate"):
                del table["train"][key]
        for key, kinds in KINDS.items():
            value = getattr(self, key)
            table[key] = {"name": name_of(kinds, value), **vars(value)}
        for key in ("revocable", "leave", "centred", "mirrored"):
            # Experiments from before there were these options keep their hashes, too.
            if not table["public"].get(key):
                table["public"].pop(key, None)
        if not self.public.used:
            # And so do those from before there were public maps.
            del table["public"]
        if not self.has_noise:
            # … and those from before there was noise.
            del table["privacy"]
        elif not self.privacy.prototype_norm:
            # … or noise in prototypes.
            del table["privacy"]["prototype_norm"]
        if self.cohorts:
            table["cohorts"] = [_cohort_table(cohort) for cohort in self.cohorts]
        used = self._plugins(table, tracker_names(self.track))
        if used:
            # Last: experiments without plugins keep their hashes.
            table["plugins"] = used
        return table

    def _plugins(self, table: Table, more: list[str]) -> list[dict[str, str]]:
        """Return the plugins that the experiment uses, by its classes and by names in its options.

        A name may stand in any option, as that of an attack in `attack.then`; `more` are others.
        """
        sections = [getattr(self, key) for key in KINDS]
        models = [cohort.model for cohort in self.cohorts]
        names = [self.method.rule(), *more]
        for key in (*PLAIN_SECTIONS, *KINDS):
            names += [value for value in table.get(key, {}).values() if isinstance(value, str)]
        return plugins.rows_of([type(part) for part in (*sections, *models)], names)

    def hash(self) -> str:
        """Return the hash that a run's directory and its snapshots are known by.

        The committee is left out where it is one trusted server: snapshots from before there were
        committees still belong to their experiments.
        """
        table = self.table()
        # Who looks on changes nothing: neither the trackers' names, nor the plugins they are from.
        table.pop("track", None)
        table.pop("plugins", None)
        used = self._plugins(table, [])
        if used:
            table["plugins"] = used
        if isinstance(self.committee, Direct):
            del table["committee"]
        return hashlib.sha256(toml.dump(table).encode()).hexdigest()


def tracker_names(track: str) -> list[str]:
    """Return the names of trackers that `track` lists."""
    return [name.strip() for name in track.split(",") if name.strip()]


def _cohort_table(cohort: Cohort) -> Table:
    model = cohort.model
    return {"clients": cohort.clients, "name": name_of(KINDS["model"], model), **vars(model)}
