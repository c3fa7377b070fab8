"""The examples that the guides print: they keep the contracts that the guides name."""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedrfq.prototypes.fixed_point import Globals, Precision
from fedrfq.robust.detectors import FULL
from support.judging import Clusters, sent
from support.paths import ROOT
from support.scenes import random_scene, send


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Any:
    """Return the class of that name that a block of a guide defines, made with its defaults."""
    guide, name = request.param
    text = (ROOT / "docs" / "guides" / guide).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (block,) = [block for block in blocks if f"class {name}(" in block]
    # Dataclasses look for their module by its name.
    module = ModuleType("guide_example")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # Tried on its own: nothing is registered for other tests.
    monkeypatch.setattr("fedrfq.plugins.register", lambda kind, name: lambda value: value)
    exec(block, vars(module))
    return vars(module)[name]()


@pytest.mark.parametrize("example", [("own-attack.md", "Shift")], indirect=True)
@pytest.mark.parametrize("bits", [8, 16, 24])
def test_the_attack_changes_what_attackers_send(example: Any, bits: int) -> None:
    scene = random_scene(precision=Precision(bits))
    changed_KJ = (send(example, scene).values_KJV != scene.uploads.values_KJV).any(-1)
    assert changed_KJ[scene.malicious_K][scene.theirs.held_KJ].all()


@pytest.mark.parametrize("example", [("own-detector.md", "Largest")], indirect=True)
def test_the_detector_knows_ties_and_empty_rounds(example: Any) -> None:
    world = Clusters(2)
    uploads = world.round()
    order = np.arange(20)[::-1]
    shuffled = sent(uploads.values_KJV[order], uploads.counts_KJ[order], order.tolist())
    _, verdict = example.judge({}, world.globals_(), uploads)
    _, permuted = example.judge({}, world.globals_(), shuffled)
    assert verdict.kept_K.sum() == 19
    assert np.array_equal(permuted.kept_K, verdict.kept_K[order])
    _, empty = example.judge({}, world.globals_(), uploads.only(np.zeros(20, np.bool_)))
    assert len(empty.kept_K) == 0


@pytest.mark.parametrize("example", [("own-detector.md", "Slow")], indirect=True)
def test_the_rule_moves_a_step_at_most(example: Any) -> None:
    values_KJV = np.array([[[3 * example.step, 5], [70, 80]]], np.int64)
    last = Globals(np.array([True, False]), np.zeros((2, 2), np.int64))
    uploads = sent(values_KJV)
    _, moved_JV = example.combine({}, last, uploads, np.full((1, 2), FULL))
    assert moved_JV.tolist() == [[example.step, 5], [70, 80]]


@pytest.mark.parametrize("example", [("own-method.md", "Pull")], indirect=True)
def test_the_method_exchanges_prototypes(example: Any) -> None:
    assert example.exchanges
