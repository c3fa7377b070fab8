"""`fedrfq config --describe` shows every key of the dataclasses."""

from __future__ import annotations

from fedrfq import experiment
from fedrfq.cli import config
from fedrfq.files.options import described
from fedrfq.methods import METHODS
from support.command import fedrfq


def test_every_key_of_an_experiment_is_described() -> None:
    table = experiment.load().table()
    keys = {key.key for key in config._keys()}
    for name, value in table.items():
        if isinstance(value, dict):
            assert {f"{name}.{key}" for key in value} <= keys
        else:
            assert name in keys


def test_the_keys_of_all_methods_are_described() -> None:
    keys = {key.key for key in config._keys()}
    for method in METHODS.values():
        assert {f"method.{option.name}" for option in described(method)} <= keys


def test_a_key_of_some_kinds_says_of_which() -> None:
    (mu,) = [key for key in config._keys() if key.key == "method.mu"]
    assert mu.default == "0.01"
    assert "(only for fedprox)" in mu.help


def test_the_table_is_printed_and_is_no_toml() -> None:
    lines = fedrfq("config", "--describe").stdout.splitlines()
    heads = [line for line in lines if "default" in line and "range" in line]
    assert heads
    assert any("train.lr" in line and "0.01" in line for line in lines)
