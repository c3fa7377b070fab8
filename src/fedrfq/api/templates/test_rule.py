"""Tests of example-rule: python -m pytest test_example_rule.py."""

from pathlib import Path

import numpy as np

from fedrfq.api.contracts import check_plugin
from fedrfq.robust.example_rounds import nowhere, sent
from fedrfq.robust.rules import RULES

FILE = Path(__file__).with_name("example_rule.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_the_centre_by_hand() -> None:
    check_plugin(FILE)
    # Three clients with one class of two values; the last one has no weight.
    uploads = sent(np.array([[[0, 4]], [[10, 8]], [[500, 500]]]))
    weight_KJ = np.array([[1024], [1024], [0]])
    _, centres_JV = RULES["example-rule"].combine({}, nowhere(uploads), uploads, weight_KJ)
    assert centres_JV.tolist() == [[5, 6]]
