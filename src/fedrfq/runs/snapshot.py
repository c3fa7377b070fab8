"""What a report needs besides the records: the partition and the last round's prototypes."""

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
from fedrfq.files import regular, tensors
from fedrfq.files.atomic import write_atomically
from fedrfq.prototypes.fixed_point import Globals, Uploads

PARTITION = "partition.csv"
PROTOTYPES = "prototypes.safetensors"
_COLUMNS = ("client", "class", "train", "test")
# Reports read runs of others: a larger file is refused.
_MAX_BYTES = 1 << 26
# The number of dimensions and the type of every tensor of a snapshot.
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
    """How many samples of a class a client trains on and is tested on."""

    client: int
    label: int
    train: int
    test: int


def shares(partition: Partition, dataset: Dataset) -> list[Share]:
    """Return the share of every client in every class it holds."""
    test_y = dataset.test_y
    if partition.held_out:
        test_y = dataset.train_y
    classes = len(dataset.classes)
    counted = []
    for client, held in enumerate(partition.classes):
        train_J = np.bincount(dataset.train_y[partition.train[client]], minlength=classes)
        test_J = np.bincount(test_y[partition.test[client]], minlength=classes)
        counted += [Share(client, j, int(train_J[j]), int(test_J[j])) for j in held.tolist()]
    return counted


def save_shares(folder: Path, rows: list[Share]) -> None:
    """Write the shares to partition.csv in `folder`."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(_COLUMNS)
    writer.writerows((share.client, share.label, share.train, share.test) for share in rows)
    write_atomically(folder / PARTITION, table.getvalue().encode())


def load_shares(folder: Path) -> list[Share] | None:
    """Return the shares in `folder`, or None where there is no partition.csv."""
    path = folder / PARTITION
    if not path.is_file():
        return None
    try:
        header, *rows = csv.reader(regular.read_text(path, _MAX_BYTES).splitlines())
        loaded = [Share(*map(_count, row)) for row in rows]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise UserError(f"cannot read {path} ({error}): restore it, or remove it") from error
    if tuple(header) != _COLUMNS:
        raise UserError(
            f"{path}: expected the columns {', '.join(_COLUMNS)}, found others; "
            "restore it, or remove it"
        )
    return loaded


def _count(text: str) -> int:
    # Nine digits fit everywhere; int() alone would take any length, signs and spaces.
    if not text.isdecimal() or len(text) > 9:
        raise ValueError(f"{text[:20]!r} is not a count")
    return int(text)


@dataclass(frozen=True)
class PrototypeSnapshot:
    """What the clients sent in a round, and the global prototypes that came of it.

    There is a row for each client and class. All values are in fixed point.
    """

    round: int
    client_R: Ints
    label_R: Ints
    count_R: Ints
    values_RV: Ints
    globals_: Globals

    @staticmethod
    def of(number: int, sent: Uploads, globals_: Globals) -> PrototypeSnapshot:
        """Return the snapshot of round `number`."""
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
        """Return a snapshot for a round of which the clients' uploads are not known."""
        none = np.zeros(0, np.int64)
        return PrototypeSnapshot(number, none, none, none, globals_.values_JV[:0], globals_)

    def save(self, folder: Path) -> None:
        """Write the snapshot to prototypes.safetensors in `folder`."""
        arrays = {
            "client": self.client_R,
            "class": self.label_R,
            "count": self.count_R,
            "values": self.values_RV,
            "globals/present": self.globals_.present_J,
            "globals/values": self.globals_.values_JV,
        }
        named = {}
        for name, (_, dtype) in _KINDS.items():
            named[name] = torch.from_numpy(arrays[name]).to(dtype)
        tensors.save(folder / PROTOTYPES, named, {"round": str(self.round)})

    @staticmethod
    def load(folder: Path) -> PrototypeSnapshot | None:
        """Return the snapshot in `folder`, or None where there is none."""
        path = folder / PROTOTYPES
        if not path.is_file():
            return None
        named, metadata = tensors.load(path, _MAX_BYTES)
        if {name: (t.dim(), t.dtype) for name, t in named.items()} != _KINDS:
            raise UserError(
                f"{path} does not have the tensors of a prototype snapshot: "
                "restore it, or remove it"
            )
        ints = {name: named[name].numpy().astype(np.int64) for name in _KINDS}
        number = metadata.get("round", "")[:9]
        snapshot = PrototypeSnapshot(
            round=int(number) if number.isdecimal() else 0,
            client_R=ints["client"],
            label_R=ints["class"],
            count_R=ints["count"],
            values_RV=ints["values"],
            globals_=Globals(ints["globals/present"] > 0, ints["globals/values"]),
        )
        if not snapshot.fits():
            raise UserError(
                f"{path} has prototypes of other classes or lengths than its global ones: "
                "restore it, or remove it"
            )
        return snapshot

    def fits(self) -> bool:
        """Return whether all arrays agree in their lengths and no class is unknown."""
        if self.globals_.values_JV.ndim != 2:
            return False
        classes, size = self.globals_.values_JV.shape
        rows = len(self.client_R)
        return (
            self.label_R.shape == (rows,)
            and self.count_R.shape == (rows,)
            and self.values_RV.shape == (rows, size)
            and self.globals_.present_J.shape == (classes,)
            and bool(self.label_R.min(initial=0) >= 0)
            and bool(self.label_R.max(initial=-1) < classes)
        )
