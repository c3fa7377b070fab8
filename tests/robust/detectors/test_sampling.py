"""The detector that knows how far means of n samples may lie apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals, Precision, Uploads
from fedrfq.robust.detectors.sampling import Sampling

ONE = 2**FRACTION_BITS


def _uploads(counts: list[list[int]], values: list[list[list[float]]]) -> Uploads:
    scaled = (np.array(values) * ONE).astype(np.int64)
    return Uploads(tuple(range(len(counts))), np.array(counts), scaled)


def _scores(uploads: Uploads, limit: int = 500) -> tuple[list[int], list[bool]]:
    globals_ = Globals.none(*uploads.values_KJV.shape[1:])
    _, verdict = Sampling(limit=limit).judge({}, globals_, uploads)
    return verdict.score_K.tolist(), verdict.kept_K.tolist()


def test_scores_by_hand() -> None:
    uploads = _uploads([[4]] * 5, [[[1.0]], [[-1.0]], [[0.5]], [[0.0]], [[4.0]]])
    # The median is 0.5. Spreads n·d²: 4·0.25, 4·2.25, 0, 4·0.25 and 4·12.25: the usual is 1.
    scores, kept = _scores(uploads)
    assert scores == [100, 900, 0, 100, 4900]
    assert kept == [True, False, True, True, False]
    assert _scores(uploads, limit=100_000)[1] == [True] * 5


def test_who_claims_few_samples_may_be_farther_off_but_weighs_less() -> None:
    values = [[[0.5]], [[-0.5]], [[0.0]], [[0.1]], [[2.0]]]
    many, _ = _scores(_uploads([[16]] * 5, values))
    few, _ = _scores(_uploads([[16]] * 4 + [[1]], values))
    assert few[4] * 10 < many[4]


def test_a_class_of_two_holders_is_not_judged() -> None:
    counts = [[5, 0], [5, 0], [5, 0], [5, 5], [0, 5]]
    values = [[[0.1], [0.0]], [[-0.1], [0.0]], [[0.1], [0.0]], [[-0.1], [0.0]], [[0.0], [50.0]]]
    assert _scores(_uploads(counts, values))[1] == [True] * 5


def test_a_client_who_claims_every_class_has_one_vote_on_what_is_usual() -> None:
    honest = [[[0.1], [0.1], [0.1], [0.1]], [[-0.1]] * 4, [[0.0]] * 4]
    counts = [[9, 9, 9, 9]] * 4
    scores, _ = _scores(_uploads(counts, [*honest, [[9.0]] * 4]))
    assert scores[3] > 1000


def test_rounding_the_other_way_on_a_coarse_grid_is_usual() -> None:
    """With 4 bits, four equal uploads, and one a step apart in two of eight values."""
    values_KJV = np.zeros((5, 1, 8), np.int64)
    values_KJV[0, 0, :2] = ONE
    uploads = Uploads((0, 1, 2, 3, 4), np.full((5, 1), 1000), values_KJV, precision=Precision(4))
    scores, kept = _scores(uploads)
    assert scores == [100, 0, 0, 0, 0]
    assert all(kept)
    # Who claims many times the samples of others, and so outweighs them, has no more room for it.
    claimed = replace(uploads, counts_KJ=np.array([[10_000], [1000], [1000], [1000], [1000]]))
    scores, kept = _scores(claimed)
    assert scores[0] == 1000
    assert kept == [False, True, True, True, True]


def test_the_largest_numbers_do_not_overflow() -> None:
    values = np.zeros((3, 1, 512), np.int64)
    values[0] = 2**20 - 1
    values[1] = 1 - 2**20
    uploads = Uploads((0, 1, 2), np.full((3, 1), 2**20), values)
    _, verdict = Sampling().judge({}, Globals.none(1, 512), uploads)
    assert (verdict.score_K >= 0).all()


def test_a_limit_that_drops_everybody_is_refused() -> None:
    with pytest.raises(UserError, match=r"detector\.limit must be 101"):
        Sampling(limit=100)
