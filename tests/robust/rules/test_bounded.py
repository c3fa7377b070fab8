"""How far an upload may pull its class, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.prototypes.noise_scale import NoiseScale
from fedrfq.robust.detectors.detector import FULL
from fedrfq.robust.distances import typical
from fedrfq.robust.rules.bounded import Bounded, limited
from support.judging import ONE, lines


def certified(places: list[int | None]) -> Globals:
    """Return global prototypes of one value."""
    present = np.array([place is not None for place in places])
    return Globals(present, np.array([[place or 0] for place in places], np.int64))


def combined(last: Globals, uploads: Uploads, centre: str = "weighted") -> list[int]:
    weight_KJ = np.where(uploads.held_KJ, FULL, 0)
    found: Ints = Bounded(centre).combine({}, last, uploads, weight_KJ)[1]
    return found[:, 0].tolist()


def test_what_is_within_the_limits_is_the_plain_mean() -> None:
    uploads = lines([[-ONE, 9 * ONE], [ONE // 2, 8 * ONE - ONE // 2]])
    assert combined(certified([0, 8 * ONE]), uploads) == [-ONE // 4, 8 * ONE + ONE // 4]


def test_an_upload_goes_half_of_the_way_to_another_class_at_most() -> None:
    """What asks for a half gets it; a swap asks for all of the way, and gets a quarter."""
    last = certified([0, 8 * ONE])
    for asked, got in ((2, 2), (4, 4), (8, 2)):
        uploads = lines([[int(asked * ONE), int((8 - asked) * ONE)]])
        assert combined(last, uploads) == [int(got * ONE), int((8 - got) * ONE)]


def test_toward_another_class_it_may_go_as_far_as_the_federation_says() -> None:
    """A quarter of the way is whole then, and a swap gets 1/16."""
    last = certified([0, 8 * ONE])
    for asked, got in ((2, 2), (4, 1), (8, 1 / 2)):
        uploads = lines([[asked * ONE, (8 - asked) * ONE]])
        weight_KJ = np.full((1, 2), FULL)
        found = Bounded(toward=25).combine({}, last, uploads, weight_KJ)[1]
        assert found[:, 0].tolist() == [got * ONE, (8 - got) * ONE]


@pytest.mark.parametrize(("place", "pull"), [(2, 2.0), (4, 2.0), (16, 0.08)])
def test_away_from_all_others_a_step_is_the_limit(place: int, pull: float) -> None:
    """1 is typical, so a step is 2. From -1, where the middle is, 2 is typical, and 15 is alone."""
    uploads = lines([[-ONE, None], [ONE, None], [-place * ONE, None]])
    expected = -int(pull * ONE)
    assert combined(certified([0, 8 * ONE]), uploads)[0] == pytest.approx(expected / 3, abs=20)


def test_two_classes_come_no_closer_than_half_the_usual_distance() -> None:
    """Nearest neighbours are 2, 2 and 8 apart, so 1 is left to classes 0 and 1 for ever.

    Half of the 2 between them is still free. At 1 nothing is.
    """
    assert combined(certified([0, 2 * ONE, 10 * ONE]), lines([[ONE, None, None]]))[0] == ONE
    last = certified([0, ONE, 4 * ONE, 8 * ONE, 12 * ONE])
    # The others are as far from where their classes were, away from all rivals or near to none.
    others = [[None] * j + [(4 * j - 4) * ONE + ONE // 8] + [None] * (4 - j) for j in (2, 3, 4)]
    assert combined(last, lines([[ONE // 8, None, None, None, None], *others]))[0] == 0


def test_a_client_has_one_vote_on_what_is_typical() -> None:
    """One client claims three classes, each 9 off; the others send one, 1 to 3 off."""
    distances = np.array([9, 9, 9, 1, 2, 3], np.int64)
    assert typical(distances, np.array([7, 7, 7, 0, 1, 2])) == 2
    assert typical(distances[:0], distances[:0]) == 0


def test_a_class_without_a_certified_centre_starts_from_its_median() -> None:
    """Of 0, 1 and 3 that is 1; what is typical is 1, so 3 counts in full, and 33 hardly."""
    assert combined(certified([None]), lines([[0], [ONE], [3 * ONE]])) == [4 * ONE // 3]
    assert combined(certified([None]), lines([[0], [ONE], [33 * ONE]])) == [2 * ONE // 3]


def test_who_has_no_weight_sets_no_limit_and_no_start() -> None:
    uploads = lines([[0], [ONE], [60 * ONE], [60 * ONE]])
    weight_KJ = np.array([[FULL], [FULL], [0], [0]])
    found = Bounded().combine({}, certified([None]), uploads, weight_KJ)[1]
    assert found.tolist() == [[ONE // 2]]


def test_it_limits_any_rule() -> None:
    """The median of 8, 8 and 1, of which 2, 2 and 1 are left."""
    uploads = lines([[8 * ONE, None], [8 * ONE, None], [ONE, None]])
    assert combined(certified([0, 8 * ONE]), uploads, "median")[0] == 2 * ONE


@pytest.mark.parametrize("sign", [1, -1])
def test_a_pull_is_shortened_alike_on_both_sides(sign: int) -> None:
    """To a step of 2, as 1 is typical from the last centre, and from the middle."""
    uploads = lines([[sign * ONE], [-sign * ONE], [sign * 3 * ONE]])
    near = limited(certified([0]), uploads, uploads.held_KJ)
    assert near.values_KJV[2, 0, 0] == pytest.approx(sign * 2 * ONE, rel=1e-3)


def test_what_all_have_left_starts_afresh() -> None:
    """The last centre of class 0 is a lie. Its three honest holders send 0 and 1 on either side."""
    away = lines([[-ONE, None], [0, None], [ONE, None], *[[None, 8 * ONE + i] for i in range(9)]])
    last = certified([50 * ONE, 8 * ONE])
    assert combined(last, away)[0] == 0


def test_what_somebody_holds_back_comes_home_by_a_step_a_round() -> None:
    """A step is 2, as most clients send class 1 and are 1 off."""
    others = [[None, (80 + (-1) ** i) * ONE] for i in range(12)]
    held_back = lines([[-ONE, None], [0, None], [ONE, None], [50 * ONE, None], *others])
    place = 50 * ONE
    for _ in range(30):
        (now, _) = combined(certified([place, 80 * ONE]), held_back)
        assert now < place - ONE or abs(now) <= ONE
        place = now
    assert abs(place) <= ONE


def test_who_claims_classes_of_its_own_has_one_vote_on_their_room() -> None:
    """One client claims three classes that are far from all others.

    Their neighbours are 40 apart and those of the classes that honest clients hold 4, so 2 is left
    between these.
    """
    last = certified([0, 4 * ONE, 8 * ONE, 80 * ONE, 120 * ONE, 160 * ONE, 200 * ONE])
    honest = [[ONE // 2, 4 * ONE, 8 * ONE] + [None] * 4 for _ in range(3)]
    liar = [None] * 3 + [80 * ONE, 120 * ONE, 160 * ONE, 200 * ONE]
    assert combined(last, lines([*honest, liar]))[0] == ONE // 2


def noisy(values: list[int], counts: list[int], usual: int) -> Uploads:
    """Return uploads of one class, with noise that moves a mean of one sample by this much."""
    sent = lines([[value * ONE] for value in values])
    # One value, and a count that hardly any noise reaches.
    scale = NoiseScale(ONE, 2**40, usual * ONE)
    return replace(sent, counts_KJ=np.array([[count] for count in counts]), noise=scale)


def test_who_has_few_samples_does_not_set_the_middle() -> None:
    """A liar with a sample sends 90, an honest client with thirty sends 0; elsewhere 1 is usual."""
    sent = lines([[90 * ONE, None], [0, 20 * ONE], [None, 21 * ONE], [None, 19 * ONE]])
    counts_KJ = np.where(sent.held_KJ, 30, 0)
    counts_KJ[0, 0] = 1
    assert combined(certified([None, None]), replace(sent, counts_KJ=counts_KJ))[0] < ONE // 10


def test_who_claims_very_many_samples_does_not_set_the_middle() -> None:
    """A liar with a million samples sends 90, two honest clients with thirty send 0."""
    sent = lines([[90 * ONE, None], [0, 20 * ONE], [0, 21 * ONE], [None, 19 * ONE]])
    counts_KJ = np.where(sent.held_KJ, 30, 0)
    counts_KJ[0, 0] = 10**6
    near = limited(certified([None, None]), replace(sent, counts_KJ=counts_KJ), sent.held_KJ)
    assert near.values_KJV[:3, 0, 0].tolist() == [pytest.approx(0, abs=ONE // 10), 0, 0]


def test_who_has_few_samples_may_go_as_far_as_noise_explains() -> None:
    """Noise moves a mean of one sample by 8, so with that of two steps of 1 it may go by 18."""
    start = certified([0])
    for place, share in ((18, 1), (36, 16)):
        sent = noisy([1, -1, place], [100, 100, 1], usual=8)
        near = limited(start, sent, sent.held_KJ).values_KJV[:, 0, 0]
        assert near.tolist() == [ONE, -ONE, pytest.approx(place * ONE / share, rel=0.03)]
    # What noise explains is not typical: all three go their step and no farther.
    sent = noisy([8, 8, 16], [1, 1, 10**6], usual=8)
    assert limited(start, sent, sent.held_KJ).values_KJV[2, 0, 0] < ONE
    # One of a hundred samples may not.
    sent = noisy([1, -1, 18], [100, 100, 100], usual=8)
    assert limited(start, sent, sent.held_KJ).values_KJV[2, 0, 0] < ONE // 10


def test_inputs_are_left_alone() -> None:
    uploads = lines([[8 * ONE, 0]])
    combined(certified([0, 8 * ONE]), uploads)
    assert uploads.values_KJV[0, 0, 0] == 8 * ONE
