"""Mimicry: all attackers copy one honest client.

Karimireddy, He, Jaggi, "Byzantine-Robust Learning on Heterogeneous Datasets via Bucketing",
ICLR 2022.

All attackers send a copy of one honest client's upload: its classes, counts and values. Nothing in
a copy is false, so nothing can be detected, but that client counts many times and the others less,
and the attackers' own classes are missing. They copy the honest client with the most classes, of
several the one with the lowest number. `strength` has no meaning here.

Departures: the paper copies the client whose gradients vary most along a direction learnt in the
first rounds. Without honest clients the attackers are honest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from fedrfq.files.options import option
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.attacks.attack import STRENGTHS, Attack, Scene


@dataclass(frozen=True)
class Mimic(Attack):
    """Sends a copy of one honest client's upload."""

    strength: float = option(1.0, "Has no effect on this attack", STRENGTHS)

    def forge(self, scene: Scene, rng: Generator) -> Uploads:
        uploads = scene.uploads
        if scene.malicious_K.all():
            return uploads
        classes_K = uploads.held_KJ.sum(1)
        copied = min(
            np.flatnonzero(~scene.malicious_K),
            key=lambda row: (-classes_K[row], uploads.clients[row]),
        )
        counts_KJ = uploads.counts_KJ.copy()
        values_KJV = uploads.values_KJV.copy()
        counts_KJ[scene.malicious_K] = counts_KJ[copied]
        values_KJV[scene.malicious_K] = values_KJV[copied]
        return replace(uploads, counts_KJ=counts_KJ, values_KJV=values_KJV)
