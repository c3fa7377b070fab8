"""Tests of example-dataset: python -m pytest test_example_dataset.py."""

from pathlib import Path

import pytest

from fedrfq.api.contracts import check_plugin
from fedrfq.data import load

FILE = Path(__file__).with_name("example_dataset.py")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path))


def test_it_keeps_the_contract() -> None:
    findings = check_plugin(FILE)
    assert [finding for finding in findings if not finding.holds] == []


def test_it_is_loaded_by_name() -> None:
    check_plugin(FILE)
    dataset = load("example-dataset")
    assert (len(dataset.train_y), len(dataset.test_y), dataset.shape) == (750, 250, (1, 16, 16))
