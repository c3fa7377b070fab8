"""Attacks that remember, aim at a class, or are made of two, each one's rule by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrfq.errors import UserError
from fedrfq.prototypes.fixed_point import LIMIT, Globals
from fedrfq.robust.attacks import ATTACKS, Scene
from fedrfq.robust.attacks.attack import MAX_STRENGTH
from fedrfq.robust.attacks.backdoor import Backdoor
from fedrfq.robust.attacks.by_name import inner_attack
from fedrfq.robust.attacks.capture import Capture
from fedrfq.robust.attacks.drift import Drift
from fedrfq.robust.attacks.groups import TwoGroups
from fedrfq.robust.attacks.inflate import Inflate
from fedrfq.robust.attacks.scale import Scale
from fedrfq.robust.attacks.sign_flip import SignFlip
from fedrfq.robust.attacks.sleeper import Sleeper
from fedrfq.robust.attacks.sole import Sole
from fedrfq.robust.detectors.detector import State
from support.scenes import Near, array, random_scene, remembering, same, scene_of, send

CENTRES = Globals(np.ones(2, np.bool_), array([[0], [1000]]))


def two_classes(reach: int, malicious: Any = (1, 2)) -> Scene:
    """One honest client at the global prototypes, and two attackers."""
    values = [[[0], [1000]], [[1], [1001]], [[2], [1002]]]
    return scene_of(np.ones((3, 2)), values, malicious, CENTRES, Near(reach=reach))


# Drift


def drifting(scene: Scene, rounds: int, strength: float) -> list[int]:
    """Return the first value that an attacker sends in each round, of class 0."""
    state: State = {}
    ways = []
    for _ in range(rounds):
        sent, state = remembering(Drift(strength=strength), scene, state)
        assert sent.values_KJV[1, 1, 0] == 1000 - sent.values_KJV[1, 0, 0]
        ways.append(int(sent.values_KJV[1, 0, 0]))
    return ways


def test_drift_goes_a_step_a_round_and_no_farther_than_the_other_class() -> None:
    assert drifting(two_classes(LIMIT), 6, 0.25) == [250, 500, 750, 1000, 1000, 1000]
    assert drifting(two_classes(LIMIT), 4, 0.4) == [400, 800, 1000, 1000]


def test_drift_steps_back_where_it_is_dropped() -> None:
    assert drifting(two_classes(600), 7, 0.25) == [250, 500, 750, 500, 750, 500, 750]
    assert drifting(two_classes(-1), 3, 0.25) == [250, 250, 250]


def test_drift_that_has_arrived_steps_back_at_once() -> None:
    state: State = {}
    for _ in range(9):
        _, state = remembering(Drift(strength=0.25), two_classes(LIMIT), state)
    ways = []
    for _ in range(2):
        sent, state = remembering(Drift(strength=0.25), two_classes(900), state)
        ways.append(int(sent.values_KJV[1, 0, 0]))
    assert ways == [1000, 750]


def test_drift_forgets_nothing_while_its_clients_are_away() -> None:
    state = {"steps": array(3)}
    assert remembering(Drift(), two_classes(LIMIT, ()), state)[1] == state


# Capturing


def test_who_captures_claims_every_class_at_one_place_and_then_is_honest() -> None:
    """Class 1 is at 1000, held by the honest client; the attacker holds class 0 alone."""
    first = scene_of([[0, 4], [3, 0]], [[[0], [1000]], [[7], [0]]], (1,))
    later = scene_of([[0, 4], [3, 0]], [[[0], [500]], [[8], [0]]], (1,))
    attack = Capture(strength=2.0, lies=2)
    sent, state = remembering(attack, first, {})
    assert sent.values_KJV[1, :, 0].tolist() == [7, -2000]
    assert sent.counts_KJ[1].tolist() == [3, 3]
    sent, state = remembering(attack, later, state)
    assert sent.values_KJV[1, :, 0].tolist() == [8, -2000]
    sent, state = remembering(attack, later, state)
    assert sent == later.uploads


def test_who_captures_lies_once_at_least() -> None:
    with pytest.raises(UserError, match=r"attack\.lies must be 1 or more, not 0"):
        Capture(lies=0)


# Sleeping


def flipped_rounds(attack: Sleeper, scene: Scene, rounds: int) -> list[bool]:
    """Return in which rounds attackers send something else than an honest client would."""
    state: State = {}
    found = []
    for _ in range(rounds):
        sent, state = remembering(attack, scene, state)
        found.append(not same(sent, scene.uploads))
    return found


def test_sleepers_wake_and_go_on_until_they_are_found() -> None:
    attack = Sleeper(sleep=2, then="sign-flip")
    assert flipped_rounds(attack, two_classes(LIMIT), 5) == [False, False, True, True, True]
    found = flipped_rounds(attack, two_classes(600), 7)
    assert found == [False, False, True, False, False, True, False]
    assert flipped_rounds(replace(attack, sleep=0), two_classes(600), 2) == [True, True]


def test_sleepers_wake_to_an_attack_that_remembers() -> None:
    attack = Sleeper(sleep=1, then="drift", strength=5.0)
    state: State = {}
    ways = []
    for _ in range(4):
        sent, state = remembering(attack, two_classes(LIMIT), state)
        ways.append(int(sent.values_KJV[1, 0, 0]))
    assert ways == [1, 250, 500, 750]
    assert {name: int(known) for name, known in state.items()} == {"asleep": 0, "then/steps": 3}


def test_sleeping_keeps_what_the_other_attack_remembers() -> None:
    state = {"asleep": array(2), "then/steps": array(7)}
    _, after = remembering(Sleeper(then="drift"), two_classes(LIMIT), state)
    assert {name: int(known) for name, known in after.items()} == {"asleep": 1, "then/steps": 7}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sleeper(sleep=-1), "attack.sleep must be 0 or more, not -1"),
        (lambda: Sleeper(then="label-flip"), "attack.then must be an attack that changes uploads"),
        (lambda: Sleeper(then="swop"), "did you mean"),
        (lambda: TwoGroups(first="none"), "attack.first must be"),
        (lambda: TwoGroups(second="?"), "attack.second must be"),
        (lambda: Backdoor(victim=-2), "attack.victim must be -1 or more"),
        (lambda: Backdoor(target=-2), "attack.target must be -1 or more"),
        (lambda: Sole(victim=-2), "attack.victim must be -1 or more"),
    ],
)
def test_wrong_options_are_refused(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


# Two groups


def test_each_group_makes_its_own_attack() -> None:
    scene = random_scene(malicious=(1, 4, 8))
    sent = send(TwoGroups(first="sign-flip", second="scale", strength=2.0), scene)
    flipped = send(SignFlip(strength=2.0), scene)
    scaled = send(Scale(strength=10.0), scene)
    for row, expected in ((1, flipped), (4, scaled), (8, flipped)):
        assert np.array_equal(sent.values_KJV[row], expected.values_KJV[row])


def test_groups_claim_what_their_attacks_claim() -> None:
    scene = random_scene(malicious=(1, 4))
    sent = send(TwoGroups(first="inflate", second="scale"), scene)
    assert np.array_equal(sent.counts_KJ[1], np.minimum(1000 * scene.uploads.counts_KJ[1], 2**20))
    assert np.array_equal(sent.counts_KJ[4], scene.uploads.counts_KJ[4])


def test_no_factor_makes_an_attack_stronger_than_attacks_may_be() -> None:
    assert inner_attack("key", "inflate", 0.5) == Inflate(strength=500.0)
    assert inner_attack("key", "inflate", MAX_STRENGTH) == Inflate(strength=MAX_STRENGTH)


def test_a_group_takes_the_others_for_honest() -> None:
    values = [[[10]], [[20]], [[60]]]
    sent = send(TwoGroups(first="ipm", second="ipm"), scene_of(np.ones((3, 1)), values, [1, 2]))
    assert sent.values_KJV[:, 0, 0].tolist() == [10, -35, -15]


def test_groups_remember_who_is_in_which() -> None:
    """Clients 11 and 14 are there first; then 11 is away and 18 joins the smaller group."""
    attack = TwoGroups(first="sign-flip", second="scale")
    _, state = remembering(attack, random_scene(malicious=(1, 4)), {})
    assert {name: known.tolist() for name, known in state.items()} == {
        "first": [11],
        "second": [14],
    }
    scene = random_scene(malicious=(4, 8))
    sent, state = remembering(attack, scene, state)
    assert {name: known.tolist() for name, known in state.items()} == {
        "first": [11, 18],
        "second": [14],
    }
    assert np.array_equal(sent.values_KJV[8], send(SignFlip(), scene).values_KJV[8])
    assert np.array_equal(sent.values_KJV[4], send(Scale(), scene).values_KJV[4])


def test_groups_remember_what_their_attacks_do() -> None:
    attack = TwoGroups(first="drift", second="drift")
    state: State = {}
    for _ in range(2):
        sent, state = remembering(attack, two_classes(LIMIT), state)
    assert {"first/steps", "second/steps"} < state.keys()
    assert int(state["first/steps"]) == int(state["second/steps"]) == 2
    assert send(attack, two_classes(LIMIT)).values_KJV[1, 0, 0] < sent.values_KJV[1, 0, 0]


# One class alone

THREE = Globals(np.ones(3, np.bool_), array([[0], [1000], [9000]]))


def three_classes(malicious: Any = (2, 3), globals_: Globals = THREE) -> Scene:
    """Class 1 has the most honest holders, and nobody honest holds class 2."""
    counts = [[3, 4, 0], [0, 6, 0], [0, 0, 5], [7, 1, 0]]
    values = [[[0], [900], [0]], [[0], [1100], [0]], [[0], [0], [9000]], [[5], [950], [0]]]
    return scene_of(counts, values, malicious, globals_)


def test_a_backdoor_moves_one_class_and_all_attackers_claim_it() -> None:
    sent = send(Backdoor(), three_classes())
    assert sent.counts_KJ[2:].tolist() == [[0, 5, 5], [7, 7, 0]]
    assert sent.values_KJV[2:].tolist() == [[[0], [0], [9000]], [[5], [0], [0]]]
    half = send(Backdoor(strength=0.5, victim=1, target=2), three_classes())
    assert half.values_KJV[2:, 1, 0].tolist() == [5000, 5000]


def test_a_backdoor_needs_both_classes_to_be_known() -> None:
    unknown = Globals(np.array([True, True, False]), THREE.values_JV)
    for attack in (Backdoor(victim=2, target=0), Backdoor(victim=0, target=2)):
        scene = three_classes(globals_=unknown)
        assert same(send(attack, scene), scene.uploads)


@pytest.mark.parametrize("options", [{"victim": 3}, {"target": 3}])
def test_a_backdoor_to_a_class_that_is_not_there_is_a_mistake(options: dict[str, int]) -> None:
    with pytest.raises(UserError, match="is 3, but the data has the classes 0 to 2"):
        send(Backdoor(**options), three_classes())


def test_rows_after_the_classes_are_no_victims() -> None:
    """Everybody sends second moments on a public map; here the second row is one."""
    scene = replace(three_classes(), classes=1)
    assert same(send(Backdoor(), scene), scene.uploads)
    assert same(send(Sole(), scene), scene.uploads)


def test_a_sole_holder_puts_its_class_on_another() -> None:
    sent = send(Sole(), three_classes())
    assert sent.counts_KJ.tolist() == [[3, 4, 0], [0, 6, 0], [0, 0, 5], [7, 1, 0]]
    assert sent.values_KJV[2:].tolist() == [[[0], [0], [1000]], [[5], [950], [0]]]
    chosen = send(Sole(victim=0), three_classes())
    assert chosen.values_KJV[2, 2, 0] == 0


def test_a_sole_holder_claims_a_class_it_does_not_have_and_others_give_it_up() -> None:
    scene = three_classes()
    swapped = replace(scene, uploads=replace(scene.uploads, clients=(10, 11, 13, 12)))
    sent = send(Sole(), swapped)
    assert sent.counts_KJ[2:].tolist() == [[0, 0, 0], [7, 1, 7]]
    assert sent.values_KJV[2:].tolist() == [[[0], [0], [0]], [[5], [950], [1000]]]


def test_sole_holders_share_the_classes_that_nobody_holds() -> None:
    counts = [[4, 0, 0], [2, 0, 0], [3, 0, 0]]
    values = [[[50], [0], [0]], [[1], [0], [0]], [[2], [0], [0]]]
    sent = send(Sole(), scene_of(counts, values, [1, 2]))
    assert sent.counts_KJ.tolist() == [[4, 0, 0], [2, 2, 0], [3, 0, 3]]
    assert sent.values_KJV[1:].tolist() == [[[1], [50], [0]], [[2], [0], [50]]]


def test_sole_holders_are_honest_while_nobody_has_sent_the_victim() -> None:
    counts = [[4, 0, 0], [2, 3, 0]]
    scene = scene_of(counts, [[[50], [0], [0]], [[1], [7], [0]]], [1])
    assert same(send(Sole(victim=1), scene), scene.uploads)


def test_a_victim_is_not_put_on_itself() -> None:
    """Nobody honest holds class 2, but it has a global prototype: it can be the victim."""
    scene = three_classes(globals_=Globals(np.ones(3, np.bool_), array([[0], [1000], [8000]])))
    assert same(send(Sole(victim=2), scene), scene.uploads)


def test_nobody_is_a_sole_holder_where_every_class_is_held() -> None:
    scene = random_scene()
    assert same(send(Sole(), scene), scene.uploads)


# Registered from outside


def test_a_registered_attack_can_be_a_part_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATTACKS, "flip", SignFlip)
    scene = two_classes(LIMIT)
    assert same(send(Sleeper(sleep=0, then="flip"), scene), send(SignFlip(), scene))
