"""The optional compiled build: not asked for it does nothing, and what differs in it is known."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fedrfq import cli_fuzz
from fedrfq.errors import UserError
from fedrfq.simulator.holding import attributes

ROOT = Path(__file__).parents[1]


@pytest.fixture
def hook() -> ModuleType:
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiling(hook: ModuleType) -> Any:
    return hook.Compiling(str(ROOT), {}, None, None, "", "wheel")


def test_nothing_is_compiled_unless_asked_for(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDRFQ_COMPILE", raising=False)
    monkeypatch.setattr(hook, "_compile", lambda *_: pytest.fail("compiled"))
    data: dict[str, Any] = {"force_include": {}}
    compiling(hook).initialize("standard", data)
    assert data == {"force_include": {}}
    assert compiling(hook).dependencies() == []


def test_a_wheel_is_compiled_where_asked_for_and_an_editable_install_never(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRFQ_COMPILE", "1")
    monkeypatch.setattr(hook, "_compile", lambda sources, to: (to / "one.so").touch())
    data: dict[str, Any] = {"force_include": {}}
    compiling(hook).initialize("editable", data)
    assert data == {"force_include": {}}
    made = compiling(hook)
    made.initialize("standard", data)
    assert list(data["force_include"].values()) == ["one.so"]
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    assert made.dependencies() == ["mypy[mypyc]"]


def test_what_is_compiled_is_there(hook: ModuleType) -> None:
    for part, names in hook.MODULES.items():
        for name in names.split():
            assert (ROOT / "src" / "fedrfq" / part / f"{name}.py").is_file()


def test_attributes_of_compiled_classes_are_seen() -> None:
    class Compiled:
        __mypyc_attrs__ = ("held",)
        held = property(lambda self: 3)

    assert attributes(Compiled()) == {"held": 3}


def test_a_compiled_program_has_no_mutants_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli_fuzz, "MUTANTS", {})
    with pytest.raises(UserError, match="interpreted"):
        cli_fuzz.fuzz(mutants=True)
    with pytest.raises(UserError, match="compiled"):
        cli_fuzz.replay(1, mutant="double-vote")
