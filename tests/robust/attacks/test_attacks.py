"""Attacks: what all of them promise, and how labels are flipped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import Globals, Precision
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.attacks.label_flip import LabelFlip
from fedrfq.robust.detectors.none import NoDetection
from support.scenes import Near, array, random_scene, scene_of, send

# The attacks that come with the program, and their default strengths. Others may be registered
# beside them: what holds for all attacks is tested for those as well.
STRENGTHS = {
    **dict.fromkeys(("none", "label-flip", "noise", "sign-flip", "swap", "random"), 1.0),
    **dict.fromkeys(("ipm", "mimic", "min-max", "frame"), 1.0),
    **dict.fromkeys(("sleeper", "backdoor", "sole", "groups"), 1.0),
    **{"scale": 5.0, "inflate": 1000.0, "alie": 1.5, "adaptive": 3.0, "drift": 0.05},
    **{"optimal-ipm": 10.0, "optimal-alie": 10.0, "optimal-frame": 8.0, "optimal-swap": 3.0},
}
# Attacks that leave some classes alone, or some rounds.
SPARING = {"optimal-frame", "sleeper", "backdoor", "sole"}
NAMES = list(ATTACKS)
ON_UPLOADS = [name for name, kind in ATTACKS.items() if kind.on_uploads]


# All of them


def test_the_attacks_that_come_with_the_program() -> None:
    assert STRENGTHS.keys() <= ATTACKS.keys()
    assert STRENGTHS.keys() - set(ON_UPLOADS) == {"none", "label-flip"}
    assert {name: ATTACKS[name]().strength for name in STRENGTHS} == STRENGTHS


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, 16, 24])
def test_only_attackers_change_and_stay_sendable(name: str, bits: int) -> None:
    scene = random_scene(precision=Precision(bits))
    sent = send(ATTACKS[name](), scene)
    changed_AJ = (sent.values_KJV != scene.uploads.values_KJV).any(-1)[scene.malicious_K]
    held_AJ = scene.theirs.held_KJ
    if name not in ON_UPLOADS:
        assert sent is scene.uploads
    elif name not in SPARING:
        assert changed_AJ[held_AJ].all()


@pytest.mark.parametrize("name", ["noise", "swap", "random", "inflate"])
def test_randomness_comes_from_the_generator(name: str) -> None:
    scene = random_scene()
    draws = {send(ATTACKS[name](), scene, seed).values_KJV.tobytes() for seed in range(4)}
    assert len(draws) > 1


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_federation_can_be_attacked(name: str, data: st.DataObject) -> None:
    clients, classes, values = (data.draw(st.integers(1, most)) for most in (5, 4, 3))
    rng = default_rng(data.draw(st.integers(0, 999)))
    counts_KJ = rng.integers(0, data.draw(st.integers(1, 3)), (clients, classes))
    malicious = data.draw(st.sampled_from([(), (0,), (0, clients - 1), tuple(range(clients))]))
    precision = Precision(data.draw(st.sampled_from([8, 16, 24])))
    spread = data.draw(st.sampled_from([0, precision.step, precision.most * precision.step]))
    values_KJV = precision.rounded(rng.integers(-spread, spread + 1, (clients, classes, values)))
    globals_ = Globals(
        rng.random(classes) < 0.5, rng.integers(-spread, spread + 1, (classes, values))
    )
    detector = data.draw(
        st.sampled_from([NoDetection(), Near(reach=spread // 2), Near(lone="hold", reach=-1)])
    )
    scene = scene_of(
        counts_KJ, values_KJV * (counts_KJ > 0)[..., None], malicious, globals_, detector
    )
    send(ATTACKS[name](), replace(scene, uploads=replace(scene.uploads, precision=precision)))


# Label flipping


def flip(labels: Any, classes: int, seed: int = 0, **options: Any) -> NDArray[np.int64]:
    before = array(labels)
    before.setflags(write=False)
    after = LabelFlip(**options).poison(before, classes, default_rng(seed))
    assert after.dtype == np.int64
    assert np.array_equal(after, LabelFlip(**options).poison(before, classes, default_rng(seed)))
    return after


def mapping(before: NDArray[np.int64], after: NDArray[np.int64]) -> dict[int, int]:
    pairs = set(zip(before.tolist(), after.tolist(), strict=True))
    assert len(pairs) == len(np.unique(before)), "a class has two new labels"
    return dict(pairs)


@pytest.mark.parametrize("seed", range(10))
def test_labels_are_deranged_among_the_own_classes(seed: int) -> None:
    labels = default_rng(seed).choice([1, 4, 5, 8], 200)
    new = mapping(labels, flip(labels, 10, seed))
    assert set(new) == set(new.values()) == {1, 4, 5, 8}
    assert all(old != label for old, label in new.items())


def test_a_single_class_becomes_any_other() -> None:
    new = {mapping(array([2] * 5), flip([2] * 5, 4, seed))[2] for seed in range(40)}
    assert new == {0, 1, 3}


def test_labels_become_any_other_class() -> None:
    labels = array([1, 4, 5] * 9)
    maps = [mapping(labels, flip(labels, 6, seed, to="any")) for seed in range(60)]
    assert all({new[old] for new in maps} == set(range(6)) - {old} for old in (1, 4, 5))
    assert any(len(set(new.values())) < 3 for new in maps), "each class is drawn for itself"


def test_labels_become_one_class() -> None:
    assert {tuple(flip([3, 1, 0, 2], 4, seed, to="one")) for seed in range(5)} == {(0, 0, 0, 0)}


@pytest.mark.parametrize("to", ["own", "any"])
@pytest.mark.parametrize(
    ("strength", "flipped"), [(0.0, 0), (0.25, 10), (0.5, 20), (0.99, 40), (1.0, 40)]
)
def test_strength_is_the_share_of_flipped_samples(to: str, strength: float, flipped: int) -> None:
    labels = array([0, 1, 2, 3] * 10)
    new = [flip(labels, 5, seed, to=to, strength=strength) for seed in range(8)]
    assert {int((each != labels).sum()) for each in new} == {flipped}
    if 0 < flipped < 40:
        assert len({(each != labels).tobytes() for each in new}) > 1, "always the same samples"


def test_labels_that_cannot_be_flipped() -> None:
    assert flip([0, 0], 1).tolist() == [0, 0]
    assert flip([], 3).tolist() == []


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"to": "two"}, "own, any, one"),
        ({"strength": 1.01}, "attack.strength must be 0 to 1, not 1.01"),
        ({"start_round": 2}, "must be 1"),
    ],
)
def test_label_flip_refuses(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LabelFlip(**wrong)


@pytest.mark.parametrize("name", ON_UPLOADS)
def test_attacks_on_uploads_leave_the_labels_alone(name: str) -> None:
    labels = array([0, 1, 2])
    assert ATTACKS[name]().poison(labels, 3, default_rng(0)) is labels
