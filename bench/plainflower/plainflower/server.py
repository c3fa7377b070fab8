"""The server: a round is a message to every node to train, the weighted mean of what they answer, and one to evaluate."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from fedrfq import experiment

app = ServerApp()
LOG = logging.getLogger("flwr")


def _weighted(means_KJV: Tensor, counts_KJ: Tensor) -> Tensor:
    total_JV = (means_KJV * counts_KJ[..., None]).sum(0)
    return total_JV / counts_KJ.sum(0).clamp(min=1)[:, None]


def _asked(grid: Grid, kind: str, globals_: ArrayRecord, nodes: list[int]) -> list[RecordDict]:
    """What every node answers."""
    messages = [Message(RecordDict({"globals": globals_}), node, kind) for node in nodes]
    replies = list(grid.send_and_receive(messages))
    if len(replies) < len(nodes) or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"not all of {len(nodes)} nodes answered")
    return [reply.content for reply in replies]


@app.main()
def main(grid: Grid, context: Context) -> None:
    found = experiment.load(Path(context.run_config["experiment"]))
    while len(nodes := list(grid.get_node_ids())) < found.clients:
        time.sleep(0.1)
    globals_ = ArrayRecord()
    rounds = []
    for number in range(1, found.rounds + 1):
        began = time.perf_counter()
        sent = [
            one["means"].to_torch_state_dict()
            for one in _asked(grid, MessageType.TRAIN, globals_, nodes)
        ]
        means, counts = (torch.stack([one[name] for one in sent]) for name in ("means", "counts"))
        globals_ = ArrayRecord({"means": _weighted(means, counts)})
        tested = [
            one["metrics"]["accuracy"]
            for one in _asked(grid, MessageType.EVALUATE, globals_, nodes)
        ]
        accuracy = sum(tested) / len(tested)
        rounds.append({"seconds": time.perf_counter() - began, "accuracy": accuracy})
        LOG.info("round %d: %.1f %% in %.2f s", number, accuracy, rounds[-1]["seconds"])
    Path(context.run_config["out"]).write_text(json.dumps(rounds), encoding="utf-8")
