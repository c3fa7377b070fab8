"""How far any two clients disagree, and how much of that liars cannot have made up.

Two clients *disagree* by the root of the mean squared distance of their prototypes, over the
classes that both of them sent. Clients without a common class do not disagree. It depends on these
two uploads alone: nobody else can change it.

What m liars cannot make up, of whatever they send:

- A client's *proven* disagreement is its (m + 1)-th largest. At least one of those m + 1 others is
  honest, so somebody honest disagrees with the client by as much.
- The *allowed* disagreement is the (m + 1)-th largest of the proven ones. At least one of those
  m + 1 clients is honest, so honest clients do disagree by as much.
- A client is *charged* with its (2m + 1)-th largest. At least m + 1 of those 2m + 1 others are
  honest: what liars add to an honest client's charge, it does not exceed what is proven by honest
  clients alone.
"""

from __future__ import annotations

import numpy as np

from fedrfq.prototypes.fixed_point import Ints, Uploads
from fedrfq.robust.distances import Points, isqrt
from fedrfq.robust.honest_noise import SPARE_BITS, noise_squares


def disagreements(uploads: Uploads) -> Ints:
    """Return by how much each client disagrees with each other one; 0 without a common class."""
    held_KJ = uploads.held_KJ
    sent_KJV = np.where(held_KJ[..., None], uploads.values_KJV, 0)
    # One long row for each client, so that one product has the sums over all common classes.
    points = Points.of(sent_KJV.reshape(len(sent_KJV), -1))
    values_KJV = points.values_NV.reshape(sent_KJV.shape)
    # All sums of squares of a row are below 2⁵³, so products of floats are exact here.
    square_KJ = np.einsum("kjv,kjv->kj", values_KJV, values_KJV)
    common_KJ = held_KJ.astype(np.float64)
    theirs_KK = (square_KJ @ common_KJ.T).astype(np.int64)
    product_KK = (points.values_NV @ points.values_NV.T).astype(np.int64)
    apart_KK = theirs_KK + theirs_KK.T - 2 * product_KK
    classes_KK = (common_KJ @ common_KJ.T).astype(np.int64)
    mean_KK = apart_KK // np.maximum(classes_KK, 1)
    return isqrt(mean_KK) << points.shift


def explained(uploads: Uploads) -> Ints:
    """Return the disagreement of any two clients that the noise of both explains; 0 without noise.

    It depends on these two uploads alone as well. It is that of twice the usual noise, because
    noise is sometimes more, and honest clients do not agree without it either.
    """
    common_KJ = uploads.held_KJ.astype(np.int64)
    noise_KK = 2 * noise_squares(uploads) @ common_KJ.T
    classes_KK = np.maximum(common_KJ @ common_KJ.T, 1)
    return isqrt((noise_KK + noise_KK.T) // classes_KK) << SPARE_BITS // 2


def partners(uploads: Uploads) -> Ints:
    """Return with how many others each client has a class in common."""
    held_KJ = uploads.held_KJ.astype(np.float64)
    common_KK = held_KJ @ held_KJ.T > 0
    # Whoever sent anything has it in common with itself.
    partners_K: Ints = common_KK.sum(1) - uploads.held_KJ.any(1)
    return partners_K


def proven(disagreement_KK: Ints, liars: int) -> Ints:
    """Return each client's proven disagreement: 0 if too few others have a class in common."""
    return _largest(disagreement_KK, liars + 1)


def charged(disagreement_KK: Ints, liars: int) -> Ints:
    """Return what each client is charged with: 0 if too few others have a class in common."""
    return _largest(disagreement_KK, 2 * liars + 1)


def allowed(proven_K: Ints, liars: int) -> int:
    """Return the disagreement that honest clients are known to have."""
    return int(_largest(proven_K, liars + 1))


def _largest(values: Ints, rank: int) -> Ints:
    """Return the value of that rank along the last axis, the largest having rank 1.

    No value there is negative, so where there are fewer the answer is 0.
    """
    place = values.shape[-1] - rank
    if place < 0:
        return np.zeros(values.shape[:-1], np.int64)
    ranked: Ints = np.partition(values, place, axis=-1)[..., place]
    return ranked
