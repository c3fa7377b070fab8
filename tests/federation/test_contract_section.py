"""The data contract in federation.toml: it is part of the run's id, and no change touches it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedrfq.data import Contract, ImageForm
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import read_successor
from fedrfq.node.membership.change import changed
from support.committees import CLASSES
from support.parties import agreed, keys

CONTRACT = Contract.of([f"class {j}" for j in range(CLASSES)], ImageForm.of("1x28x28"))


@pytest.fixture(scope="module")
def federation() -> Federation:
    return replace(agreed(keys()), contract=CONTRACT)


def test_it_is_read_back_and_part_of_the_runs_id(federation: Federation) -> None:
    read = Federation.read(federation.text, "it")
    assert read == federation
    assert read.contract == CONTRACT
    other = replace(CONTRACT, classes=(*CONTRACT.classes[1:], CONTRACT.classes[0]))
    assert replace(federation, contract=other).roster.run != federation.roster.run


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('"class 0", ', "", "names .* classes, and the task has"),
        ('"class 0"', '"class 1"', "'class 1' twice"),
        ('shape = "1x28x28"', 'shape = "1x028x28"', "shape: expected"),
        ('shape = "1x28x28"', 'shape = "1×28×28"', "not as this program writes it"),
        ('window = ""', 'window = "0.0:4095"', "not as this program writes it"),
        ("resize = false", 'resize = "false"', "contract.resize"),
        ("mean = 0.5\n", "", "mean"),
        ("std = 0.25", "std = 0.25\nlocal = 1", "not as this program writes it"),
    ],
)
def test_a_contract_that_was_tampered_with_is_refused(
    federation: Federation, old: str, new: str, reason: str
) -> None:
    assert old in federation.text
    with pytest.raises(UserError, match=reason):
        Federation.read(federation.text.replace(old, new), "it")


def test_a_change_keeps_it(federation: Federation) -> None:
    successor = changed(federation, expelled=["client-1"])
    assert successor.contract == CONTRACT
    other = replace(successor, contract=None)
    with pytest.raises(UserError, match="another data contract"):
        read_successor(federation, other.text.encode())
