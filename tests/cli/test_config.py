"""`fedrfq config --describe` shows every key of the dataclasses."""

from __future__ import annotations

import pytest

from fedrfq import experiment
from fedrfq.cli import config
from fedrfq.experiment.kinds import KINDS
from fedrfq.files.options import described
from support.command import fedrfq


def test_every_key_of_an_experiment_is_described() -> None:
    table = experiment.load().table()
    keys = {key.key for key in config._keys()}
    for name, value in table.items():
        if isinstance(value, dict):
            assert {f"{name}.{key}" for key in value} <= keys
        else:
            assert name in keys


@pytest.mark.parametrize("section", KINDS)
def test_the_keys_of_all_kinds_are_described(section: str) -> None:
    keys = {key.key for key in config._keys()}
    assert f"{section}.name" in keys
    for kind in KINDS[section].values():
        assert {f"{section}.{option.name}" for option in described(kind)} <= keys


def test_a_key_of_some_kinds_says_of_which() -> None:
    (mu,) = [key for key in config._keys() if key.key == "method.mu"]
    assert mu.default == "0.01"
    assert "(only for fedprox)" in mu.help


def test_the_table_is_printed_and_is_no_toml() -> None:
    lines = fedrfq("config", "--describe").stdout.splitlines()
    heads = [line for line in lines if "default" in line and "range" in line]
    assert heads
    assert any("train.lr" in line and "0.01" in line for line in lines)


def test_one_section_is_described_alone_and_an_unknown_one_refused() -> None:
    found = fedrfq("config", "--describe", "public").stdout
    assert "public.filter_seed" in found
    assert "train.lr" not in found
    refused = fedrfq("config", "--describe", "publik", expect=2)
    assert "choose one of" in refused.stderr
    assert "did you mean public?" in refused.stderr


def test_public_maps_are_listed() -> None:
    assert "ImageNet" in fedrfq("list", "public").stdout
