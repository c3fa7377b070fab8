"""The classes as attackers see them: their centres, their neighbours, and one to aim at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import LIMIT, Bools, Ints, Uploads
from fedrfq.robust.attacks.attack import Floats, Scene, honest_moments, squared_distances

# The value of an option that leaves the choice of a class to the attackers.
THEIR_CHOICE = -1


def centres(scene: Scene) -> tuple[Floats, Bools]:
    """Return each class's centre as every attacker sees it, and which are known to all of them.

    The others are just the attacker's own prototype.
    """
    mean_AJV, _ = honest_moments(scene)
    held_J = scene.honest.held_KJ.any(0)
    present_J = scene.globals_.present_J
    centre_AJV: Floats = np.where(
        (present_J & ~held_J)[:, None], scene.globals_.values_JV, mean_AJV
    )
    return centre_AJV, held_J | present_J


def nearest(centre_JV: Floats, known_J: Bools) -> tuple[Ints, Bools]:
    """Return the nearest other known class of each class, and which classes have one."""
    other_JJ = ~np.eye(len(centre_JV), dtype=np.bool_)
    distance_JJ = np.where(known_J & other_JJ, squared_distances(centre_JV), np.inf)
    return distance_JJ.argmin(1), np.isfinite(distance_JJ.min(1))


def to_nearest(centre_JV: Floats, known_J: Bools) -> Floats:
    """Return the way from each class's centre to the nearest other known one; 0 without any."""
    nearest_J, reachable_J = nearest(centre_JV, known_J)
    return np.where(reachable_J[:, None], centre_JV[nearest_J] - centre_JV, 0.0)


def victim_class(scene: Scene, wanted: int) -> int:
    """Return the class to aim at: the one wanted, or that of the most honest holders.

    Of several with as many holders it is the lowest.
    """
    check_class(scene, "attack.victim", wanted)
    if wanted != THEIR_CHOICE:
        return wanted
    return int(scene.honest.held_KJ[:, : scene.classes].sum(0).argmax())


def check_class(scene: Scene, key: str, wanted: int) -> None:
    """Refuse a class that the data does not have."""
    if wanted >= scene.classes:
        raise UserError(
            f"{key} is {wanted}, but the data has the classes 0 to {scene.classes - 1}: "
            f"name one of these, or {THEIR_CHOICE} for the attackers' choice"
        )


def claimed(scene: Scene, claim_AJ: Bools, values_AJV: Floats | Ints) -> Uploads:
    """Return the uploads with attackers sending these values for the classes that they claim.

    Each claims as many samples of these as it has of its largest class, and at least one. The rest
    of what it sends is honest. The values are the nearest that a message can carry.
    """
    theirs = scene.theirs
    whole_AJV = np.clip(np.rint(values_AJV), -LIMIT, LIMIT).astype(np.int64)
    # An attacker without samples claims one: 0 would mean that it does not hold the class.
    most_A1 = np.maximum(theirs.counts_KJ.max(1, keepdims=True, initial=0), 1)
    counts_KJ = scene.uploads.counts_KJ.copy()
    counts_KJ[scene.malicious_K] = np.where(claim_AJ, most_A1, theirs.counts_KJ)
    values_KJV = scene.uploads.values_KJV.copy()
    values_KJV[scene.malicious_K] = np.where(
        claim_AJ[..., None], theirs.precision.rounded(whole_AJV), theirs.values_KJV
    )
    return replace(scene.uploads, counts_KJ=counts_KJ, values_KJV=values_KJV)
