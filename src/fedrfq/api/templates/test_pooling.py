"""Tests of example-pooling: python -m pytest test_example_pooling.py."""

from pathlib import Path

import torch

from fedrfq.api.contracts import check_plugin
from fedrfq.prototypes.pooling import Pool

FILE = Path(__file__).with_name("example_pooling.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_a_window_by_hand() -> None:
    check_plugin(FILE)
    # Four values are a map of 2 × 2: one window.
    assert Pool("example-pooling")(torch.tensor([0.0, 1.0, 2.0, 10.0])).tolist() == [5.0]
