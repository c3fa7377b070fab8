"""What one client on a network promises its samples, and what it has spent of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fedrfq.errors import UserError, did_you_mean
from fedrfq.experiment import Experiment
from fedrfq.federation.public_task import PublicTask
from fedrfq.files.atomic import write_durably
from fedrfq.files.regular import read_text
from fedrfq.learning.public.noisy_exchange import NoisyExchange, NoisyTask, Samples
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.logs import log_event
from fedrfq.privacy.accountant import NoisySteps, check_installed
from fedrfq.privacy.claim import PrivacyClaim, check_budget, claim, loose_delta
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUploads
from fedrfq.privacy.trained_rounds import TrainedRounds
from fedrfq.prototypes.fixed_point import Bools, Uploads

# The classes that a client uploads since its first start, one name a line. They stay as they are:
# leaving one out because its samples are gone would tell that they are.
DECLARED = "classes.txt"
_MAX_BYTES = 1 << 22
# The only client of a folder, whatever its number is in this run.
_ME = 0


def no_steps(_: int) -> None:
    """Return nothing: the client trains without noise."""


@dataclass(frozen=True)
class ClientPrivacy:
    """The settings, the classes that the client declared, and all that it ever drew.

    What it drew in earlier runs of the federation counts as well.
    """

    task: PublicTask
    declared_J: Bools
    drawn: DrawnUploads
    run: str
    uncovered: str = ""
    # The rounds that it began to train by DP-SGD, and the steps of so many.
    trained: TrainedRounds = field(default_factory=TrainedRounds)
    steps_of: Callable[[int], NoisySteps | None] = no_steps
    _claims: dict[tuple[int, int], PrivacyClaim] = field(
        default_factory=dict, repr=False, compare=False
    )

    @staticmethod
    def of(
        experiment: Experiment,
        task: PublicTask,
        local: LocalDataset,
        home: Path,
        run: str,
        names: Sequence[str] = (),
        earlier: str = "",
    ) -> ClientPrivacy:
        """Return the privacy of the client whose folder is `home`; `names` are its classes.

        `earlier` is why there is no ε for what it sent in earlier runs of the federation; or "".
        """
        uncovered = earlier or experiment.uncovered()
        if not uncovered:
            check_installed()
            check_budget(experiment.privacy)
            _warn_of_delta(experiment.privacy.delta, len(local.partition.train[0]))
        elif experiment.privacy.budget:
            raise UserError(f"privacy.budget cannot be kept, since there is no ε: {uncovered}")
        kept = home / FOLDER
        return ClientPrivacy(
            task,
            _declared(experiment, local, kept, names),
            DrawnUploads(kept),
            run,
            uncovered,
            TrainedRounds(kept),
            experiment.noisy_steps,
        )

    def begin_training(self) -> None:
        """Write down that the client trains for a round with noise, before it does."""
        self.trained.begin([_ME])
        # Here, in the thread that trains: a status page asks in the one that talks to servers.
        self.claim()

    def upload(self, samples: Samples, task: NoisyTask, number: int) -> Uploads:
        """Return the client's upload of a round; it has no class once the budget is spent.

        It is of the samples' vectors on the public map, or of the model's features.
        """
        noisy = NoisyExchange(samples, task, [self.declared_J], self.drawn, self.run)
        sent = noisy.uploads([_ME], [_ME], number)
        made = self.claim()
        if not sent.held_KJ.any():
            log_event("the privacy budget is spent: no class is uploaded", "warning", round=number)
        log_event("privacy", round=number, claim=str(made), uploads=made.uploads)
        return sent

    def claim(self) -> PrivacyClaim:
        """Return what may be claimed of all uploads so far, and of training with noise."""
        assert self.task.privacy is not None
        drawn = self.drawn.of(_ME)
        rounds = self.trained.of(_ME)
        # Composing steps takes a while, and a status page asks again and again.
        spent = (len(drawn), rounds)
        if spent not in self._claims:
            steps = self.steps_of(rounds)
            self._claims[spent] = claim(self.task.privacy, drawn, self.uncovered, steps)
        return self._claims[spent]


def _warn_of_delta(delta: float, samples: int) -> None:
    if text := loose_delta(delta, samples):
        log_event(text, "warning")


def _declared(
    experiment: Experiment, local: LocalDataset, folder: Path, names: Sequence[str]
) -> Bools:
    """Return the classes that are uploaded.

    All of them, if the federation says so, or the client declared none and has samples of its own:
    what it happens to have must not show. A share of a known dataset is known to everybody.
    """
    classes = local.dataset.classes
    if experiment.privacy.classes == "all":
        if names:
            raise UserError(
                "--classes: the federation agreed that every client uploads all classes, with"
                " samples or without (privacy.classes = 'all'); leave it out"
            )
        _remembered(folder, names, list(classes))
        return np.ones(len(classes), np.bool_)
    # Before they are remembered: a misspelt name could not be put right afterwards.
    _check_known(names, classes, "--classes")
    declared = _remembered(folder, names, _undeclared(local))
    _check_known(declared, classes, str(folder / DECLARED))
    return np.isin(classes, declared)


def _check_known(names: Sequence[str], classes: Sequence[str], where: str) -> None:
    for name in names:
        if name not in classes:
            raise UserError(
                f"{where} names {name!r}, which is none of the federation's"
                f"{did_you_mean(name, classes)}: they are {', '.join(classes)}"
            )


def _undeclared(local: LocalDataset) -> list[str]:
    """Return the classes that are uploaded by a client that declares none."""
    classes = local.dataset.classes
    if local.common is None:
        return list(classes)
    return [classes[label] for label in local.partition.classes[0]]


def _remembered(folder: Path, names: Sequence[str], undeclared: list[str]) -> list[str]:
    """Return the classes of the first start, which may be this one; they cannot be changed."""
    path = folder / DECLARED
    if not path.exists():
        first = list(names) or undeclared
        write_durably(path, "".join(f"{name}\n" for name in first).encode())
        return first
    try:
        before = read_text(path, _MAX_BYTES).splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it") from error
    if names and set(names) != set(before):
        raise UserError(
            f"--classes names {', '.join(names)}, but {path} says that since its first start this"
            f" client uploads {', '.join(before)}: a change would tell others about its samples;"
            " leave it out"
        )
    return before
