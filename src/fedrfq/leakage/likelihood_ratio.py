"""Membership inference by the likelihood ratio, with shadow federations.

Carlini et al., "Membership Inference Attacks From First Principles", S&P 2022, in its online form:
the attacker repeats the federation many times, with the target among the client's samples and
without it, and compares what the client uploaded with both.

A target's score in a federation is the upload, seen in the direction in which the target would pull
it. In shadow federations with and without the target the scores are two normal distributions, and
the ratio of their densities is the attacker's verdict. Every federation takes its turn as the
victim, and is then no shadow.
"""

from __future__ import annotations

import numpy as np

from fedrfq.leakage.roc import Bools, Floats

# The share of the average variance that every direction is given besides its own: a covariance of
# few samples is too sure of the directions that it has hardly seen.
_RIDGE = 0.1


def inverse_covariance(covariance_VV: Floats) -> Floats:
    """Return the inverse by which scores are weighed, made safe for few samples."""
    values = len(covariance_VV)
    ridge = _RIDGE * np.trace(covariance_VV) / values + 1e-12
    inverse: Floats = np.linalg.inv(covariance_VV + ridge * np.eye(values))
    return inverse


def log_ratios(
    uploads_FV: Floats, member_FT: Bools, features_FTV: Floats, weigh_VV: Floats
) -> Floats:
    """Return each federation's log-likelihood ratio of each target.

    `uploads_FV` is what one client uploaded of one class, and `features_FTV` what each target
    would be in that federation: its vector, of which an upload is the mean.
    """
    scores_FT = _scores(uploads_FV, features_FTV, weigh_VV)
    inside_FT = _mean_of_others(scores_FT, member_FT)
    outside_FT = _mean_of_others(scores_FT, ~member_FT)
    # One gap and one variance for all targets: a few shadows say little about a single one's.
    gap_F1 = (inside_FT - outside_FT).mean(1, keepdims=True)
    spread_FT = scores_FT - np.where(member_FT, inside_FT, outside_FT)
    variance = float((spread_FT**2).mean()) + 1e-300
    # Of all shadows, not between both means: the mean of fewer shadows varies more, and the ratio
    # would then tell by itself whether the victim is among those with the target.
    everyone_FT = np.ones_like(member_FT)
    middle_FT = _mean_of_others(scores_FT, everyone_FT)
    ratios_FT: Floats = gap_F1 * (scores_FT - middle_FT) / variance
    return ratios_FT


def _scores(uploads_FV: Floats, features_FTV: Floats, weigh_VV: Floats) -> Floats:
    """Return each federation's upload in the direction in which each target would pull it.

    Direction and centre are those of the other federations: of the victim only the upload is seen.
    """
    others = len(uploads_FV) - 1
    centre_FV = (uploads_FV.sum(0) - uploads_FV) / others
    feature_FTV = (features_FTV.sum(0) - features_FTV) / others
    pull_FTV = feature_FTV - centre_FV[:, None]
    seen_FV = (uploads_FV - centre_FV) @ weigh_VV
    scores_FT: Floats = np.einsum("ftv,fv->ft", pull_FTV, seen_FV)
    return scores_FT


def _mean_of_others(scores_FT: Floats, counted_FT: Bools) -> Floats:
    """Return the mean score of each target in those federations that count, without the victim."""
    counted = counted_FT.astype(np.float64)
    sums_FT = (scores_FT * counted).sum(0) - scores_FT * counted
    mean_FT: Floats = sums_FT / np.maximum(counted.sum(0) - counted, 1)
    return mean_FT
