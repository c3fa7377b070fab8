"""Tests of example-partition: python -m pytest test_example_partition.py."""

from pathlib import Path

import numpy as np

from fedrfq.api.contracts import check_plugin
from fedrfq.api.contracts.example_runs import many_samples
from fedrfq.data.partition import PARTITIONS

FILE = Path(__file__).with_name("example_partition.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_nobody_shares_a_training_sample() -> None:
    check_plugin(FILE)
    partition = PARTITIONS["example-partition"](most=50)
    dealt = partition.deal(many_samples(), 8, np.random.default_rng(0))
    assert len(np.unique(np.concatenate(dealt.train))) == 8 * 50
