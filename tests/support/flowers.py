"""Flower without its engines: a grid of nodes in this process, whose messages can be changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedrfq.experiment import from_table
from fedrfq.files import toml
from fedrfq.flower.clientapp import answered
from fedrfq.flower.messages import NodeAnswer, RoundOrder

SMALL = {
    "name": "small",
    "rounds": 3,
    "clients": 4,
    "model": {"name": "mlp"},
    "partition": {"ways": 2, "spread": 0, "shots": 5, "test_shots": 5},
    "train": {"alone": True},
    "committee": {"name": "simulated", "servers": 4},
}


def hear(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test see Flower's log, which is not propagated by default."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, "flwr")


def config(**settings: str | float) -> dict[str, Any]:
    """Return settings with the names that the command line uses."""
    return {key.replace("_", "-"): value for key, value in settings.items()}


def context(**settings: str | float) -> Context:
    """Return a server app's context with these settings."""
    return Context(
        run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config=config(**settings)
    )


class Nodes(Grid):
    """So many nodes, which answer at once.

    Nodes in `away` do not answer; for those in `broken` the engine reports an error. Orders go
    through `to`, and answers through `back`.
    """

    def __init__(self, number: int) -> None:
        # An engine sets these, and messages need them.
        TaskIdentity.run_id = 1
        TaskIdentity.node_id = 1
        TaskIdentity.task_id = 1
        self.number = number
        self.away = set[int]()
        self.broken = set[int]()
        self.orders = list[RoundOrder]()
        self.to: Callable[[int, RoundOrder], RoundOrder] = lambda node, order: order
        self.back: Callable[[int, NodeAnswer], NodeAnswer] = lambda node, answer: answer
        # For each node, which share of the clients it has.
        self.hosting = {node: node for node in range(number)}
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, *args: Any, **kwargs: Any) -> list[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [100 + node for node in self.hosting]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = [self._push(message) for message in messages]
        assert ids, "a request that asks nothing"
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(id_) for id_ in message_ids if id_ in self._replies]

    def _push(self, message: Message) -> str:
        id_ = str(uuid4())
        node = message.metadata.dst_node_id - 100
        message.metadata.__dict__["_message_id"] = id_
        order = self.to(node, RoundOrder.read(message.content))
        self.orders.append(order)
        if node in self.broken:
            error = Error(code=1, reason="it fell\nover\x1b[2J")
            self._replies[id_] = Message(error, reply_to=message)
        elif node not in self.away:
            answer = self.back(node, answered(order.record(), self.config(node), {}))
            self._replies[id_] = Message(answer.record(), reply_to=message)
        return id_

    def config(self, node: int) -> dict[str, Any]:
        """Return the node's configuration."""
        return {"partition-id": self.hosting[node], "num-partitions": self.number}


def written(folder: Path, table: dict[str, Any]) -> str:
    """Write an experiment's file, and return its path."""
    path = folder / "experiment.toml"
    path.write_text(toml.dump(from_table(table).table()), encoding="utf-8")
    return str(path)
