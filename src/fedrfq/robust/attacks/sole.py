"""Sole holder: an attacker claims a class that nobody else holds, and puts it on another's centre.

Ours. Nobody can compare what a class's only holder sends, so it is believed unless
`detector.lone = "hold"`. The false class then lies on the class `victim` (by default the one with
the most honest holders): honest samples of that class are taken for the false one, and detectors
that ask whether an upload is on the way to another class may drop its honest holders.

Each attacker, by its number, takes one of the classes that no honest client sent in the round, the
lowest first, and sends the victim's centre (as in `adaptive`) for it, with as many samples as it
has of its largest class. No other attacker sends that class, so that its holder is the only one.
All other classes are sent honestly. `strength` has no meaning here.

Where every class has an honest holder, or nobody has sent the victim class yet, the attackers are
honest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene
from fedrfq.robust.attacks.class_centres import (
    THEIR_CHOICE,
    centres,
    claimed,
    victim_class,
)


@dataclass(frozen=True)
class Sole(Attack):
    """Puts classes that nobody else holds on the centre of another."""

    strength: float = option(1.0, "Has no effect on this attack", STRENGTHS)
    victim: int = option(
        THEIR_CHOICE,
        "Class on whose centre the false ones lie; -1: the one with the most honest holders",
        "-1 or more",
    )

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        victim = victim_class(scene, self.victim)
        centre_AJV, known_J = centres(scene)
        free = np.flatnonzero(~scene.honest.held_KJ[:, : scene.classes].any(0))
        free = free[free != victim][: len(centre_AJV)]
        if not len(free) or not known_J[victim]:
            return scene.uploads
        by_number = np.argsort(np.array(scene.theirs.clients))[: len(free)]
        claim_AJ = np.zeros_like(scene.theirs.held_KJ)
        claim_AJ[by_number, free] = True
        on_victim_AJV = np.broadcast_to(centre_AJV[:, [victim]], centre_AJV.shape)
        sent = claimed(scene, claim_AJ, on_victim_AJV)
        # Nobody but the one who claims it sends such a class.
        kept_KJ = np.ones_like(sent.held_KJ)
        kept_KJ[:, free] = False
        kept_KJ[scene.malicious_K] |= claim_AJ
        return replace(
            sent,
            counts_KJ=np.where(kept_KJ, sent.counts_KJ, 0),
            values_KJV=np.where(kept_KJ[..., None], sent.values_KJV, 0),
        )
