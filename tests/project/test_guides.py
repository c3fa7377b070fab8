"""The examples that the guides print: they keep the contracts that the guides name."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedrfq.api.contracts import check_plugin
from fedrfq.prototypes.fixed_point import Globals, Precision
from fedrfq.robust.detectors import FULL
from support.judging import Clusters, sent
from support.outside import new_process, written
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


def plugins() -> dict[str, str]:
    """Return the plugins that the guides print in full, each once, by their classes' names."""
    found = {}
    for guide in sorted((ROOT / "docs" / "guides").glob("*.md")):
        for block in re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL):
            if "@fedrfq.register(" in block:
                found[re.findall(r"class (\w+)", block)[-1]] = block
    return found


@pytest.mark.parametrize("name", plugins())
def test_a_plugin_that_a_guide_prints_keeps_its_contract(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = written(tmp_path, f"{name.lower()}.py", plugins()[name])
    try:
        assert [finding for finding in check_plugin(path) if not finding.holds] == []
    finally:
        new_process()


def test_there_is_one_of_each_kind_that_has_a_guide() -> None:
    assert {"Pull", "Sort", "Shift", "Probe", "Largest", "Slow"} <= set(plugins())


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


@pytest.mark.parametrize("example", [("own-attack.md", "Probe")], indirect=True)
def test_the_attack_goes_back_when_it_would_be_found(example: Any) -> None:
    rng = np.random.default_rng(0)
    scene = random_scene()
    _, state = example.corrupt(scene, {"steps": np.array(2)}, rng)
    assert int(state["steps"]) == 3
    nobody = replace(scene.foresee(scene.uploads), kept_K=np.zeros(len(scene.malicious_K), bool))
    found = replace(scene, foresee=lambda uploads: nobody)
    _, state = example.corrupt(found, {"steps": np.array(2)}, rng)
    assert int(state["steps"]) == 1


@pytest.mark.parametrize("example", [("own-method.md", "Sort")], indirect=True)
def test_the_server_moves_prototypes_to_their_classes_uploads(example: Any) -> None:
    uploads = sent(np.array([[[9000, 0], [0, 9000]], [[9000, 900], [900, 9000]]], np.int64))
    globals_ = Globals(np.array([True, True]), np.zeros((2, 2), np.int64))
    server = example.server_start(2, 2, np.random.default_rng(0))
    for _ in range(5):
        server, globals_ = example.server_step(server, uploads, globals_, np.random.default_rng(0))
    near = np.abs(uploads.values_KJV[:, :, None] - globals_.values_JV).sum(-1).argmin(-1)
    assert near.tolist() == [[0, 1], [0, 1]]
