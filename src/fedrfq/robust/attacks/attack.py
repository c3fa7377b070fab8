"""The interface of an attack: what malicious clients do to their data and to what they send.

Attackers are as strong as the setting allows: they collude, see the honest uploads of the round
before they send (rushing), and know the global prototypes, the detector, its state and the
aggregation rule. Servers are deterministic, so attackers can compute what would come of anything
they might send. They may remember what they like from round to round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.files.options import check_ranges, option
from fedrfq.prototypes.fixed_point import LIMIT, Bools, Globals, Ints, Uploads
from fedrfq.robust.detectors.detector import Detector
from fedrfq.robust.state import State

Floats = NDArray[np.float64]
MAX_STRENGTH = 1_000_000
STRENGTHS = f"0 to {MAX_STRENGTH:,}"


@dataclass(frozen=True)
class Foreseen:
    """What the servers will decide if certain uploads are sent and all of them arrive."""

    # For each row of those uploads and each class: 0 to FULL, and 0 for classes not sent.
    weight_KJ: Ints
    kept_K: Bools  # who has any weight left
    score_K: Ints  # the higher the worse, in the detector's unit; 0 where an upload is refused
    globals_: Globals


@dataclass(frozen=True)
class Scene:
    """Everything that the attackers know when they send."""

    uploads: Uploads  # what everyone, attackers included, would send honestly
    malicious_K: Bools  # which rows of the uploads are the attackers'
    globals_: Globals  # as certified in the round before
    detector: Detector
    state: State  # of the detector
    rule: str  # the aggregation rule
    round: int
    classes: int  # so many of the first rows of an upload are classes
    foresee: Callable[[Uploads], Foreseen]

    @property
    def honest(self) -> Uploads:
        """Return the uploads of the clients that are not malicious."""
        return self.uploads.only(~self.malicious_K)

    @property
    def theirs(self) -> Uploads:
        """Return what the attackers would send if they were honest; A counts their rows."""
        return self.uploads.only(self.malicious_K)

    def all_kept(self, sent: Uploads) -> bool:
        """Return whether no attacker will be dropped if these uploads are sent."""
        return bool(self.foresee(sent).kept_K[self.malicious_K].all())


@dataclass(frozen=True)
class Attack:
    """An attack that does nothing: a subclass overrides `poison`, `forge` or `corrupt`.

    `forge` is for attackers who remember nothing, `corrupt` for those who do. What `strength` means
    differs from attack to attack.
    """

    clients: int = option(0, "Number of malicious clients, drawn by the run's seed", "0 to clients")
    strength: float = option(1.0, "How strong the attack is", STRENGTHS)
    start_round: int = option(1, "First round in which they attack", "1 or more")

    harms: ClassVar[bool] = True  # whether its clients are to be found
    on_uploads: ClassVar[bool] = False  # whether it needs prototypes to be exchanged

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.on_uploads = cls.forge is not Attack.forge or cls.corrupt is not Attack.corrupt

    def __post_init__(self) -> None:
        check_ranges("attack", self)

    def poison(self, labels: Ints, classes: int, rng: Generator) -> Ints:
        """Return the labels that a malicious client trains with instead of its own."""
        return labels

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        """Return the uploads as they are sent: only rows of malicious clients may be changed."""
        return scene.uploads

    def corrupt(self, scene: Scene, state: State, rng: Generator) -> tuple[Uploads, State]:
        """Return the uploads as they are sent, and what the attackers remember of this round.

        `state` is what they remembered of the last one, at first nothing: {}. It is saved with the
        run, so it is made of integers.
        """
        return self.forge(scene, rng), state


def replaced(scene: Scene, values_AJV: NDArray[np.floating[Any]] | Ints) -> Uploads:
    """Return the uploads with the attackers' values replaced, in the classes that they hold.

    The new values are the nearest that a message can carry.
    """
    theirs = scene.theirs
    # Cut as floats: what is beyond an integer's range would wrap around.
    whole_AJV = np.clip(np.rint(values_AJV), -LIMIT, LIMIT).astype(np.int64)
    values_KJV = scene.uploads.values_KJV.copy()
    values_KJV[scene.malicious_K] = np.where(
        theirs.held_KJ[..., None], theirs.precision.rounded(whole_AJV), theirs.values_KJV
    )
    return replace(scene.uploads, values_KJV=values_KJV)


def honest_moments(scene: Scene) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each class's values over its honest holders.

    Each holder counts once. Where a class has no honest holder, an attacker takes its own values
    for the mean, and 0 for the deviation.
    """
    honest = scene.honest
    held_KJV = honest.held_KJ[..., None]
    holders_JV = held_KJV.sum(0)
    mean_JV = honest.values_KJV.sum(0, where=held_KJV) / np.maximum(holders_JV, 1)
    squares_JV = np.square(honest.values_KJV - mean_JV).sum(0, where=held_KJV)
    std_JV: Floats = np.sqrt(squares_JV / np.maximum(holders_JV, 1))
    return np.where(holders_JV > 0, mean_JV, scene.theirs.values_KJV), std_JV


def squared_distances(rows_HV: Floats) -> Floats:
    """Return the squared distances between all pairs of rows."""
    gram_HH = rows_HV @ rows_HV.T
    squares_H = gram_HH.diagonal()
    distances_HH: Floats = squares_H[:, None] + squares_H - 2 * gram_HH
    return distances_HH
