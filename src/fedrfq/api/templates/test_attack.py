"""Tests of example-attack: python -m pytest test_example_attack.py."""

from pathlib import Path

import numpy as np

from fedrfq.api.contracts import check_plugin
from fedrfq.api.contracts.example_scenes import random_scene
from fedrfq.robust.attacks import ATTACKS

FILE = Path(__file__).with_name("example_attack.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_it_drifts() -> None:
    check_plugin(FILE)
    attack = ATTACKS["example-attack"](clients=3, strength=0.25)
    scene = random_scene()
    first, state = attack.corrupt(scene, {}, np.random.default_rng(0))
    second, state = attack.corrupt(scene, state, np.random.default_rng(0))
    moved = second.values_KJV - first.values_KJV
    # A quarter of 2**14, for the attackers (clients 1, 4 and 8) and nobody else.
    assert moved[1, 0].tolist() == [2**12] * 6
    assert not moved[~scene.malicious_K].any()
    assert int(state["rounds"]) == 2
