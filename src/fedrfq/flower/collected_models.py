"""The models of a simulated run, brought together from the folders of its nodes.

In a simulation all nodes keep their models on the machine of the server app. So a run can leave the
checkpoint that any other run leaves, and `fedrfq predict` and `export` work on it. The nodes of a
real federation have folders of their own, and their models never leave these.
"""

from __future__ import annotations

from pathlib import Path

import torch

from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.flower.node_state import KEPT, NodeState
from fedrfq.learning.round_loop import start
from fedrfq.models.stacked import Params, stack


def collected(
    state: Path, run: str, experiment: Experiment, dataset: Dataset
) -> tuple[Params, ...] | None:
    """Return the clients' models, cohort by cohort; None if one of them is not below `state`."""
    found: dict[int, Params] = {}
    for kept in state.glob(f"clients-*/{KEPT}"):
        node = NodeState.found(kept.parent, run)
        # Several runs may keep their models below one folder.
        if node is not None:
            found |= _of_node(node, experiment, dataset)
    if len(found) < experiment.clients:
        return None
    cohorts = []
    first = 0
    for cohort in experiment.models():
        own = [found[client] for client in range(first, first + cohort.clients)]
        cohorts.append({name: torch.stack([p[name] for p in own]) for name in own[0]})
        first += cohort.clients
    return tuple(cohorts)


def _of_node(node: NodeState, experiment: Experiment, dataset: Dataset) -> dict[int, Params]:
    """Return the model of each client that a node hosts."""
    found = {}
    numbers = node.read().models
    for program, clients in enumerate(node.programs):
        params = stack([start(experiment, client, dataset) for client in clients])
        # Clients that never took part have the models they started with.
        if numbers[program]:
            like = {name: p[:1] for name, p in params.items()}
            params = node.load_models(program, numbers[program], like)
        for row, client in enumerate(clients):
            found[client] = {name: p[row] for name, p in params.items()}
    return found
