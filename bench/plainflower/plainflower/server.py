"""The server: in a round all nodes train, the server averages, and all nodes evaluate."""

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
    """Send a message to every node and return what they answer."""
    messages = [Message(RecordDict({"globals": globals_}), node, kind) for node in nodes]
    replies = list(grid.send_and_receive(messages))
    if len(replies) < len(nodes) or any(reply.has_error() for reply in replies):
        raise RuntimeError(f"not all {len(nodes)} nodes answered")
    return [reply.content for reply in replies]


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run all rounds and write their seconds and accuracies to a JSON file."""
    settings = experiment.load(Path(context.run_config["experiment"]))
    while len(nodes := list(grid.get_node_ids())) < settings.clients:
        time.sleep(0.1)
    globals_ = ArrayRecord()
    rounds = []
    for number in range(1, settings.rounds + 1):
        began = time.perf_counter()
        answers = _asked(grid, MessageType.TRAIN, globals_, nodes)
        uploads = [answer["means"].to_torch_state_dict() for answer in answers]
        means_KJV = torch.stack([upload["means"] for upload in uploads])
        counts_KJ = torch.stack([upload["counts"] for upload in uploads])
        globals_ = ArrayRecord({"means": _weighted(means_KJV, counts_KJ)})
        answers = _asked(grid, MessageType.EVALUATE, globals_, nodes)
        accuracies = [answer["metrics"]["accuracy"] for answer in answers]
        accuracy = sum(accuracies) / len(accuracies)
        rounds.append({"seconds": time.perf_counter() - began, "accuracy": accuracy})
        LOG.info("round %d: %.1f %% in %.2f s", number, accuracy, rounds[-1]["seconds"])
    Path(context.run_config["out"]).write_text(json.dumps(rounds), encoding="utf-8")
