"""The plugin with other caps of claimed counts keeps its contract, and its study can be planned."""

from __future__ import annotations

import numpy as np
import pytest

import fedrfq
from fedrfq.api.contracts import check_plugin
from fedrfq.paper.kinds import plan
from fedrfq.robust.detectors import DETECTORS
from fedrfq.studies.study import Study
from support.judging import sent
from support.paths import BENCH

pytestmark = pytest.mark.usefixtures("apart")

# Of the first class three clients have samples, of the second one.
COUNTS = np.array([[10, 0], [20, 5], [1000, 0], [0, 0], [0, 0], [0, 0]])
CUT = {
    "median": [10, 20, 20],
    "quantile": [10, 20, 1000],  # the ⌈0.85 · 3⌉-th of three is the largest
    "geometric": [0, 0, 0],  # four liars might be all who have more than nothing
}


def test_the_caps_cut_what_they_say() -> None:
    fedrfq.load_plugin(BENCH / "counts.py")
    uploads = sent(np.zeros((6, 2, 1), np.int64), COUNTS, range(6))
    for cap, expected in CUT.items():
        admitted = DETECTORS["counts"](cap=cap).admitted(uploads)
        assert admitted.counts_KJ[:3, 0].tolist() == expected


def test_it_keeps_the_contract_of_detectors() -> None:
    assert [finding for finding in check_plugin(BENCH / "counts.py") if not finding.holds] == []


def test_the_study_tries_all_of_them() -> None:
    fedrfq.load_plugin(BENCH / "counts.py")
    study = plan(Study.load(BENCH / "counts.toml"))
    caps = {getattr(experiment.detector, "cap", "none") for experiment in study.experiments}
    assert caps == {"none", *CUT}
