"""Decisions are the same to the bit with other kernels and instructions, and as before."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
from typing import Any

import numpy as np
import pytest

from support.paths import BENCH

_BENCH = BENCH / "digests.py"
# The digest of all decisions on SMALL by these detectors and rules, whatever is registered beside
# them. Another digest means that servers of two versions would not agree.
_DETECTORS = ("none", "bft", "bft-mean", "median", "trimmed", "medoid", "adaptive")
_RULES = ("weighted", "mean", "paper", "median", "trimmed")
_TOTAL = "dcea5feddaddd05139cf87922debb276a7a95783447db3fce281d919a8013d7e"


@pytest.fixture(scope="module")
def digests() -> Any:
    spec = importlib.util.spec_from_file_location("digests", _BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look there.
    sys.modules["digests"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plain(digests: Any) -> Any:
    return digests.Place(sys.executable).ask("--small")


def pinned_cases(answer: Any) -> dict[str, str]:
    """Return the digests of the cases, "shape | detector | rule", that are made of known parts."""
    pinned = {}
    for case, digest in answer["cases"].items():
        _, detector, rule = case.split(" | ")
        if detector in _DETECTORS and rule in _RULES:
            pinned[case] = digest
    return pinned


def test_the_decisions_are_what_they_were(digests: Any, plain: Any) -> None:
    assert len(plain["cases"]) == len(digests.DETECTORS) * len(digests.RULES) * len(digests.SMALL)
    pinned = pinned_cases(plain)
    assert len(pinned) == len(_DETECTORS) * len(_RULES) * len(digests.SMALL)
    assert digests.total(pinned) == _TOTAL


def test_other_kernels_and_instructions_decide_alike(digests: Any, plain: Any) -> None:
    oldest = digests.Place(sys.executable, "Prescott", tuple(plain["usable"])).ask("--small")
    threads = digests.Place(sys.executable, "Nehalem", threads=2).ask("--small")
    assert oldest["usable"] == []
    assert plain["cases"] == oldest["cases"] == threads["cases"]


def test_every_case_is_one_of_its_own_and_something_is_dropped(digests: Any, plain: Any) -> None:
    """Otherwise equal digests would say little."""
    pinned = pinned_cases(plain)
    filtered = {case: found for case, found in pinned.items() if "| none |" not in case}
    assert len(set(filtered.values())) == len(filtered)
    assert all(plain["dropped"][case] > 0 for case in filtered)


def test_a_difference_is_told(digests: Any, plain: Any, capsys: pytest.CaptureFixture[str]) -> None:
    case = next(iter(plain["cases"]))
    other = {**plain, "cases": {**plain["cases"], case: "0"}}
    assert digests.verdict([("here", plain), ("there", plain)]) == 0
    assert "2 environments: all the same" in capsys.readouterr().out
    assert digests.verdict([("here", plain), ("there", other)]) == 1
    assert f"DIFFERS: {case}; there" in capsys.readouterr().out


def test_digests_are_canonical(digests: Any) -> None:
    """The numbers drawn, their bytes and the layout that is hashed, by hand."""
    assert (
        digests.drawn("a", 2).tolist()
        == np.frombuffer(hashlib.shake_256(b"a").digest(8), "<u4").tolist()
    )
    decision = next(digests.decisions("adaptive", "mean", digests.SMALL[0]))
    parts = list(digests.canonical(decision))
    assert json.loads(parts[0]) == []
    names = [part.decode().split()[0] for part in parts[1::2]]
    judged = ["reason", "score", "state.record", "values", "weight"]
    assert names == ["clients", "counts", "present", *judged]
    assert parts[2] == b"".join(client.to_bytes(8, "little") for client in decision.uploads.clients)
