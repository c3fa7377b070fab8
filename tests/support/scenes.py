"""Scenes of an attack, handmade or drawn, and the attackers' uploads, checked."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fedrfq.api.contracts.attacks import attacked
from fedrfq.api.contracts.attacks import same_uploads as same
from fedrfq.api.contracts.example_scenes import integers as array
from fedrfq.api.contracts.example_scenes import random_scene, scene_of
from fedrfq.prototypes.fixed_point import Globals, Uploads
from fedrfq.robust.attacks import Attack, Scene
from fedrfq.robust.attacks.backdoor import Backdoor
from fedrfq.robust.attacks.capture import Capture
from fedrfq.robust.attacks.frame import Frame
from fedrfq.robust.attacks.groups import TwoGroups
from fedrfq.robust.attacks.mimic import Mimic
from fedrfq.robust.attacks.optimal_frame import OptimalFrame
from fedrfq.robust.attacks.sole import Sole
from fedrfq.robust.detectors.detector import Detector, State, Verdict
from fedrfq.robust.example_rounds import ONE

__all__ = [
    "CLAIMING",
    "ONE",
    "Near",
    "array",
    "random_scene",
    "remembering",
    "same",
    "scene_of",
    "send",
]
# Attacks that change which classes their clients send.
CLAIMING = Mimic | Frame | OptimalFrame | Backdoor | Capture | Sole | TwoGroups


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


def send(attack: Attack, scene: Scene, seed: int = 7) -> Uploads:
    """Return what is sent by attackers without memories, checked as `remembering` does."""
    return remembering(attack, scene, {}, seed)[0]


def remembering(attack: Attack, scene: Scene, state: State, seed: int = 7) -> tuple[Uploads, State]:
    """Return what is sent and remembered, after checking what must hold for every attack."""
    sent, after = attacked(attack, scene, state, seed)
    assert sent.refused == {}
    if not isinstance(attack, CLAIMING):
        assert np.array_equal(sent.held_KJ, scene.uploads.held_KJ)
        assert np.array_equal(
            sent.values_KJV[~sent.held_KJ], scene.uploads.values_KJV[~sent.held_KJ]
        )
    return sent, after
