"""Compare the paper's CNN as a plain module, by vmap and in a loop, with the engine's own CNN.

    python bench/module_model.py --out results/speed/module-model.json

The experiment is the default one: 20 clients on mnist5k. Only training is timed, in seconds of the
processor on one thread; candidates alternate and the best of the repeats counts. What matters is
the ratio, which is taken within one run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from engine import Round, alternated, layer_by_layer
from fedrfq import data
from fedrfq.api.run import resolved
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.any_module import AnyModule
from testbed import arguments, record


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


def round_of(model: type[nn.Module] | None) -> Round:
    """Return a round of training with our own model, or with a module."""
    table = {"model": {"feature_layer": "act"}} if model else {}
    experiment, _ = resolved(table, None, model)
    return Round(RoundLoop([experiment], data.load("mnist5k"), torch.device("cpu")))


def as_module(round_: Round, stacked: bool) -> Callable[[], None]:
    """Return the round with the module's clients stacked, or one after the other."""
    model = round_.runs.experiments[0].model
    assert isinstance(model, AnyModule)
    program = model.program()

    def work() -> None:
        # A loop and a stack of the same module share their program.
        program.stacked = stacked
        round_()

    return work


def main() -> None:
    """Time the candidates in turn, and print and record what they take."""
    parser = arguments(__doc__, "speed/module-model.json")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of each (default: 9)")
    args = parser.parse_args()
    # One thread: what threads wait for each other is no cost of a model.
    torch.set_num_threads(1)
    ours = round_of(None)
    theirs = round_of(PaperCNN)
    candidates = {
        "ours": ours,
        "ours, layer by layer": layer_by_layer(ours),
        "module, vmap": as_module(theirs, True),
        "module, loop": as_module(theirs, False),
    }
    best = alternated(candidates, args.repeats)
    rows = []
    table = Table("candidate", "CPU s a round", "× ours")
    for name, one in best.items():
        ratio = one.cpu_seconds / best["ours"].cpu_seconds
        table.add_row(name, f"{one.cpu_seconds:.3f}", f"{ratio:.2f}")
        rows.append({"candidate": name, "train_cpu_s": one.cpu_seconds, "times_ours": ratio})
    Console().print(table)
    record(args.out, {"samples": ours.samples, "repeats": args.repeats, "rows": rows})


if __name__ == "__main__":
    main()
