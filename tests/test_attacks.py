"""Attacks: what all of them promise, and each one's rule by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.typing import NDArray

from fedrfq.attacks import ATTACKS, Attack, Scene
from fedrfq.attacks.adaptive import Adaptive
from fedrfq.attacks.alie import Alie
from fedrfq.attacks.frame import Frame
from fedrfq.attacks.inflate import Inflate
from fedrfq.attacks.ipm import Ipm
from fedrfq.attacks.label_flip import LabelFlip
from fedrfq.attacks.mimic import Mimic
from fedrfq.attacks.min_max import MinMax
from fedrfq.attacks.noise import Noise
from fedrfq.attacks.random import Random
from fedrfq.attacks.scale import Scale
from fedrfq.attacks.sign_flip import SignFlip
from fedrfq.attacks.swap import Swap
from fedrfq.detectors.detector import Detector, State, Verdict
from fedrfq.detectors.none import Nothing
from fedrfq.errors import UserError
from fedrfq.prototypes import LIMIT, MOST_COUNT, WHOLE, Globals, Precision, Uploads

NAMES = [
    *("none", "label-flip", "noise", "sign-flip", "scale", "swap", "random"),
    *("inflate", "ipm", "alie", "mimic", "min-max", "adaptive", "frame"),
]
ON_UPLOADS = [name for name in NAMES if name not in ("none", "label-flip")]
ONE = 2**14


def array(rows: Any) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


@dataclass(frozen=True)
class Near(Detector):
    """Keeps clients whose values are all within `reach` of the global prototypes, and notes how often it is asked."""

    reach: int = ONE
    asked: list[Uploads] = field(default_factory=list)

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        self.asked.append(uploads)
        assert state == {"seen": 1}
        far_KJ = np.abs(uploads.values_KJV - globals_.values_JV).max(-1)
        worst_K = np.where(uploads.held_KJ, far_KJ, 0).max(1, initial=0)
        return state, Verdict(worst_K <= self.reach, worst_K)


def scene_of(
    counts_KJ: Any, values_KJV: Any, malicious: Any, globals_: Globals | None = None, detector: Detector | None = None
) -> Scene:
    """A scene that nobody can write to."""
    counts, values = array(counts_KJ), array(values_KJV)
    mask = np.isin(np.arange(len(counts)), malicious)
    globals_ = globals_ or Globals.none(*values.shape[1:])
    for each in (counts, values, mask, globals_.present_J, globals_.values_JV):
        each.setflags(write=False)
    clients = tuple(range(10, 10 + len(counts)))
    return Scene(Uploads(clients, counts, values), mask, globals_, detector or Nothing(), {"seen": array(1)})


def random_scene(
    seed: int = 0, clients: int = 9, classes: int = 5, malicious: Any = (1, 4, 8), precision: Precision = WHOLE
) -> Scene:
    """Classes around centres of their own, two or more held by all attackers, all of them by most others."""
    rng = default_rng(seed)
    held_KJ = rng.random((clients, classes)) < 0.8
    held_KJ[:, :2] = True
    centres_JV = rng.normal(0, 2 * ONE, (classes, 6))
    values_KJV = np.rint(centres_JV + rng.normal(0, ONE / 4, (clients, classes, 6))).astype(np.int64)
    values_KJV = precision.rounded(values_KJV) * held_KJ[..., None]
    globals_ = Globals(np.ones(classes, np.bool_), np.rint(centres_JV).astype(np.int64))
    scene = scene_of(held_KJ * rng.integers(1, 50, (clients, classes)), values_KJV, malicious, globals_)
    return replace(scene, uploads=replace(scene.uploads, precision=precision))


def same(one: Uploads, other: Uploads) -> bool:
    pairs = [(one.counts_KJ, other.counts_KJ), (one.values_KJV, other.values_KJV)]
    return one.clients == other.clients and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def send(attack: Attack, scene: Scene, seed: int = 7) -> Uploads:
    """What is sent, with the promises checked that hold whatever the attack."""
    sent = attack.corrupt(scene, default_rng(seed))
    assert same(sent.only(~scene.malicious_K), scene.honest)
    assert same(sent, attack.corrupt(scene, default_rng(seed)))
    assert sent.counts_KJ.dtype == sent.values_KJV.dtype == np.int64
    assert (sent.clients, sent.precision, sent.refused) == (scene.uploads.clients, scene.uploads.precision, {})
    assert sent.checked().refused == {}
    assert not (sent.values_KJV % sent.precision.step).any()
    if not isinstance(attack, Mimic | Frame):
        assert np.array_equal(sent.held_KJ, scene.uploads.held_KJ)
        assert np.array_equal(sent.values_KJV[~sent.held_KJ], scene.uploads.values_KJV[~sent.held_KJ])
    return sent


# All of them


def test_the_names_and_their_order() -> None:
    assert list(ATTACKS) == NAMES
    assert [name for name, kind in ATTACKS.items() if kind.on_uploads] == ON_UPLOADS


def test_the_default_strengths() -> None:
    strengths = {"scale": 5.0, "inflate": 1000.0, "alie": 1.5, "adaptive": 3.0}
    assert {name: kind().strength for name, kind in ATTACKS.items()} == {name: strengths.get(name, 1.0) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrong", [{"strength": -0.1}, {"strength": float("nan")}, {"clients": -1}, {"start_round": 0}])
def test_settings_out_of_range_are_refused(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="attack"):
        ATTACKS[name](**wrong)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bits", [8, 16, 24])
def test_only_attackers_change_and_stay_sendable(name: str, bits: int) -> None:
    scene = random_scene(precision=Precision(bits))
    sent = send(ATTACKS[name](), scene)
    changed_AJ = (sent.values_KJV != scene.uploads.values_KJV).any(-1)[scene.malicious_K]
    held_AJ = scene.theirs.held_KJ
    if name in ON_UPLOADS:
        assert changed_AJ[held_AJ].all()
    else:
        assert sent is scene.uploads


@pytest.mark.parametrize("name", ON_UPLOADS)
@pytest.mark.parametrize("strength", [0.0, 1e3, 1e6])
def test_any_strength_stays_sendable(name: str, strength: float) -> None:
    with np.errstate(over="ignore"):
        send(ATTACKS[name](strength=strength), random_scene())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_happens_without_attackers(name: str) -> None:
    scene = random_scene(malicious=())
    assert same(send(ATTACKS[name](), scene), scene.uploads)
    empty = scene_of(np.zeros((0, 3)), np.zeros((0, 3, 2)), ())
    assert same(send(ATTACKS[name](), empty), empty.uploads)


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
    globals_ = Globals(rng.random(classes) < 0.5, rng.integers(-spread, spread + 1, (classes, values)))
    detector = data.draw(st.sampled_from([Nothing(), Near(reach=spread // 2), Near(lone="hold", reach=-1)]))
    scene = scene_of(counts_KJ, values_KJV * (counts_KJ > 0)[..., None], malicious, globals_, detector)
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
@pytest.mark.parametrize(("strength", "flipped"), [(0.0, 0), (0.25, 10), (0.5, 20), (0.99, 40), (1.0, 40)])
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
    [({"to": "two"}, "own, any, one"), ({"strength": 1.01}, "at most 1"), ({"start_round": 2}, "must be 1")],
)
def test_label_flip_refuses(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LabelFlip(**wrong)


@pytest.mark.parametrize("name", ON_UPLOADS)
def test_attacks_on_uploads_leave_the_labels_alone(name: str) -> None:
    labels = array([0, 1, 2])
    assert ATTACKS[name]().poison(labels, 3, default_rng(0)) is labels


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
        scene, uploads=replace(scene.uploads, values_KJV=scene.uploads.values_KJV * 0 + 2048, precision=Precision(8))
    )
    assert send(Scale(strength=1e6), coarse).values_KJV[1].tolist() == [[127 * 1024] * 2] * 2
    assert send(Scale(strength=1.6), coarse).values_KJV[1].tolist() == [[3072, 3072], [3072, 3072]]


def test_noise_is_as_large_as_the_prototype() -> None:
    values = np.stack([np.full((2, 4000), 9), np.stack([np.full(4000, 100), np.tile([-30_000, 30_000], 2000)])])
    scene = scene_of(TWO, values, [1])
    for strength in (0.5, 2.0):
        noise_JV = send(Noise(strength=strength), scene).values_KJV[1] - values[1]
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
    counts, values = [[3, 4, 1], [0, 5, 0]], [[[1], [2], [3]], [[0], [9], [0]]]
    globals_ = Globals(np.array([True, True, False]), array([[77], [88], [99]]))
    assert send(Swap(), scene_of(counts, values, [1], globals_)).values_KJV[1].tolist() == [[0], [77], [0]]
    everywhere = scene_of(counts, values, [1], replace(globals_, present_J=np.ones(3, np.bool_)))
    assert {int(send(Swap(), everywhere, seed).values_KJV[1, 1, 0]) for seed in range(20)} == {77, 99}
    alone = scene_of(counts, values, [1], replace(globals_, present_J=np.array([False, True, False])))
    assert same(send(Swap(), alone), alone.uploads)


def test_inflate_multiplies_counts_and_swaps() -> None:
    counts = [[3, 4, 1], [7, 0, 2000]]
    scene = scene_of(counts, [[[1], [2], [3]], [[8], [0], [9]]], [1])
    sent = send(Inflate(), scene)
    assert sent.counts_KJ.tolist() == [[3, 4, 1], [7000, 0, MOST_COUNT]]
    assert sent.values_KJV[1].tolist() == [[9], [0], [8]]
    assert send(Inflate(strength=2.5), scene).counts_KJ[1].tolist() == [18, 0, 5000]
    assert send(Inflate(strength=0.0), scene).counts_KJ[1].tolist() == [1, 0, 1]
    assert same(replace(sent, counts_KJ=array(counts)), send(Swap(), scene))


@pytest.mark.parametrize("strength", [0.5, 1.0, 3.0])
def test_random_values_fill_the_honest_range(strength: float) -> None:
    values = np.zeros((2, 2, 3000), np.int64)
    values[0, 0, :2] = -1000, 3000
    values[:, 1] = 90_000
    sent = send(Random(strength=strength), scene_of([[1, 0], [1, 0]], values, [1])).values_KJV[1, 0]
    low, high = 1000 - 2000 * strength, 1000 + 2000 * strength
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
    assert send(Ipm(strength=0.5), scene).values_KJV[3].tolist() == [[-2, -10], [-2, -3], [-37, -38]]


def test_alie_by_hand() -> None:
    scene = scene_of(COUNTS, VALUES + OWN, [3, 4])
    a, b = np.sqrt(6), np.sqrt(200)
    for z in (1.0, 1.5, 4.0):
        sent = send(Alie(strength=z), scene)
        first = [round(3 - z * a), round(20 - z * b)]
        assert sent.values_KJV[3:].tolist() == [[first, [4, 6], OWN[0][2]], [first, [4, 6], OWN[1][2]]]


def test_mimic_copies_the_honest_client_of_most_classes() -> None:
    counts = [[5, 0, 0], [9, 9, 9], [0, 1, 2], [3, 4, 0], [0, 0, 7]]
    values = [[[10 * k + j] if count else [0] for j, count in enumerate(row)] for k, row in enumerate(counts)]
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
        mean_V, std_V = rows_HV.mean(0), rows_HV.std(0)
        value_V = sent.values_KJV[scene.malicious_K & scene.uploads.held_KJ[:, j], j][0]
        gamma = float((mean_V - value_V) @ std_V / (std_V @ std_V))
        assert gamma > 0
        assert value_V == pytest.approx(mean_V - gamma * std_V, abs=1)

        def farthest(factor: float, mean_V: Any = mean_V, std_V: Any = std_V, rows_HV: Any = rows_HV) -> float:
            return float(max(np.linalg.norm(mean_V - factor * std_V - row) for row in rows_HV))

        assert farthest(gamma) == pytest.approx(bound, abs=2)
        assert farthest(1.01 * gamma) > bound


def test_min_max_by_hand() -> None:
    scene = scene_of(COUNTS, [[[0], [5], [0]], [[100], [0], [0]], [[50], [0], [0]], [[7], [8], [9]], [[1], [2], [3]]], [3, 4])
    assert send(MinMax(), scene).values_KJV[3:].tolist() == [[[0], [8], [9]], [[0], [2], [3]]]
    assert send(MinMax(strength=2.0), scene).values_KJV[3, 0].tolist() == [-100]
    assert send(MinMax(strength=0.4), scene).values_KJV[3:, 0].tolist() == [[50], [50]]


def test_honest_holders_who_agree_are_copied() -> None:
    scene = scene_of([[1], [1], [1]], [[[4, 5]], [[4, 5]], [[9, 9]]], [2])
    for attack in (MinMax(), Alie()):
        assert send(attack, scene).values_KJV[2].tolist() == [[4, 5]]


# The adaptive attack

CENTRES = Globals(np.ones(3, np.bool_), array([[0, 0], [1000, 0], [5000, 1000]]))


def adaptive_scene(detector: Detector) -> Scene:
    """Class 0 is nearest to 1, 1 to 0 and 2 to 1; the honest means are the global prototypes."""
    honest = [[[10, -10], [1010, 0], [5000, 1000]], [[-10, 10], [990, 0], [5000, 1000]]]
    return scene_of(np.ones((4, 3)), honest + [[[0, 5], [1001, 1], [5001, 999]]] * 2, [2, 3], CENTRES, detector)


def test_adaptive_goes_to_its_strength_if_it_is_let() -> None:
    detector = Near(reach=LIMIT)
    sent = send(Adaptive(), adaptive_scene(detector))
    assert sent.values_KJV[2:].tolist() == [[[3000, 0], [-2000, 0], [-7000, -2000]]] * 2
    assert send(Adaptive(strength=1.0), adaptive_scene(detector)).values_KJV[2].tolist() == [[1000, 0], [0, 0], [1000, 0]]


@pytest.mark.parametrize("reach", [20, 100, 1234, 4000, 11_000])
def test_adaptive_is_kept_and_nearly_maximal(reach: int) -> None:
    detector = Near(reach=reach)
    scene = adaptive_scene(detector)
    sent = Adaptive().corrupt(scene, default_rng(0))
    assert len(detector.asked) <= 10
    _, verdict = detector.judge(scene.state, scene.globals_, sent)
    assert verdict.kept_K.all()
    gamma = sent.values_KJV[2, 2, 0] / -4000 + 1.25
    assert gamma <= reach / 4000
    assert gamma > reach / 4000 - 3 / 256 - 1e-3
    assert sent.values_KJV[2].tolist() == sent.values_KJV[3].tolist()
    gone = [[1000 * gamma, 0], [1000 - 1000 * gamma, 0], [5000 - 4000 * gamma, 1000 - 1000 * gamma]]
    assert sent.values_KJV[2] == pytest.approx(np.array(gone), abs=1)


def test_adaptive_is_honest_if_not_even_the_centre_is_kept() -> None:
    detector = Near(reach=-1)
    scene = adaptive_scene(detector)
    assert Adaptive().corrupt(scene, default_rng(0)) is scene.uploads
    assert len(detector.asked) == 1


def test_adaptive_minds_only_itself() -> None:
    scene = adaptive_scene(Near(reach=5))
    sent = Adaptive().corrupt(scene, default_rng(0))
    _, verdict = scene.detector.judge(scene.state, scene.globals_, sent)
    assert verdict.kept_K.tolist() == [False, False, True, True]
    assert sent is not scene.uploads


def test_adaptive_goes_no_farther_than_the_one_who_is_found_first() -> None:
    scene = adaptive_scene(Near(reach=2000))
    counts_KJ = array([[1, 1, 1], [1, 1, 1], [1, 0, 0], [0, 0, 1]])
    sent = Adaptive().corrupt(replace(scene, uploads=replace(scene.uploads, counts_KJ=counts_KJ)), default_rng(0))
    assert 2950 < 5000 - sent.values_KJV[3, 2, 0] + 1000 <= 3000
    assert 480 < sent.values_KJV[2, 0, 0] <= 500


def test_adaptive_shows_the_detector_what_it_admits() -> None:
    detector = Near(lone="hold", reach=10)
    scene = scene_of([[1, 1], [1, 1], [9, 1]], [[[0], [1000]], [[0], [1000]], [[1], [1]]], [2], None, detector)
    Adaptive().corrupt(scene, default_rng(0))
    assert detector.asked
    assert all(each.counts_KJ[2].tolist() == [1, 1] for each in detector.asked)


def test_adaptive_without_honest_holders_starts_from_the_global_or_the_own() -> None:
    globals_ = Globals(np.array([True, True, False]), array([[100], [200], [0]]))
    values = [[[0], [300], [0]], [[7], [8], [9]]]
    scene = scene_of([[0, 1, 0], [1, 1, 1]], values, [1], globals_)
    assert send(Adaptive(strength=0.0), scene).values_KJV[1].tolist() == [[100], [300], [9]]
    assert send(Adaptive(strength=1.0), scene).values_KJV[1].tolist() == [[300], [100], [100]]
    alone = scene_of([[0, 1], [0, 1]], [[[0], [4]], [[0], [6]]], [1])
    assert send(Adaptive(), alone).values_KJV[1].tolist() == [[0], [4]]


# Framing


def test_framers_send_the_last_global_prototypes_of_every_class_nearly() -> None:
    known = Globals(np.array([True, False, True]), array([[100, 200], [0, 0], [-300, LIMIT - 1]]))
    scene = scene_of([[4, 0, 0], [0, 7, 0], [2, 9, 0]], np.full((3, 3, 2), 5), [1, 2], known)
    sent = send(Frame(), scene)
    assert sent.counts_KJ.tolist() == [[4, 0, 0], [7, 7, 7], [9, 9, 9]]
    assert sent.values_KJV[1:, 1].tolist() == [[5, 5], [5, 5]]  # a class without a global prototype is as it was
    for j in (0, 2):
        assert np.abs(sent.values_KJV[1:, j] - known.values_JV[j]).max() <= 1
    assert len({Frame().corrupt(scene, default_rng(seed)).values_KJV.tobytes() for seed in range(8)}) > 4
    far = send(Frame(strength=50.0), scene).values_KJV[1:, 0]
    assert 1 < np.abs(far - known.values_JV[0]).max() <= 50


def test_framers_are_honest_while_there_are_no_global_prototypes() -> None:
    scene = scene_of([[4, 1], [0, 7]], np.full((2, 2, 3), 5), [1])
    assert same(send(Frame(), scene), scene.uploads)
