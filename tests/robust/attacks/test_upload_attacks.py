"""Attacks on uploads, each one's rule by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from fedrfq.prototypes.fixed_point import LIMIT, MAX_COUNT, Globals, Precision
from fedrfq.robust.attacks.alie import Alie
from fedrfq.robust.attacks.frame import Frame
from fedrfq.robust.attacks.inflate import Inflate
from fedrfq.robust.attacks.ipm import Ipm
from fedrfq.robust.attacks.mimic import Mimic
from fedrfq.robust.attacks.min_max import MinMax
from fedrfq.robust.attacks.noise import GaussianNoise
from fedrfq.robust.attacks.random_values import RandomValues
from fedrfq.robust.attacks.scale import Scale
from fedrfq.robust.attacks.sign_flip import SignFlip
from fedrfq.robust.attacks.swap import Swap
from support.scenes import array, random_scene, same, scene_of, send

# Attacks that need no one else's upload

TWO = [[3, 4], [3, 4]]


def test_sign_flip_and_scale_by_hand() -> None:
    scene = scene_of(TWO, [[[1, 2], [3, 4]], [[5, -6], [7, 8]]], [1])
    assert send(SignFlip(), scene).values_KJV[1].tolist() == [[-5, 6], [-7, -8]]
    assert send(SignFlip(strength=2.0), scene).values_KJV[1].tolist() == [[-10, 12], [-14, -16]]
    assert send(Scale(), scene).values_KJV[1].tolist() == [[25, -30], [35, 40]]
    assert send(Scale(strength=0.1), scene).values_KJV[1].tolist() == [[0, -1], [1, 1]]


def test_values_beyond_the_range_are_cut() -> None:
    scene = scene_of(TWO, [[[1, 2], [3, 4]], [[LIMIT // 2, -LIMIT // 2], [7, 8]]], [1])
    assert send(Scale(), scene).values_KJV[1].tolist() == [[LIMIT - 1, 1 - LIMIT], [35, 40]]
    coarse = replace(
        scene,
        uploads=replace(
            scene.uploads, values_KJV=scene.uploads.values_KJV * 0 + 2048, precision=Precision(8)
        ),
    )
    assert send(Scale(strength=1e6), coarse).values_KJV[1].tolist() == [[127 * 1024] * 2] * 2
    assert send(Scale(strength=1.6), coarse).values_KJV[1].tolist() == [[3072, 3072], [3072, 3072]]


def test_noise_is_as_large_as_the_prototype() -> None:
    values = np.stack(
        [np.full((2, 4000), 9), np.stack([np.full(4000, 100), np.tile([-30_000, 30_000], 2000)])]
    )
    scene = scene_of(TWO, values, [1])
    for strength in (0.5, 2.0):
        noise_JV = send(GaussianNoise(strength=strength), scene).values_KJV[1] - values[1]
        assert noise_JV.std(1) / [100 * strength, 30_000 * strength] == pytest.approx(1, abs=0.05)
        assert noise_JV.mean(1) / [100 * strength, 30_000 * strength] == pytest.approx(0, abs=0.06)
        assert abs(np.corrcoef(noise_JV)[0, 1]) < 0.06


@pytest.mark.parametrize("seed", range(8))
def test_swap_is_a_derangement_of_the_own_classes(seed: int) -> None:
    values = array([[[10 * k + j, -j] for j in range(5)] for k in range(3)])
    counts = [[1, 1, 1, 1, 1], [2, 0, 3, 4, 5], [0, 1, 0, 1, 0]]
    sent = send(Swap(), scene_of(counts, values, [1, 2]), seed)
    given = [int(value) - 10 for value in sent.values_KJV[1, [0, 2, 3, 4], 0]]
    assert sorted(given) == [0, 2, 3, 4]
    assert all(new != old for new, old in zip(given, [0, 2, 3, 4], strict=True))
    assert sent.values_KJV[1, [0, 2, 3, 4], 1].tolist() == [-new for new in given]
    assert sent.values_KJV[2, [1, 3], 0].tolist() == [23, 21]
    assert sent.counts_KJ.tolist() == counts


def test_swap_by_half() -> None:
    scene = scene_of(TWO, [[[1, 2], [3, 4]], [[10, 20], [50, 0]]], [1])
    assert send(Swap(strength=0.5), scene).values_KJV[1].tolist() == [[30, 10], [30, 10]]
    assert send(Swap(strength=0.25), scene).values_KJV[1].tolist() == [[20, 15], [40, 5]]


def test_swap_of_a_single_class_takes_a_global_prototype() -> None:
    counts = [[3, 4, 1], [0, 5, 0]]
    values = [[[1], [2], [3]], [[0], [9], [0]]]
    globals_ = Globals(np.array([True, True, False]), array([[77], [88], [99]]))
    assert send(Swap(), scene_of(counts, values, [1], globals_)).values_KJV[1].tolist() == [
        [0],
        [77],
        [0],
    ]
    everywhere = scene_of(counts, values, [1], replace(globals_, present_J=np.ones(3, np.bool_)))
    assert {int(send(Swap(), everywhere, seed).values_KJV[1, 1, 0]) for seed in range(20)} == {
        77,
        99,
    }
    alone = scene_of(
        counts, values, [1], replace(globals_, present_J=np.array([False, True, False]))
    )
    assert same(send(Swap(), alone), alone.uploads)


def test_inflate_multiplies_counts_and_swaps() -> None:
    counts = [[3, 4, 1], [7, 0, 2000]]
    scene = scene_of(counts, [[[1], [2], [3]], [[8], [0], [9]]], [1])
    sent = send(Inflate(), scene)
    assert sent.counts_KJ.tolist() == [[3, 4, 1], [7000, 0, MAX_COUNT]]
    assert sent.values_KJV[1].tolist() == [[9], [0], [8]]
    assert send(Inflate(strength=2.5), scene).counts_KJ[1].tolist() == [18, 0, 5000]
    assert send(Inflate(strength=0.0), scene).counts_KJ[1].tolist() == [1, 0, 1]
    assert same(replace(sent, counts_KJ=array(counts)), send(Swap(), scene))


@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_random_values_fill_the_honest_range(strength: float) -> None:
    values = np.zeros((2, 2, 3000), np.int64)
    values[0, 0, :2] = -1000, 3000
    values[:, 1] = 90_000
    sent = send(
        RandomValues(strength=strength), scene_of([[1, 0], [1, 0]], values, [1])
    ).values_KJV[1, 0]
    low = 1000 - 2000 * strength
    high = 1000 + 2000 * strength
    assert low <= sent.min() < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < sent.max() <= high
    assert np.histogram(sent, 4, (low, high))[0] / 750 == pytest.approx(1, abs=0.15)


# Attacks that look at the honest uploads

COUNTS = [[5, 1, 0], [1, 0, 0], [9, 0, 0], [2, 2, 2], [2, 2, 2]]
VALUES = [[[0, 10], [4, 6], [0, 0]], [[6, 10], [0, 0], [0, 0]], [[3, 40], [0, 0], [0, 0]]]
OWN = [[[70, 71], [72, 73], [74, 75]], [[80, 81], [82, 83], [84, 85]]]


def test_ipm_by_hand() -> None:
    scene = scene_of(COUNTS, VALUES + OWN, [3, 4])
    assert send(Ipm(), scene).values_KJV[3:].tolist() == [
        [[-3, -20], [-4, -6], [-74, -75]],
        [[-3, -20], [-4, -6], [-84, -85]],
    ]
    assert send(Ipm(strength=0.5), scene).values_KJV[3].tolist() == [
        [-2, -10],
        [-2, -3],
        [-37, -38],
    ]


def test_alie_by_hand() -> None:
    scene = scene_of(COUNTS, VALUES + OWN, [3, 4])
    a = np.sqrt(6)
    b = np.sqrt(200)
    for z in (1.0, 1.5, 4.0):
        sent = send(Alie(strength=z), scene)
        first = [round(3 - z * a), round(20 - z * b)]
        assert sent.values_KJV[3:].tolist() == [
            [first, [4, 6], OWN[0][2]],
            [first, [4, 6], OWN[1][2]],
        ]


def test_mimic_copies_the_honest_client_of_most_classes() -> None:
    counts = [[5, 0, 0], [9, 9, 9], [0, 1, 2], [3, 4, 0], [0, 0, 7]]
    values = [
        [[10 * k + j] if count else [0] for j, count in enumerate(row)]
        for k, row in enumerate(counts)
    ]
    sent = send(Mimic(), scene_of(counts, values, [1, 4]))
    assert sent.counts_KJ.tolist() == [counts[0], counts[2], counts[2], counts[3], counts[2]]
    assert sent.values_KJV.tolist() == [values[0], values[2], values[2], values[3], values[2]]
    backwards = scene_of(counts, values, [1, 4])
    backwards = replace(backwards, uploads=replace(backwards.uploads, clients=(5, 4, 3, 2, 1)))
    assert send(Mimic(), backwards).counts_KJ[1].tolist() == counts[3]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("strength", [1.0, 1.7])
def test_min_max_touches_its_bound(seed: int, strength: float) -> None:
    scene = random_scene(seed)
    sent = send(MinMax(strength=strength), scene)
    for j in np.flatnonzero(scene.theirs.held_KJ.any(0)):
        rows_HV = scene.honest.values_KJV[scene.honest.held_KJ[:, j], j]
        bound = strength * max(np.linalg.norm(one - other) for one in rows_HV for other in rows_HV)
        mean_V = rows_HV.mean(0)
        std_V = rows_HV.std(0)
        value_V = sent.values_KJV[scene.malicious_K & scene.uploads.held_KJ[:, j], j][0]
        gamma = float((mean_V - value_V) @ std_V / (std_V @ std_V))
        assert gamma > 0
        assert value_V == pytest.approx(mean_V - gamma * std_V, abs=1)

        def farthest(
            factor: float, mean_V: Any = mean_V, std_V: Any = std_V, rows_HV: Any = rows_HV
        ) -> float:
            return float(max(np.linalg.norm(mean_V - factor * std_V - row) for row in rows_HV))

        assert farthest(gamma) == pytest.approx(bound, abs=2)
        assert farthest(1.01 * gamma) > bound


def test_min_max_by_hand() -> None:
    scene = scene_of(
        COUNTS,
        [[[0], [5], [0]], [[100], [0], [0]], [[50], [0], [0]], [[7], [8], [9]], [[1], [2], [3]]],
        [3, 4],
    )
    assert send(MinMax(), scene).values_KJV[3:].tolist() == [[[0], [8], [9]], [[0], [2], [3]]]
    assert send(MinMax(strength=2.0), scene).values_KJV[3, 0].tolist() == [-100]
    assert send(MinMax(strength=0.4), scene).values_KJV[3:, 0].tolist() == [[50], [50]]


def test_honest_holders_who_agree_are_copied() -> None:
    scene = scene_of([[1], [1], [1]], [[[4, 5]], [[4, 5]], [[9, 9]]], [2])
    for attack in (MinMax(), Alie()):
        assert send(attack, scene).values_KJV[2].tolist() == [[4, 5]]


# Framing


def test_framers_send_the_last_global_prototypes_of_every_class_nearly() -> None:
    known = Globals(np.array([True, False, True]), array([[100, 200], [0, 0], [-300, LIMIT - 1]]))
    scene = scene_of([[4, 0, 0], [0, 7, 0], [2, 9, 0]], np.full((3, 3, 2), 5), [1, 2], known)
    sent = send(Frame(), scene)
    assert sent.counts_KJ.tolist() == [[4, 0, 0], [7, 7, 7], [9, 9, 9]]
    assert sent.values_KJV[1:, 1].tolist() == [
        [5, 5],
        [5, 5],
    ]  # a class without a global prototype is as it was
    for j in (0, 2):
        assert np.abs(sent.values_KJV[1:, j] - known.values_JV[j]).max() <= 1
    assert (
        len({Frame().forge(scene, default_rng(seed)).values_KJV.tobytes() for seed in range(8)}) > 4
    )
    far = send(Frame(strength=50.0), scene).values_KJV[1:, 0]
    assert 1 < np.abs(far - known.values_JV[0]).max() <= 50


def test_framers_without_samples_claim_one() -> None:
    known = Globals(np.ones(2, np.bool_), array([[100], [200]]))
    scene = scene_of([[4, 1], [0, 0]], [[[5], [5]], [[0], [0]]], [1], known)
    assert send(Frame(), scene).counts_KJ[1].tolist() == [1, 1]


def test_framers_are_honest_while_there_are_no_global_prototypes() -> None:
    scene = scene_of([[4, 1], [0, 7]], np.full((2, 2, 3), 5), [1])
    assert same(send(Frame(), scene), scene.uploads)
