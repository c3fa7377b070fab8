"""The server app finds answers and nodes soon, and with few requests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Message

from fedrfq.experiment import from_table
from fedrfq.flower import node_registry
from support.flowered import order
from support.flowers import SMALL, Nodes


class Slow(Nodes):
    """One node that answers after `answer_s` seconds of a clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1)
        self.now = 0.0
        self.answer_s = 0.0
        self.looks = 0
        self.looks_for_nodes = 0
        monkeypatch.setattr(
            node_registry, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        )

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def get_node_ids(self) -> Iterable[int]:
        self.looks_for_nodes += 1
        return super().get_node_ids()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.looks += 1
        if self.now >= self.answer_s:
            return super().pull_messages(message_ids)
        return []


@pytest.mark.parametrize(
    ("answer_s", "late_s", "max_looks"), [(0.3, 0.011, 31), (10.0, 0.21, 210), (100.0, 0.51, 430)]
)
def test_an_answer_is_soon_found_by_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer_s: float, late_s: float, max_looks: int
) -> None:
    grid = Slow(monkeypatch)
    hello = replace(order(from_table(SMALL), 0, b"", False, tmp_path), hello=True)
    registry = node_registry.NodeRegistry(grid, 4, 600.0)
    registry.gather(hello, 1.0)
    grid.now = 0.0
    grid.answer_s = answer_s
    grid.looks = 0
    grid.looks_for_nodes = 0
    assert list(registry.ask(hello, hello)) == [100]
    assert answer_s <= grid.now <= answer_s + late_s
    assert grid.looks <= max_looks
    # Other nodes are greeted in the meantime.
    assert answer_s / 0.6 <= grid.looks_for_nodes <= 1 + answer_s / node_registry.PAUSE_S
