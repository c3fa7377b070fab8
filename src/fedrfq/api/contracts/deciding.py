"""Contracts of what servers decide by: detectors and aggregation rules.

They are pure functions of integers, whatever the order in which uploads come, for any number of
clients. What claims to be `exact` decides the same bytes on any machine.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from fedrfq.api.contracts.contract import bounded, expect, read_only, same_bytes, whole
from fedrfq.api.contracts.elsewhere import differs_elsewhere
from fedrfq.federation import codec
from fedrfq.prototypes.fixed_point import LIMIT, MAX_VALUES, Globals, Ints, Uploads
from fedrfq.robust.centres import FULL
from fedrfq.robust.detectors import DETECTORS, Detector, Verdict
from fedrfq.robust.exactness import Part, decided, inexact
from fedrfq.robust.example_rounds import ONE, Clusters, flipped, nowhere, sent
from fedrfq.robust.rules import RULES
from fedrfq.robust.state import State

SHAPES = [(0, 3, 4), (1, 3, 4), (2, 1, 1), (5, 1, 4), (3, 10, 1), (4, 2, 0)]
# A state that has grown in every one of so many rounds has no bound.
_ROUNDS = 12


def _same_state(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(same_bytes(one[name], other[name]) for name in one)


def _same_verdict(one: Verdict, other: Verdict, order: Any = slice(None)) -> bool:
    """Return whether two verdicts are the same; `order` says which rows of the other are meant."""
    names = [field.name for field in fields(Verdict)]
    return all(same_bytes(getattr(one, name), getattr(other, name)[order]) for name in names)


def _fixed(uploads: Uploads, globals_: Globals, state: State) -> None:
    read_only(uploads.values_KJV, uploads.counts_KJ, globals_.values_JV, *state.values())


# Detectors


def judging_is_pure(name: str) -> None:
    """The same round gives the same verdict, and nothing that was given is changed."""
    detector: Detector = DETECTORS[name]()
    world = Clusters(0)
    state = detector.start(20)
    for _ in range(3):
        uploads = world.round()
        globals_ = world.globals_()
        _fixed(uploads, globals_, state)
        after, verdict = detector.judge(state, globals_, uploads)
        again, verdict_again = detector.judge(state, globals_, uploads)
        expect(_same_state(after, again), "asked again, it remembers something else")
        expect(_same_verdict(verdict, verdict_again), "asked again, its verdict is another")
        state = after


def verdicts_are_whole_numbers(name: str) -> None:
    """Verdicts are 64-bit integers in range, and each weight that is lost has a reason."""
    detector = DETECTORS[name]()
    uploads = flipped(Clusters(1).round(), [3, 4])
    state, verdict = detector.judge(detector.start(20), nowhere(uploads), uploads)
    whole("weight_KJ", verdict.weight_KJ, uploads.counts_KJ.shape)
    whole("reason_KJ", verdict.reason_KJ, uploads.counts_KJ.shape)
    whole("score_K", verdict.score_K, (len(uploads.clients),))
    expect(
        verdict.fits(uploads),
        f"weights must be 0 to {FULL} with a reason where they are below it: use Verdict.of_kept "
        "or Verdict.of_weights",
    )
    for row in np.flatnonzero((verdict.reason_KJ > 0).any(1)):
        expect(verdict.why(int(row)), f"client {row} counts for less, and no words say why")
    for key, array in state.items():
        expect(array.dtype == np.int64, f"the state's {key} must be int64, found {array.dtype}")


def the_order_of_clients_does_not_matter(name: str) -> None:
    """The same uploads in another order get the same verdicts, and leave the same memory."""
    detector = DETECTORS[name]()
    world = Clusters(2, spread=0.4)
    state = other = detector.start(20)
    for seed in range(5):
        uploads = world.round()
        order = np.random.default_rng(seed).permutation(20)
        shuffled = sent(uploads.values_KJV[order], uploads.counts_KJ[order], order.tolist())
        state, verdict = detector.judge(state, world.globals_(), uploads)
        other, permuted = detector.judge(other, world.globals_(), shuffled)
        expect(
            _same_verdict(permuted, verdict, order),
            "the verdict on a client depends on the order in which uploads came",
        )
        expect(_same_state(state, other), "what is remembered depends on the order of uploads")


def any_round_can_be_judged(name: str) -> None:
    """Rounds without clients, of one client, of one class or without values can be judged."""
    detector = DETECTORS[name]()
    for shape in SHAPES:
        uploads = sent(np.random.default_rng(0).integers(-ONE, ONE, shape))
        for known in (False, True):
            globals_ = Globals(np.full(shape[1], known), np.zeros(shape[1:], np.int64))
            _, verdict = detector.judge(detector.start(shape[0]), globals_, uploads)
            expect(
                len(verdict.kept_K) == shape[0],
                f"{shape[0]} clients sent something, and {len(verdict.kept_K)} were judged",
            )


def who_sent_nothing_is_kept(name: str) -> None:
    """A client without classes loses nothing, and a class may have no clients."""
    detector = DETECTORS[name]()
    values = np.array([[[ONE], [0], [0]], [[0], [0], [0]], [[ONE], [2 * ONE], [0]]], np.int64)
    uploads = sent(values, np.array([[10, 0, 0], [0, 0, 0], [10, 10, 0]], np.int64))
    _, verdict = detector.judge(detector.start(3), nowhere(uploads), uploads)
    expect(verdict.kept_K[1], "a client that sent nothing was dropped")


def the_largest_values_do_not_overflow(name: str) -> None:
    """Scores of the largest values that can be sent are not negative."""
    detector = DETECTORS[name]()
    values = LIMIT - 1 - np.random.default_rng(0).integers(0, 4096, (5, 2, MAX_VALUES))
    values[0] *= -1
    _, verdict = detector.judge(detector.start(5), nowhere(sent(values)), sent(values))
    expect(verdict.score_K.min() >= 0, "a score is negative: sums of squares pass 2⁶³")


def memory_is_bounded(name: str) -> None:
    """What a detector remembers does not grow with every round."""
    detector = DETECTORS[name]()
    world = Clusters(3)
    state = detector.start(20)
    sizes = []
    for _ in range(_ROUNDS):
        state, _ = detector.judge(state, world.globals_(), world.round())
        sizes.append(len(codec.encode_state(state)))
    bounded(sizes)


def detectors_are_exact_as_claimed(name: str) -> str | None:
    """A detector that claims to be exact uses integers alone, and decides the same elsewhere."""
    return _exact("detector", name, DETECTORS[name]())


# Rules


def combining_is_pure(name: str) -> None:
    """The same round gives the same centres, whole numbers, and nothing given is changed."""
    rule = RULES[name]
    world = Clusters(0)
    state = rule.start(10, 24)
    for _ in range(3):
        uploads = world.round()
        last = world.globals_()
        weight_KJ = _weights(uploads)
        _fixed(uploads, last, state)
        read_only(weight_KJ)
        after, centres_JV = rule.combine(state, last, uploads, weight_KJ)
        again, once_more_JV = rule.combine(state, last, uploads, weight_KJ)
        whole("the centres", centres_JV, (10, 24))
        expect(same_bytes(centres_JV, once_more_JV), "asked again, it finds other centres")
        expect(_same_state(after, again), "asked again, it remembers something else")
        state = after


def _weights(uploads: Uploads) -> Ints:
    """Return weights of uploads: all of it for most, a third for one, nothing for another."""
    weight_KJ: Ints = np.where(uploads.held_KJ, FULL, 0)
    weight_KJ[1:2] //= 3
    weight_KJ[2:3] = 0
    return weight_KJ


def the_order_of_uploads_does_not_matter(name: str) -> None:
    """The same uploads in another order have the same centres."""
    rule = RULES[name]
    uploads = Clusters(2, spread=0.4).round()
    order = np.random.default_rng(0).permutation(20)
    shuffled = sent(uploads.values_KJV[order], uploads.counts_KJ[order], order.tolist())
    weight_KJ = _weights(uploads)
    start = rule.start(10, 24)
    _, one_JV = rule.combine(start, nowhere(uploads), uploads, weight_KJ)
    _, other_JV = rule.combine(start, nowhere(uploads), shuffled, weight_KJ[order])
    expect(same_bytes(one_JV, other_JV), "the centres depend on the order in which uploads came")


def any_round_can_be_combined(name: str) -> None:
    """Rounds without clients, of one client, of one class or without values have centres."""
    rule = RULES[name]
    for shape in SHAPES:
        uploads = sent(np.random.default_rng(0).integers(-ONE, ONE, shape))
        start = rule.start(*shape[1:])
        _, centres_JV = rule.combine(start, nowhere(uploads), uploads, _weights(uploads))
        whole("the centres", centres_JV, shape[1:])


def the_largest_uploads_have_centres_in_range(name: str) -> None:
    """Of equal uploads, the largest that can be sent, the centre is no larger and no negative."""
    rule = RULES[name]
    values = np.full((5, 2, 3), LIMIT - 1, np.int64)
    uploads = sent(values)
    last = Globals(np.ones(2, np.bool_), values[0])
    _, centres_JV = rule.combine(rule.start(2, 3), last, uploads, _weights(uploads))
    low, high = int(centres_JV.min()), int(centres_JV.max())
    in_range = low >= 0 and high < LIMIT
    expect(in_range, f"all clients sent {LIMIT - 1}, and centres are {low} to {high}")


def rules_are_exact_as_claimed(name: str) -> str | None:
    """A rule that claims to be exact uses integers alone, and decides the same elsewhere."""
    return _exact("rule", name, RULES[name])


def _exact(kind: str, name: str, part: Part) -> str | None:
    if not part.exact:
        return "not claimed: for one trusted server only"
    why = inexact(part)
    expect(not why, why)
    results = decided(part)
    for order in ("F", "K"):
        expect(
            _all_same(results, decided(part, order=order)),
            "the result depends on how the uploads lie in memory",
        )
    expect(not differs_elsewhere(kind, name, results), "another process decides other bytes")
    return None


def _all_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(same_bytes, one, other))


DETECTOR_CHECKS = (
    judging_is_pure,
    verdicts_are_whole_numbers,
    the_order_of_clients_does_not_matter,
    any_round_can_be_judged,
    who_sent_nothing_is_kept,
    the_largest_values_do_not_overflow,
    memory_is_bounded,
    detectors_are_exact_as_claimed,
)
RULE_CHECKS = (
    combining_is_pure,
    the_order_of_uploads_does_not_matter,
    any_round_can_be_combined,
    the_largest_uploads_have_centres_in_range,
    rules_are_exact_as_claimed,
)
