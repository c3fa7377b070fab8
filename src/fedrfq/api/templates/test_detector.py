"""Tests of example-detector: python -m pytest test_example_detector.py."""

from pathlib import Path

import numpy as np

from fedrfq.api.contracts import check_plugin
from fedrfq.robust.detectors import DETECTORS
from fedrfq.robust.example_rounds import nowhere, sent

FILE = Path(__file__).with_name("example_detector.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_the_farthest_is_dropped() -> None:
    check_plugin(FILE)
    # Four clients with one class of one value each; the third is far from the others.
    uploads = sent(np.array([[[10]], [[12]], [[90]], [[11]]]))
    _, verdict = DETECTORS["example-detector"]().judge({}, nowhere(uploads), uploads)
    assert verdict.kept_K.tolist() == [True, True, False, True]
