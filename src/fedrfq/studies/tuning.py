"""Tuning: λ is chosen for every method in every setting, on samples held back from training.

tune = [0.1, 0.3, 1, 4]         the λ to try beside each method's default; [] to tune nothing

The best λ of one method is not that of another, so methods that are compared with one λ for all are
compared by how well that λ suits them. Each λ is tried with the first seeds of the comparison, on
clients that hold back some of their training samples and are tested on these. Test samples take no
part. A λ that the file sets itself is left as it is.

The best λ is that of the highest mean of two accuracies: by the own head, and by the nearest
prototype where a method has one. The own head alone would choose a λ so small that prototypes no
longer tell classes apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.methods.method import MAX_WEIGHT
from fedrfq.studies.axes import Labels, Place
from fedrfq.studies.grid import EndedRun
from fedrfq.studies.intervals import mean
from fedrfq.studies.measures import lam_of
from fedrfq.studies.sheets import NOTHING, Sheet, number

LAMS = (0.1, 0.3, 1.0, 4.0)
MAX_SEEDS = 2  # each λ is tried with at most this many seeds
HELD_BACK = 0.2  # the share of the training samples, where the experiment itself says none
_DIGITS = 6  # accuracies that agree to so many digits are equal: the rest is rounding


@dataclass(frozen=True)
class TriedLam:
    """A λ and the clients' accuracies (%) with it; None if a run diverged, or has none such."""

    lam: float
    own: float | None
    prototype: float | None = None

    @staticmethod
    def of(lam: float, runs: Sequence[EndedRun]) -> TriedLam:
        """Return the mean accuracies after the last round of the runs with this λ."""
        if any(run.diverged is not None for run in runs):
            return TriedLam(lam, None)
        last = [run.records()[-1] for run in runs]
        return TriedLam(
            lam,
            own=mean([record.accuracy_mean for record in last]),
            prototype=mean([record.prototype_accuracy_mean for record in last]),
        )

    @property
    def accuracy(self) -> float | None:
        """The mean of the accuracies that there are, by which λ is chosen."""
        found = mean([self.own, self.prototype])
        if found is None:
            return None
        return round(found, _DIGITS)


@dataclass(frozen=True)
class ChosenLam:
    """The λ of a method in a setting, and all that were tried on the held-back samples."""

    setting: str
    method: str
    default: float
    lam: float
    held_back: float  # the share of the training samples
    tried: tuple[TriedLam, ...]


@dataclass(frozen=True)
class Tuning:
    """The runs from which λ is chosen: each λ for each of the places to tune."""

    seeds: tuple[int, ...]
    lams: tuple[float, ...]
    tuned: Mapping[Place, Experiment]  # with each method's default λ

    @staticmethod
    def of(
        seeds: Sequence[int], lams: Sequence[float], experiments: Mapping[Place, Experiment]
    ) -> Tuning:
        """Return the tuning of those experiments whose method has a λ."""
        first = tuple(seeds[:MAX_SEEDS])
        tuned = {
            place: experiment
            for place, experiment in experiments.items()
            if lams and place[1] in first and lam_of(experiment) is not None
        }
        for experiment in tuned.values():
            _check_without_epsilon(experiment)
        return Tuning(first, tuple(lams), tuned)

    @property
    def experiments(self) -> list[Experiment]:
        """The runs, which lie beside those of the comparison in a folder of their own."""
        return [
            _trial(experiment, lam)
            for experiment in self.tuned.values()
            for lam in self._tried(experiment)
        ]

    def _tried(self, experiment: Experiment) -> list[float]:
        """Return the λ to try: what a method's authors chose is one of them, on its own scale."""
        return sorted({*self.lams, _default(experiment)})

    def choose(self, ended: Mapping[str, EndedRun]) -> tuple[ChosenLam, ...]:
        """Choose the best λ for each setting and method; runs are given by experiment hash."""
        cells = dict.fromkeys(labels for labels, _ in self.tuned)
        return tuple(self._choice(labels, ended) for labels in cells)

    def _choice(self, labels: Labels, ended: Mapping[str, EndedRun]) -> ChosenLam:
        # A rule of the file may give a combination fewer seeds than others have.
        experiments = [one for (place, _), one in self.tuned.items() if place == labels]
        default = _default(experiments[0])
        tried = [
            TriedLam.of(lam, [ended[_trial(one, lam).hash()] for one in experiments])
            for lam in self._tried(experiments[0])
        ]
        return ChosenLam(
            setting=", ".join(labels[:-1]),
            method=labels[-1],
            default=default,
            lam=best(tried, default),
            held_back=_trial(experiments[0], default).validation,
            tried=tuple(tried),
        )


