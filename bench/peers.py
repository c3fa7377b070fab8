"""Time other programs' own training of FedProto beside ours, on the same samples and network.

    python bench/peers.py --fedproto ../FedProto --pfllib ../PFLlib

FedProto is the reference implementation of its authors, PFLlib a library of personalised methods;
each path is a checkout of theirs, of which nothing is copied here.
Every client trains one epoch, as in a round of `mnist5k` (20 clients, batch 4), toward given
prototypes, by each program's own loop over batches. Candidates are alternated, each with one
thread and with all, and the best of the repeats counts. PFLlib reads each client's samples from a
file in every round; here it gets them from memory.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from rich.table import Table
from torch import Tensor, nn

from engine import Round, StockCNN, alternated, on_threads
from fedrfq import data, experiment
from fedrfq.data.client_data import ClientData
from fedrfq.engine.threads import threads
from fedrfq.learning.round_loop import RoundLoop
from testbed import arguments, console, record

FEATURES = 50
CLASSES = 10
RATE = 0.01
Samples = list[tuple[Any, Any]]


def ours() -> Round:
    """Return a round of training by the engine."""
    sets = ["data.name=mnist5k", "method.name=fedproto"]
    loop = RoundLoop([experiment.load(sets=sets)], data.load("mnist5k"), torch.device("cpu"))
    return Round(loop)


def held(shares: ClientData) -> list[tuple[Tensor, Tensor]]:
    """Return each client's images and labels."""
    rows = [shares.index_KN[k, :count] for k, count in enumerate(shares.counts)]
    return [(shares.x[own], shares.y[own]) for own in rows]


@contextmanager
def importable(*paths: Path) -> Iterator[None]:
    """Let modules be imported from these folders inside the block.

    FedProto's modules import torchvision, but its training uses nothing of it: where it cannot be
    imported, an empty module stands in.
    """
    before = list(sys.path)
    sys.path[:0] = map(str, paths)
    try:
        import torchvision.models  # noqa: F401
    except (ImportError, RuntimeError):
        sys.modules["torchvision"] = ModuleType("torchvision")
        sys.modules["torchvision.models"] = ModuleType("torchvision.models")
    try:
        yield
    finally:
        sys.path[:] = before


def fedproto(path: Path, clients: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Return a round of the reference implementation."""
    with importable(path / "lib" / "models", path / "lib"):
        from update import LocalUpdate

        from models import CNNMnist

    args = Namespace(
        local_bs=4, device="cpu", optimizer="sgd", lr=RATE, train_ep=1, ld=1, verbose=0
    )
    args.num_channels = 1
    args.out_channels = 20
    args.num_classes = CLASSES
    known = {label: [torch.rand(FEATURES)] for label in range(CLASSES)}
    parties = []
    for x, y in clients:
        samples: Samples = list(zip(x.numpy(), y.tolist(), strict=True))
        parties.append((LocalUpdate(args, samples, range(len(samples))), CNNMnist(args)))

    def work() -> None:
        for k, (party, model) in enumerate(parties):
            party.update_weights_het(args, k, known, model, 1)

    return work


class SplitCNN(nn.Module):
    """The paper's CNN as PFLlib takes it: what makes the features, and what decides by them."""

    def __init__(self) -> None:
        super().__init__()
        whole = StockCNN()
        self.base = nn.Sequential(
            *(whole.conv1, nn.MaxPool2d(2), nn.ReLU()),
            *(whole.conv2, whole.drop, nn.MaxPool2d(2), nn.ReLU()),
            *(nn.Flatten(), whole.fc1, nn.ReLU()),
        )
        self.head = nn.Sequential(nn.Dropout(), whole.fc2)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.head(self.base(x))
        return logits


def pfllib(path: Path, clients: list[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Return a round of PFLlib's clients."""
    with importable(path / "system"):
        from flcore.clients import clientbase
        from flcore.clients.clientproto import clientProto

    args = Namespace(algorithm="FedProto", dataset="mnist5k", device="cpu", save_folder_name="")
    args.model = SplitCNN()
    args.num_classes = CLASSES
    args.batch_size = 4
    args.local_learning_rate = RATE
    args.local_epochs = 1
    args.few_shot = 0
    args.learning_rate_decay = False
    args.learning_rate_decay_gamma = 1.0
    args.lamda = 1.0
    known = {label: torch.rand(FEATURES) for label in range(CLASSES)}
    samples: list[Samples] = [list(zip(x, y, strict=True)) for x, y in clients]
    parties = []
    for k, own in enumerate(samples):
        party = clientProto(args, k, len(own), 0, train_slow=False, send_slow=False)
        party.set_protos(known)
        parties.append(party)

    def given(dataset: str, idx: int, **_: object) -> Samples:
        return samples[idx]

    def work() -> None:
        with mock.patch.object(clientbase, "read_client_data", given):
            for party in parties:
                party.train()

    return work


def main() -> None:
    """Time those whose code is given, print a table and record it."""
    parser = arguments(__doc__, "speed/peers.json")
    parser.add_argument("--fedproto", type=Path, help="a checkout of FedProto's reference code")
    parser.add_argument("--pfllib", type=Path, help="a checkout of PFLlib")
    parser.add_argument("--repeats", type=int, default=3, help="timed repeats (default: 3)")
    args = parser.parse_args()
    clients = held(ours().runs.engines[0].shares)
    candidates: dict[str, Callable[[], None]] = {}
    for used in sorted({1, torch.get_num_threads()}):
        # An engine has as many threads as there are when it is made.
        with threads(used):
            engine = ours()
        works: dict[str, Callable[[], None]] = {"fedrfq": engine}
        if args.fedproto:
            works["FedProto"] = fedproto(args.fedproto, clients)
        if args.pfllib:
            works["PFLlib"] = pfllib(args.pfllib, clients)
        for name, work in works.items():
            candidates[f"{name}, {used} threads"] = on_threads(used, work)
    best = alternated(candidates, args.repeats)
    table = Table("program", "s per round", "CPU s", "samples/s")
    for name, one in best.items():
        rate = f"{engine.samples / one.seconds:,.0f}"
        table.add_row(name, f"{one.seconds:.3f}", f"{one.cpu_seconds:.3f}", rate)
    console().print(table)
    rows = {name: {"s": one.seconds, "cpu_s": one.cpu_seconds} for name, one in best.items()}
    record(args.out, {"samples": engine.samples, "repeats": args.repeats, "rounds": rows})


if __name__ == "__main__":
    main()
