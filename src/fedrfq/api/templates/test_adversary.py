"""Tests of example-adversary: python -m pytest test_example_adversary.py."""

from pathlib import Path

from fedrfq.api.contracts import check_plugin
from fedrfq.api.contracts.example_runs import pictures, run, tiny

FILE = Path(__file__).with_name("example_adversary.py")


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_rounds_are_decided_all_the_same() -> None:
    check_plugin(FILE)
    committee = {"name": "simulated", "faulty": 1, "behaviour": "example-adversary"}
    _, rounds = run([tiny(committee=committee, model={"name": "mlp"})], pictures(), 2)
    assert [outcome.record.round for (outcome,) in rounds] == [1, 2]
