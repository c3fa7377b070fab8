"""Scenes on which attacks are tried: a round of uploads of which some rows are the attackers'."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import default_rng

from fedrfq.api.contracts.contract import read_only
from fedrfq.prototypes.fixed_point import FULL_PRECISION, Globals, Ints, Precision, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.attacks import Foreseen, Scene
from fedrfq.robust.detectors import Detector
from fedrfq.robust.detectors.none import NoDetection
from fedrfq.robust.example_rounds import ONE


def integers(rows: Any) -> Ints:
    """Return rows as an array of 64-bit integers."""
    return np.array(rows, np.int64)


def scene_of(
    counts_KJ: Any,
    values_KJV: Any,
    malicious: Any,
    globals_: Globals | None = None,
    detector: Detector | None = None,
) -> Scene:
    """Return a scene of the second round whose arrays are read-only.

    The servers' rule is the weighted mean.
    """
    counts = integers(counts_KJ)
    values = integers(values_KJV)
    mask = np.isin(np.arange(len(counts)), malicious)
    known = globals_ or Globals.none(*values.shape[1:])
    read_only(counts, values, mask, known.present_J, known.values_JV)
    asked = detector or NoDetection()
    state = {"seen": integers(1)}

    def foresee(sent: Uploads) -> Foreseen:
        decision = decide(asked, "weighted", state, known, sent)
        verdict = decision.verdict
        return Foreseen(verdict.weight_KJ, verdict.kept_K, verdict.score_K, decision.globals_)

    return Scene(
        uploads=Uploads(tuple(range(10, 10 + len(counts))), counts, values),
        malicious_K=mask,
        globals_=known,
        detector=asked,
        state=state,
        rule="weighted",
        round=2,
        classes=values.shape[1],
        foresee=foresee,
    )


def random_scene(
    seed: int = 0,
    clients: int = 9,
    classes: int = 5,
    malicious: Any = (1, 4, 8),
    precision: Precision = FULL_PRECISION,
) -> Scene:
    """Return classes around centres of their own.

    All attackers hold two or more of them, most others hold all.
    """
    rng = default_rng(seed)
    held_KJ = rng.random((clients, classes)) < 0.8
    held_KJ[:, :2] = True
    centres_JV = rng.normal(0, 2 * ONE, (classes, 6))
    values_KJV = np.rint(centres_JV + rng.normal(0, ONE / 4, (clients, classes, 6))).astype(
        np.int64
    )
    values_KJV = precision.rounded(values_KJV) * held_KJ[..., None]
    globals_ = Globals(np.ones(classes, np.bool_), np.rint(centres_JV).astype(np.int64))
    scene = scene_of(
        held_KJ * rng.integers(1, 50, (clients, classes)), values_KJV, malicious, globals_
    )
    return replace(scene, uploads=replace(scene.uploads, precision=precision))