def _check_without_epsilon(experiment: Experiment) -> None:
    """Refuse to tune where an ε is promised: accuracies on clients' samples tell about them."""
    if experiment.has_noise and not experiment.uncovered():
        raise UserError(
            f"tune: λ of '{experiment.name}' would be chosen by accuracies on clients' own samples,"
            " which its ε does not cover: give --no-tune, or tune = [] in the study"
        )


def with_chosen(
    experiments: Mapping[Place, Experiment], chosen: Sequence[ChosenLam]
) -> dict[Place, Experiment]:
    """Return the experiments with the λ chosen for their setting and method."""
    lams = {(choice.setting, choice.method): choice.lam for choice in chosen}
    changed = {}
    for (labels, seed), experiment in experiments.items():
        cell = (", ".join(labels[:-1]), labels[-1])
        changed[labels, seed] = experiment
        if cell in lams:
            changed[labels, seed] = with_lam(experiment, lams[cell])
    return changed


def best(tried: Sequence[TriedLam], default: float) -> float:
    """Return the λ with the highest accuracy; the default in a tie, or where all diverged."""
    accuracies = [one.accuracy for one in tried if one.accuracy is not None]
    winners = [one.lam for one in tried if accuracies and one.accuracy == max(accuracies)]
    if default in winners or not winners:
        return default
    return winners[0]


def _default(experiment: Experiment) -> float:
    default = lam_of(experiment)
    assert default is not None  # `Tuning.of` takes only methods that have a λ
    return default


def with_lam(experiment: Experiment, lam: float) -> Experiment:
    """Return the same experiment with another λ; its method must have one."""
    changes: dict[str, Any] = {"lam": lam}
    return replace(experiment, method=replace(experiment.method, **changes))


def _trial(experiment: Experiment, lam: float) -> Experiment:
    """Return the run that tries a λ on held-back samples."""
    return replace(
        with_lam(experiment, lam),
        name=f"{experiment.name}-tuning",
        validation=experiment.validation or HELD_BACK,
    )


def read_lams(given: Any) -> tuple[float, ...]:
    """Check the list under `tune` of a comparison file; without one, the usual λ are tried."""
    if given is None:
        return LAMS
    # type() and not isinstance(): True is an int too, and no λ.
    if (
        not isinstance(given, list)
        or any(type(lam) not in (int, float) for lam in given)
        or any(not 0 <= lam <= MAX_WEIGHT for lam in given)
        or len(set(given)) < len(given)
    ):
        raise UserError(
            f"tune must be a list of different λ from 0 to {MAX_WEIGHT:g}, such as "
            f"{list(LAMS)}, or [] to tune nothing, not {given!r}"
        )
    return tuple(map(float, given))


def tuning_sheet(chosen: Sequence[ChosenLam], tuning_seeds: Sequence[int]) -> Sheet:
    """Return the accuracies on held-back samples from which λ was chosen."""
    lams = sorted({one.lam for choice in chosen for one in choice.tried})
    several = len({choice.setting for choice in chosen}) > 1
    header = [*["setting"] * several, "method", "chosen λ", *(f"λ = {lam:g}, %" for lam in lams)]
    rows = []
    for choice in chosen:
        accuracies = {one.lam: _both(one) for one in choice.tried}
        texts = [accuracies.get(lam, NOTHING) for lam in lams]
        rows.append((*[choice.setting] * several, choice.method, f"{choice.lam:g}", *texts))
    shares = dict.fromkeys(f"{100 * choice.held_back:g} %" for choice in chosen)
    seeds = ", ".join(map(str, tuning_seeds))
    note = (
        "Accuracies by own head / by nearest prototype, where a method has one, on "
        f"{' or '.join(shares)} of the clients' training samples, which are held back, with seeds "
        f"{seeds}; {NOTHING} where a run diverged or a λ was not tried. The λ with the best mean "
        "of both is used above; a tie goes to the method's default. Test samples take no part."
    )
    return Sheet("λ chosen on held-back samples", tuple(header), tuple(rows), note, 1 + several)


def _both(tried: TriedLam) -> str:
    """Return the accuracies with a λ in words."""
    texts = [number(tried.own, ".2f")]
    if tried.prototype is not None:
        texts.append(number(tried.prototype, ".2f"))
    return " / ".join(texts)
