"""Tests of example-method: python -m pytest test_example_method.py."""

from pathlib import Path

import torch

from fedrfq.api.contracts import check_plugin
from fedrfq.methods import METHODS

FILE = Path(__file__).with_name("example_method.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_the_distance_by_hand() -> None:
    check_plugin(FILE)
    difference_KBV = torch.tensor([[[1.0, -3.0]]])
    assert METHODS["example-method"]().distance(difference_KBV).tolist() == [[2.0]]
