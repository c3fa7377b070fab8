"""Who holds what, from a file: JSON, CSV or .npz with the numbers of samples.

JSON is `{"train": [[0, 5], [1, 2]], "test": [[3], [4]]}`, a list of sample numbers for each client.
CSV has a header `client,sample` or `client,part,sample`, where part is train or test. An .npz file
has arrays `train_0`, `test_0`, `train_1`, and so on. Numbers count from 0 in the order of the
dataset. Without test samples in the file, they are drawn from the classes that a client holds.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator

from fedrfq.data import npz
from fedrfq.data.dataset import Dataset
from fedrfq.data.partition.dealing import check_clients, deal_test
from fedrfq.data.partition.iid import uniform
from fedrfq.data.partition.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.files.options import check_ranges, option
from fedrfq.files.strict_json import from_json

_MAX_BYTES = 1 << 28  # of the file: some ten million samples
PARTS = ("train", "test")
# By part, the samples of each client.
Holdings = dict[str, dict[int, Any]]


@dataclass(frozen=True)
class FromFile:
    """Each client holds the samples that a file gives it; its hash is part of the experiment."""

    path: str = option("", "File that says who holds what", ".json, .csv or .npz")
    sha256: str = option("", "Hash of that file", "written when the experiment is made")
    test_samples: int = option(
        100, "Test samples of each client, at most, if the file names none", "1 or more"
    )

    def __post_init__(self) -> None:
        check_ranges("partition", self)
        if self.sha256 or not self.path:
            # A recorded experiment: the file is needed, and compared, when samples are dealt.
            return
        path = Path(self.path).expanduser().resolve()
        # An absolute path, so that the run can be resumed from anywhere.
        object.__setattr__(self, "path", str(path))
        object.__setattr__(self, "sha256", hashlib.sha256(_read(path)).hexdigest())

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Return each client's samples, as the file says."""
        check_clients(clients)
        if not self.path:
            raise UserError('partition.name = "file" needs partition.path: a .json, .csv or .npz')
        holdings = self._holdings()
        train = self._part(holdings, "train", clients, dataset.train_y)
        if "test" in holdings:
            test = self._part(holdings, "test", clients, dataset.test_y)
            self._check_held(dataset, train, test)
            return Partition.of(dataset, train, test)
        classes = len(dataset.classes)
        counts = [np.bincount(dataset.train_y[own], minlength=classes) for own in train]

        def drawn(count_J: Ints, available_J: Ints) -> Ints:
            return uniform(min(self.test_samples, int(available_J.sum())), available_J, rng)

        return Partition.of(dataset, train, deal_test(dataset, counts, drawn, rng))

    def _holdings(self) -> Holdings:
        """Return what the file says, if it is the one that the experiment records."""
        path = Path(self.path)
        content = _read(path)
        found = hashlib.sha256(content).hexdigest()
        if found != self.sha256:
            raise UserError(
                f"{path} has changed: the experiment is with sha256 {self.sha256[:12]}…, found "
                f"{found[:12]}…; restore it, or start anew without partition.sha256"
            )
        reader = _READERS.get(path.suffix.lower())
        if reader is None:
            raise UserError(
                f"partition.path: expected a file ending in {', '.join(_READERS)}, "
                f"found {path.name}"
            )
        try:
            return reader(content, path)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UserError(
                f"{path}: cannot be read as who holds what ({error}): see `partition.name = "
                '"file"` in the guide to your own data'
            ) from error

    def _part(self, holdings: Holdings, part: str, clients: int, labels: Ints) -> list[Ints]:
        """Return the checked samples of each client, sorted."""
        given = holdings.get(part, {})
        if sorted(given) != list(range(clients)):
            raise UserError(
                f"{self.path}: expected {part} samples of clients 0 to {clients - 1}, found those "
                f"of {len(given)} clients; set clients to their number, counted from 0"
            )
        return [self._samples(given[k], f"client {k}'s {part}", labels) for k in range(clients)]

    def _samples(self, given: Any, whose: str, labels: Ints) -> Ints:
        found = np.asarray(given)
        if not found.size:
            raise UserError(
                f"{self.path}: {whose} samples are none, and every client needs some; leave the "
                "client out, or the test samples of all"
            )
        if found.ndim != 1 or found.dtype.kind not in "iu":
            raise UserError(
                f"{self.path}: {whose} samples must be a list of whole numbers; "
                f"found {found.dtype} {found.shape}"
            )
        own: Ints = np.sort(found.astype(np.int64))
        if own[0] < 0 or own[-1] >= len(labels):
            raise UserError(
                f"{self.path}: {whose} samples must be 0 to {len(labels) - 1}, found "
                f"{own[0] if own[0] < 0 else own[-1]}"
            )
        twice = own[1:][np.diff(own) == 0]
        if len(twice):
            raise UserError(f"{self.path}: {whose} sample {twice[0]} is there twice: remove one")
        return own

    def _check_held(self, dataset: Dataset, train: list[Ints], test: list[Ints]) -> None:
        """Refuse test samples of classes that a client does not train on."""
        for client, (own, asked) in enumerate(zip(train, test, strict=True)):
            foreign = np.setdiff1d(dataset.test_y[asked], dataset.train_y[own])
            if len(foreign):
                raise UserError(
                    f"{self.path}: client {client} is tested on class "
                    f"{dataset.classes[foreign[0]]!r}, of which it has no training samples: "
                    "remove these test samples"
                )


def _read(path: Path) -> bytes:
    try:
        return regular.read_bytes(path, _MAX_BYTES, links=True)
    except OSError as error:
        raise UserError(
            f"partition.path: cannot read {path}: {error.strerror}; check the path"
        ) from error


def _json(content: bytes, path: Path) -> Holdings:
    table = from_json(content)
    if not isinstance(table, Mapping) or not {"train"} <= set(table) <= set(PARTS):
        raise ValueError("expected a table with train, and test if you like")
    for part, lists in table.items():
        if not isinstance(lists, list):
            raise ValueError(f"expected a list for each client in {part}")
    return {part: dict(enumerate(lists)) for part, lists in table.items()}


def _csv(content: bytes, path: Path) -> Holdings:
    rows = csv.DictReader(content.decode("utf-8-sig").splitlines(), strict=True)
    columns = set(rows.fieldnames or [])
    if not {"client", "sample"} <= columns <= {"client", "part", "sample"}:
        raise ValueError("expected the columns client, sample, and part if you like")
    holdings: Holdings = {}
    for line, row in enumerate(rows, start=2):
        part = row.get("part", "train")
        if part not in PARTS or None in row:
            raise ValueError(f"line {line}: part must be train or test, and no column more")
        client, sample = (_number(row[key], line) for key in ("client", "sample"))
        holdings.setdefault(part, {}).setdefault(client, []).append(sample)
    return holdings


def _number(text: str | None, line: int) -> int:
    if text is None or not text.strip().isdecimal():
        raise ValueError(f"line {line}: expected a whole number, found {text!r:.40}")
    return int(text)


def _npz(content: bytes, path: Path) -> Holdings:
    holdings: Holdings = {}
    for name, array in npz.read_all(content, str(path)).items():
        part, _, client = name.partition("_")
        if part not in PARTS or not client.isdecimal():
            raise ValueError(f"expected arrays such as train_0 and test_0, found {name!r:.40}")
        holdings.setdefault(part, {})[int(client)] = array
    return holdings


_READERS: Mapping[str, Callable[[bytes, Path], Holdings]] = {
    ".json": _json,
    ".csv": _csv,
    ".npz": _npz,
}
