"""Compare the paper's CNN as a plain module, by vmap and in a loop, with the engine's own CNN.

    python bench/module_model.py [--repeats N]

The experiment is the default one: 20 clients on mnist5k. The best of the repeats counts; what
matters is the ratio, which is taken within one run.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from engine import Round, seconds
from fedrfq import data
from fedrfq.api.run import resolved
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.any_module import AnyModule


class PaperCNN(nn.Module):
    """The paper's CNN as a user would write it."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.drop2d = nn.Dropout2d()
        self.fc1 = nn.Linear(320, 50)
        self.act = nn.ReLU()
        self.drop = nn.Dropout()
        self.fc2 = nn.Linear(50, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        h = F.relu(F.max_pool2d(self.conv1(x), 2))
        h = F.relu(F.max_pool2d(self.drop2d(self.conv2(h)), 2))
        logits: Tensor = self.fc2(self.drop(self.act(self.fc1(h.flatten(1)))))
        return logits


def round_of(model: type[nn.Module] | None, stacked: bool = True) -> Round:
    """Return a round of training with our own model, or with a module."""
    table = {"model": {"feature_layer": "act"}} if model else {}
    experiment, _ = resolved(table, None, model)
    if isinstance(experiment.model, AnyModule):
        experiment.model.program().stacked = stacked
    return Round(RoundLoop([experiment], data.load("mnist5k"), torch.device("cpu")))


def main() -> None:
    """Time the candidates and print their rates."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    makers = {
        "ours": lambda: round_of(None),
        "module, vmap": lambda: round_of(PaperCNN),
        "module, loop": lambda: round_of(PaperCNN, stacked=False),
    }
    best = dict.fromkeys(makers, float("inf"))
    rounds = {}
    for name, make in makers.items():
        rounds[name] = make()
        # A loop and a stack of the same module share their program: one after the other.
        best[name] = min(seconds(rounds[name]) for _ in range(repeats))
    table = Table("candidate", "samples/s", "ratio to ours")
    for name, taken in best.items():
        rate = rounds[name].samples / taken
        table.add_row(name, f"{rate:,.0f}", f"{best['ours'] / taken:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
