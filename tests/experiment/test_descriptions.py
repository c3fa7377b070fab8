"""Every configuration key has a description, and the reference lists every key there is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, replace
from functools import partial
from typing import Any

import pytest

from fedrfq.committee import COMMITTEES
from fedrfq.data.partition import PARTITIONS
from fedrfq.engine.program import TrainingOptions
from fedrfq.errors import UserError
from fedrfq.experiment import Cohort, Data, Experiment, from_table
from fedrfq.experiment.kinds import KINDS
from fedrfq.experiment.reference import ConfigKey, all_options, sections
from fedrfq.files.options import check_range, described, settable
from fedrfq.methods import METHODS
from fedrfq.models.any_module import AnyModule
from fedrfq.models.public_maps import PUBLIC_MAPS
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.pooling import POOLS, Pool
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.detectors import DETECTORS
from fedrfq.simulator.adversaries import BEHAVIOURS
from fedrfq.simulator.network import NETWORKS

REGISTRIES: dict[str, Mapping[str, Any]] = {
    "partition": PARTITIONS,
    "model": KINDS["model"],
    "method": METHODS,
    "attack": ATTACKS,
    "detector": DETECTORS,
    "committee": COMMITTEES,
    "public": PUBLIC_MAPS,
}
PLAIN: dict[str, type[Any]] = {
    "data": Data,
    "pool": Pool,
    "train": TrainingOptions,
    "privacy": Privacy,
}
CLASSES = [
    Experiment,
    Cohort,
    *PLAIN.values(),
    *(kind for kinds in REGISTRIES.values() for kind in kinds.values()),
]
OPTIONS = all_options()


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_field_is_described_on_one_line(cls: type[Any]) -> None:
    for option in described(cls):
        where = f"{cls.__name__}.{option.name}"
        assert option.help, f"{where} has no description: declare it by option(default, '…')"
        assert "\n" not in option.help
        assert len(option.help) <= 100, where
        assert not option.help.endswith("."), where
        assert option.help[0].isupper(), where


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_number_and_every_choice_has_a_range(cls: type[Any]) -> None:
    for option in described(cls):
        if option.type in ("int", "float") or (option.type == "str" and cls is not Data):
            assert option.range, f"{cls.__name__}.{option.name} has no range"


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_range_of_numbers_is_checked(cls: type[Any]) -> None:
    """No range of numbers takes what is no number, so one that does is not understood."""
    for field in settable(cls):
        number = field.type in ("int", "float")
        if number and not field.metadata["range"].startswith("written when"):
            with pytest.raises(UserError, match=f"{field.name} must be"):
                check_range(field.name, math.nan, field)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_what_python_makes_is_checked_as_what_a_file_says(cls: type[Any]) -> None:
    for field in settable(cls):
        if field.type not in ("int", "float") or cls in (AnyModule, Cohort):
            continue
        make = partial(replace, from_table({})) if cls is Experiment else cls
        with pytest.raises(UserError, match=f"{field.name} must be"):
            make(**{field.name: math.nan})


def test_the_reference_has_every_key_once() -> None:
    expected = {("", "", name) for name in _names(Experiment) if name not in sections()}
    for section, cls in PLAIN.items():
        expected |= {(section, "", name) for name in _names(cls)}
    for section, kinds in REGISTRIES.items():
        expected.add((section, "", "name"))
        for kind, cls in kinds.items():
            expected |= {(section, kind, name) for name in _names(cls)}
    expected |= {("cohorts", "", "clients"), ("cohorts", "", "name")}
    listed = [(option.section, option.kind, option.key) for option in OPTIONS]
    assert len(set(listed)) == len(listed)
    assert set(listed) == expected
    assert set(sections()) == {*PLAIN, *REGISTRIES, "cohorts"}
    assert all(option.help for option in OPTIONS)
    assert all(sections().values())


def test_the_reference_tells_the_default_and_the_type() -> None:
    found = {(option.section, option.kind, option.key): option for option in OPTIONS}
    assert found["", "", "rounds"].default == 100
    assert found["attack", "scale", "strength"].default == 5.0
    assert found["detector", "bft", "clip"].type == "bool"
    assert found["method", "", "name"].default == "fedrfq"
    assert found["cohorts", "", "clients"].default is MISSING


def test_defaults_are_values_that_a_file_may_hold() -> None:
    for option in OPTIONS:
        # The keys of a module of the user's own are written when it is given.
        if option.section == "cohorts" or option.kind == "module":
            continue
        if option.section in REGISTRIES and option.kind:
            section = {"name": option.kind, option.key: option.default}
            if option.section == "attack" and option.key != "clients":
                section["clients"] = 1
            if option.section == "attack" and option.key == "clients":
                section[option.key] = 1
            from_table({option.section: section})
        elif option.section:
            from_table({option.section: {option.key: option.default}})
        else:
            from_table({option.key: option.default})


def test_names_in_ranges_are_those_there_are() -> None:
    """Where the range is written out, because what it lists is defined above the dataclass."""
    choices = {
        ("pool", "", "name"): POOLS,
        ("committee", "simulated", "behaviour"): BEHAVIOURS,
        ("committee", "simulated", "network"): NETWORKS,
    }
    for option in OPTIONS:
        place = (option.section, option.kind, option.key)
        if place in choices:
            assert _choices(option) == list(choices[place])


def _choices(option: ConfigKey) -> list[str]:
    return option.range.removeprefix("one of ").removesuffix(", or a plugin's").split(", ")


def _names(cls: type[Any]) -> list[str]:
    return [field.name for field in settable(cls)]
