"""Scenes of an attack, handmade or drawn, and the attackers' uploads, checked."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import default_rng
from numpy.typing import NDArray

from fedrfq.prototypes.fixed_point import FULL_PRECISION, Globals, Precision, Uploads
from fedrfq.robust.aggregation import decide
from fedrfq.robust.attacks import Attack, Foreseen, Scene
from fedrfq.robust.attacks.backdoor import Backdoor
from fedrfq.robust.attacks.frame import Frame
from fedrfq.robust.attacks.groups import TwoGroups
from fedrfq.robust.attacks.mimic import Mimic
from fedrfq.robust.attacks.optimal_frame import OptimalFrame
from fedrfq.robust.attacks.sole import Sole
from fedrfq.robust.detectors.detector import Detector, State, Verdict
from fedrfq.robust.detectors.none import NoDetection

ONE = 2**14
# Attacks that change which classes their clients send.
CLAIMING = Mimic | Frame | OptimalFrame | Backdoor | Sole | TwoGroups


def array(rows: Any) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


@dataclass(frozen=True)
class Near(Detector):
    """Keep clients whose values are all within `reach` of the global prototypes.

    It counts how often it is asked.
    """

    exact = True
    reach: int = ONE
    asked: list[Uploads] = field(default_factory=list)

    def judge(self, state: State, globals_: Globals, uploads: Uploads) -> tuple[State, Verdict]:
        self.asked.append(uploads)
        assert state == {"seen": 1}
        far_KJ = np.abs(uploads.values_KJV - globals_.values_JV).max(-1)
        worst_K = np.where(uploads.held_KJ, far_KJ, 0).max(1, initial=0)
        return state, Verdict.of_kept(uploads, worst_K <= self.reach, worst_K)


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
    counts = array(counts_KJ)
    values = array(values_KJV)
    mask = np.isin(np.arange(len(counts)), malicious)
    globals_ = globals_ or Globals.none(*values.shape[1:])
    for each in (counts, values, mask, globals_.present_J, globals_.values_JV):
        each.setflags(write=False)
    clients = tuple(range(10, 10 + len(counts)))
    known = globals_
    asked = detector or NoDetection()
    state = {"seen": array(1)}

    def foresee(sent: Uploads) -> Foreseen:
        decision = decide(asked, "weighted", state, known, sent)
        return Foreseen(
            decision.verdict.weight_KJ,
            decision.verdict.kept_K,
            decision.verdict.score_K,
            decision.globals_,
        )

    return Scene(
        uploads=Uploads(clients, counts, values),
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


def same(one: Uploads, other: Uploads) -> bool:
    pairs = [(one.counts_KJ, other.counts_KJ), (one.values_KJV, other.values_KJV)]
    return one.clients == other.clients and all(
        a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs
    )


def send(attack: Attack, scene: Scene, seed: int = 7) -> Uploads:
    """Return what is sent by attackers without memories, checked as `remembering` does."""
    return remembering(attack, scene, {}, seed)[0]


def remembering(attack: Attack, scene: Scene, state: State, seed: int = 7) -> tuple[Uploads, State]:
    """Return what is sent and remembered, after checking what must hold for every attack."""
    before = {name: known.tobytes() for name, known in state.items()}
    sent, after = attack.corrupt(scene, state, default_rng(seed))
    assert {name: known.tobytes() for name, known in state.items()} == before
    again, after_again = attack.corrupt(scene, state, default_rng(seed))
    assert same(sent, again)
    assert {name: known.tobytes() for name, known in after.items()} == {
        name: known.tobytes() for name, known in after_again.items()
    }
    assert all(known.dtype == np.int64 for known in after.values())
    assert same(sent.only(~scene.malicious_K), scene.honest)
    assert sent.counts_KJ.dtype == sent.values_KJV.dtype == np.int64
    assert (sent.clients, sent.precision, sent.refused) == (
        scene.uploads.clients,
        scene.uploads.precision,
        {},
    )
    assert sent.checked().refused == {}
    assert not (sent.values_KJV % sent.precision.step).any()
    if not isinstance(attack, CLAIMING):
        assert np.array_equal(sent.held_KJ, scene.uploads.held_KJ)
        assert np.array_equal(
            sent.values_KJV[~sent.held_KJ], scene.uploads.values_KJV[~sent.held_KJ]
        )
    return sent, after
