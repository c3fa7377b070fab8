"""Tests of example-model: python -m pytest test_example_model.py."""

from pathlib import Path

import torch

from fedrfq.api.contracts import check_plugin
from fedrfq.models import MODELS

FILE = Path(__file__).with_name("example_model.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_its_parameters_are_counted() -> None:
    check_plugin(FILE)
    model = MODELS["example-model"](hidden=4)
    params = model.start((1, 2, 3), 5, torch.Generator().manual_seed(0))
    # Six pixels to four units, four units to five classes, with biases.
    assert sum(p.numel() for p in params.values()) == (6 + 1) * 4 + (4 + 1) * 5
