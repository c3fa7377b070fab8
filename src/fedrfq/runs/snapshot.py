"""What a report shows of a run and its records do not have: who was dealt what, and the last round's prototypes."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedrfq.data.dataset import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.files import tensors
from fedrfq.files.atomic import write_atomically
from fedrfq.prototypes.fixed_point import Globals, Uploads

PARTITION = "partition.csv"
PROTOTYPES = "prototypes.safetensors"
_COLUMNS = ("client", "class", "train", "test")
_MOST_BYTES = 1 << 26
_KINDS = {
    "client": (1, torch.int32),
    "class": (1, torch.int32),
    "count": (1, torch.int32),
    "values": (2, torch.int32),
    "globals/present": (1, torch.bool),
    "globals/values": (2, torch.int32),
}


@dataclass(frozen=True)
class Share:
    """How many samples of a class a client trains with, and is tested on."""

    client: int
    label: int
    train: int
    test: int


def shares(partition: Partition, dataset: Dataset) -> list[Share]:
    """Of every class that each client holds."""
    if partition.held_out:
        test_y = dataset.train_y
    else:
        test_y = dataset.test_y
    classes = len(dataset.classes)
    found = []
    for client, held in enumerate(partition.classes):
        train_J = np.bincount(dataset.train_y[partition.train[client]], minlength=classes)
        test_J = np.bincount(test_y[partition.test[client]], minlength=classes)
        found += [Share(client, j, int(train_J[j]), int(test_J[j])) for j in held.tolist()]
    return found


def save_shares(folder: Path, found: list[Share]) -> None:
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerows([_COLUMNS, *((s.client, s.label, s.train, s.test) for s in found)])
    write_atomically(folder / PARTITION, table.getvalue().encode())


def load_shares(folder: Path) -> list[Share] | None:
    """As they were written; none where they were not."""
    path = folder / PARTITION
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
        header, *rows = csv.reader(path.read_text(encoding="utf-8").splitlines())
        found = [Share(*map(_count, row)) for row in rows]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"{path} cannot be read ({error}): restore it, or remove it") from error
    if tuple(header) != _COLUMNS:
        raise UserError(
            f"{path} has other columns than {', '.join(_COLUMNS)}: restore it, or remove it"
        )
    return found


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text[:20]!r} is no count")
    return int(text)


@dataclass(frozen=True)
class PrototypeSnapshot:
    """What the clients sent in a round, a row for each client and class, and what came back. All in fixed point."""

    round: int
    client_R: Ints
    label_R: Ints
    count_R: Ints
    values_RV: Ints
    globals_: Globals

    @staticmethod
    def of(number: int, sent: Uploads, globals_: Globals) -> PrototypeSnapshot:
        row_R, label_R = np.nonzero(sent.counts_KJ)
        clients = np.array(sent.clients, np.int64)
        return PrototypeSnapshot(
            number,
            clients[row_R],
            label_R,
            sent.counts_KJ[row_R, label_R],
            sent.values_KJV[row_R, label_R],
            globals_,
        )

    @staticmethod
    def only_global(number: int, globals_: Globals) -> PrototypeSnapshot:
        """Where it is not known what the clients sent."""
        none = np.zeros(0, np.int64)
        return PrototypeSnapshot(number, none, none, none, globals_.values_JV[:0], globals_)

    def save(self, folder: Path) -> None:
        arrays = (
            self.client_R,
            self.label_R,
            self.count_R,
            self.values_RV,
            self.globals_.present_J,
            self.globals_.values_JV,
        )
        pairs = zip(_KINDS.items(), arrays, strict=True)
        named = {name: torch.from_numpy(array).to(kind) for (name, (_, kind)), array in pairs}
        tensors.save(folder / PROTOTYPES, named, {"round": str(self.round)})

    @staticmethod
    def load(folder: Path) -> PrototypeSnapshot | None:
        """As they were written; none where they were not."""
        path = folder / PROTOTYPES
        if not path.is_file():
            return None
        named, metadata = tensors.load(path, _MOST_BYTES)
        if {name: (t.dim(), t.dtype) for name, t in named.items()} != _KINDS:
            raise UserError(f"{path} has no prototypes: restore it, or remove it")
        ints = {name: named[name].numpy().astype(np.int64) for name in _KINDS}
        globals_ = Globals(ints["globals/present"] > 0, ints["globals/values"])
        number = metadata.get("round", "")[:9]
        found = PrototypeSnapshot(
            int(number) if number.isdecimal() else 0,
            ints["client"],
            ints["class"],
            ints["count"],
            ints["values"],
            globals_,
        )
        if not found.fits():
            raise UserError(
                f"{path} has prototypes of other classes or lengths than its global ones: restore or remove it"
            )
        return found

    def fits(self) -> bool:
        """Whether there are as many of each as there should be, and no class is unknown."""
        if self.globals_.values_JV.ndim != 2:
            return False
        (classes, size) = self.globals_.values_JV.shape
        rows = len(self.client_R)
        long = self.label_R.shape == self.count_R.shape == (rows,) and self.values_RV.shape == (
            rows,
            size,
        )
        known = self.label_R.min(initial=0) >= 0 and self.label_R.max(initial=-1) < classes
        return long and self.globals_.present_J.shape == (classes,) and bool(known)
