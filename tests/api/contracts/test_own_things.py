"""All that comes with the program keeps the contracts by which plugins are checked."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from fedrfq.api.contracts import checks
from fedrfq.api.contracts.contract import Check
from fedrfq.plugins import REGISTRIES

# What the kinds' own tests show in more cases, or what takes its own data.
ELSEWHERE = {"adversary", "tracker", "dataset"}
NEEDS = {"flwr": "flwr_datasets"}
# A partition that needs a file; it has tests of its own.
WITHOUT = {"file"}
# Shown by tests/engine for every method and model, or costly: a new process for each.
SHOWN = {"losses_are_finite_and_alive", "the_same_seed_gives_the_same_bytes", "a_model_trains"}
EXACT = {"detectors_are_exact_as_claimed", "rules_are_exact_as_claimed"}
IN_ANOTHER_PROCESS = {"adaptive", "medoid", "trimmed"}


def wanted(name: str, check: Check) -> bool:
    if check.__name__ in EXACT:
        return name in IN_ANOTHER_PROCESS
    return check.__name__ not in SHOWN


def all_of_them() -> list[tuple[str, Check]]:
    return [
        pytest.param(name, check, id=f"{kind} {name}: {check.__name__}")
        for kind in REGISTRIES
        if kind not in ELSEWHERE
        for name in REGISTRIES[kind].entries()
        if name not in WITHOUT
        for check in checks(kind)
        if wanted(name, check)
    ]


@pytest.mark.parametrize(("name", "check"), all_of_them())
def test_the_contract(name: str, check: Check) -> None:
    if name in NEEDS and find_spec(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}: make test-extras")
    check(name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("adversary", "equivocate"), ("tracker", "tensorboard"), ("dataset", "mnist5k")],
)
def test_one_of_the_other_kinds(kind: str, name: str) -> None:
    for check in checks(kind):
        check(name)
