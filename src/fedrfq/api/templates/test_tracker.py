"""Tests of example-tracker: python -m pytest test_example_tracker.py."""

from pathlib import Path

import fedrfq
from fedrfq.api.contracts import check_plugin
from fedrfq.api.contracts.example_runs import MLP, TINY, pictures

FILE = Path(__file__).with_name("example_tracker.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_it_has_a_line_for_each_round(tmp_path: Path) -> None:
    check_plugin(FILE)
    source = {**TINY, "model": MLP, "rounds": 2, "track": "example-tracker"}
    run = fedrfq.run(source, data=pictures(), out=tmp_path, progress=False)
    run.finish()
    lines = (run.path / "example-tracker.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "finished"]
