"""Rounds of uploads for detectors, hand-made or drawn about class centres, with lies or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import Globals, Ints, Uploads
from fedrfq.robust.detectors import Detector, State, Verdict
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.robust.example_rounds import ONE, Clusters, nowhere, sent


def lines(rows: Sequence[Sequence[int | None]]) -> Uploads:
    """Return uploads of one value per class; None is a class that the client does not hold."""
    values = np.array([[[v or 0] for v in row] for row in rows], np.int64)
    return sent(values, np.array([[0 if v is None else 10 for v in row] for row in rows], np.int64))


def ruling(kept: Sequence[bool], scores: Sequence[int], classes: int = 1) -> Verdict:
    """Return the verdict on clients that sent all classes: some are kept, the others dropped."""
    everything = np.ones((len(kept), classes), np.int64)
    uploads = Uploads(tuple(range(len(kept))), everything, everything[..., None])
    return Verdict.of_kept(uploads, np.array(kept, np.bool_), np.array(scores, np.int64))


def judged(detector: Detector, uploads: Uploads) -> Verdict:
    state = detector.start(max(uploads.clients, default=0) + 1)
    return detector.judge(state, nowhere(uploads), uploads)[1]


def dropped(detector: Detector, uploads: Uploads) -> list[int]:
    return np.flatnonzero(~judged(detector, uploads).kept_K).tolist()


def same(first: State, second: State) -> bool:
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


# Lies


Lie = Callable[[Ints, Ints, np.random.Generator], NDArray[np.float64] | Ints]


def swap(own_JV: Ints, held: Ints, rng: np.random.Generator) -> Ints:
    lie = own_JV.copy()
    lie[held] = own_JV[np.roll(held, 1)]
    return lie


def one_class(own_JV: Ints, held: Ints, rng: np.random.Generator) -> Ints:
    lie = own_JV.copy()
    lie[held[0]] *= -1
    return lie


LIES: dict[str, Lie] = {
    "sign flip": lambda own_JV, held, rng: -own_JV,
    "scaling": lambda own_JV, held, rng: 5 * own_JV,
    "noise": lambda own_JV, held, rng: own_JV + ONE * rng.standard_normal(own_JV.shape),
    "random": lambda own_JV, held, rng: ONE * rng.uniform(-1, 1, own_JV.shape),
    "zeros": lambda own_JV, held, rng: 0 * own_JV,
    "class swap": swap,
    "sign flip in one class": one_class,
}


def with_lies(
    uploads: Uploads, liars: Sequence[int], lie: Lie, rng: np.random.Generator
) -> Uploads:
    values = uploads.values_KJV.copy()
    for k in liars:
        held = np.flatnonzero(uploads.counts_KJ[k])
        values[k] = np.rint(lie(values[k], held, rng)).astype(np.int64)
    return replace(uploads, values_KJV=values)


def after_rounds(
    world: Clusters, rounds: int, liars: Sequence[int] = (), lie: Lie = swap
) -> tuple[State, list[set[int]]]:
    """Return the detector's state, and whom it dropped in each round, given honest globals."""
    detector = AdaptiveDetector()
    state = detector.start(20)
    gone = []
    for number in range(rounds):
        globals_ = Globals.none(10, 24)
        if number:
            globals_ = world.globals_()
        uploads = with_lies(world.round(), liars, lie, world.rng)
        state, verdict = detector.judge(state, globals_, uploads)
        gone.append(set(np.flatnonzero(~verdict.kept_K).tolist()))
    return state, gone
