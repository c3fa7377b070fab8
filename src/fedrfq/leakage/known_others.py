"""The strongest attacker: it knows all of a client's samples but one, and asks about that one.

On a public map it can compute what the upload would be with the target and without it. Without
noise it only has to look which of the two was sent. With Gaussian noise of the standard deviation σ
on a sum, and a target that moves the sum by a, nobody can do better than an AUC of Φ(a / (σ √2)):
the two possible uploads are two normal distributions whose centres are a apart (Dong, Roth and Su,
"Gaussian Differential Privacy", 2022).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import erf

import numpy as np

from fedrfq.leakage.membership import UploadForm
from fedrfq.leakage.roc import Floats, Scored
from fedrfq.leakage.shadows import Seen


def best_auc(shift: float) -> float:
    """Return the AUC that nobody exceeds, given a shift in standard deviations of the noise."""
    # Φ(x) = (1 + erf(x / √2)) / 2, here of x = shift / √2.
    return (1 + erf(shift / 2)) / 2


def without_noise(seen: Iterable[Seen], form: UploadForm) -> Scored:
    """Ask who the last sample of each upload is, given all the others.

    The score is how near the upload lies to the one that the target would make.
    """
    return Scored.joined([_asked(one, form) for one in seen])


def _asked(one: Seen, form: UploadForm) -> Scored:
    """Ask about the run's members, and about others in the place of one of them."""
    own_ND = one.own_FND[0]
    sent_V = form.uploads(own_ND[None])[0]
    targets_TD = one.targets_FTD[0]
    member_T = one.asked.member_FT[0]
    scores = []
    for place, (target_D, is_member) in enumerate(zip(targets_TD, member_T, strict=True)):
        guess_ND = own_ND.clone()
        # A member is in its own place already; anybody else takes some member's.
        if not is_member:
            guess_ND[place % len(own_ND)] = target_D
        scores.append(-_distance(form.uploads(guess_ND[None])[0], sent_V))
    return Scored(np.array(scores), member_T, np.full(len(member_T), one.asked.client))


def _distance(one_V: Floats, other_V: Floats) -> float:
    return float(np.linalg.norm(one_V - other_V))
