"""Tests of example-map: python -m pytest test_example_map.py."""

from pathlib import Path

import torch

from fedrfq.api.contracts import check_plugin
from fedrfq.models.public_maps import PUBLIC_MAPS

FILE = Path(__file__).with_name("example_map.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_a_white_image_has_means_of_one_and_no_deviation() -> None:
    check_plugin(FILE)
    vector = PUBLIC_MAPS["example-map"]().raw(torch.full((1, 1, 8, 8), 255))
    assert vector.tolist() == [[1.0] * 16 + [0.0] * 16]
