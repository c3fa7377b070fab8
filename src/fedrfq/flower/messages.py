"""What travels between the server app and the nodes. Either side may be hostile: every field is checked and bounded before
anything is made of it, and what is not a letter of this layout is refused.

A letter is one `ConfigRecord` of plain values; numbers that come in rows are little-endian bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from numpy.typing import NDArray

from fedrfq.consensus.wire import Reader, Refused, sized
from fedrfq.errors import UserError

NAME = "fedrfq"
VERSION = 1
MOST_CLIENTS = 1 << 20
MOST_ROUNDS = 1 << 31
MOST_CLASSES = 1 << 16
# of an experiment or a line, and of all else
MOST_TEXT = 1 << 16
MOST_BYTES = 1 << 30
MOST_SECONDS = 1e9
_MOST_LINE = 1000

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Row = tuple[float, float, float]


@dataclass(frozen=True)
class RoundOrder:
    """From the server: the last round that was decided (0: none), with its certificate, its GLOBALS and its VERDICTS as
    `journal.packed` writes them (nothing where nothing is exchanged). The node tests its models with it, and trains the next
    round if it is to `train`. To `hello` it only answers whom it hosts."""

    run: str  # the federation's, in hex; nothing where nothing is exchanged
    experiment: str  # as `toml.dump` writes its table
    round: int
    last: bytes
    train: bool
    hello: bool = False
    state: str = (
        ""  # the folder for models where a node has none of its own and the keys are simulated
    )

    def record(self) -> RecordDict:
        return _record(vars(self))

    @staticmethod
    def read(record: RecordDict) -> RoundOrder:
        fields = _fields(record, RoundOrder)
        order = RoundOrder(**fields)
        _check(
            len(order.run) in (0, 64) and set(order.run) <= set("0123456789abcdef"), "a run's id"
        )
        _check(
            len(order.experiment) <= MOST_TEXT and len(order.state) <= MOST_TEXT, "an experiment"
        )
        _check(order.state.isprintable(), "a folder")
        _check(0 <= order.round < MOST_ROUNDS, "a round")
        _check(not (order.last and (order.round == 0 or not order.run)), "a result of no round")
        return order


@dataclass(frozen=True, eq=False)
class TestFigures:
    """Of tests with the result of a round: a value for each hosted client, in their order. Accuracies are in percent; those
    by prototypes are nan where nothing is exchanged, and then there are no distances.

    Prototype failure compares the samples of all clients with each other. So each test sample's label and its distance to
    every global prototype are here, `samples_K` of them a client: `metrics.prototype_failure` takes them as they are.
    """

    head_K: Floats
    prototype_K: Floats
    prototype_own_K: Floats
    collapsed_K: Ints  # 1: its training collapsed
    saturated_K: Ints  # values that were cut in its upload of that round
    samples_K: Ints
    y_N: Ints
    distance_NJ: Singles

    def write(self) -> bytes:
        accuracies = np.stack([self.head_K, self.prototype_K, self.prototype_own_K])
        counts = np.stack([self.collapsed_K, self.saturated_K, self.samples_K])
        columns = (
            accuracies.astype("<f8"),
            counts.astype("<i8"),
            self.y_N.astype("<i8"),
            self.distance_NJ.astype("<f4"),
        )
        return b"".join(sized(column.tobytes()) for column in columns)

    @staticmethod
    def read(content: bytes, clients: int) -> TestFigures:
        reader = Reader(content)
        accuracies = _rows(reader, "<f8", 3, clients)
        counts = _rows(reader, "<i8", 3, clients)
        y_N = _array(reader, "<i8")
        flat = _array(reader, "<f4")
        _check(not reader.left(), "more figures")
        _check(
            bool((counts >= 0).all() and (counts <= MOST_BYTES).all() and (counts[0] <= 1).all()),
            "counts",
        )
        _check(int(counts[2].sum()) == len(y_N), "the numbers of test samples")
        if len(y_N):
            classes = len(flat) // len(y_N)
        else:
            classes = 0
        _check(classes * len(y_N) == len(flat), "distances")
        if classes:
            known = accuracies
        else:
            known = accuracies[:1]
        _check(bool(((known >= 0) & (known <= 100)).all()), "accuracies")
        _check(bool((y_N >= 0).all() and (y_N < (classes or MOST_CLASSES)).all()), "labels")
        _check(not (flat < 0).any(), "distances")
        distance_NJ = flat.reshape(len(y_N), classes)
        return TestFigures(
            accuracies[0],
            accuracies[1],
            accuracies[2],
            counts[0],
            counts[1],
            counts[2],
            y_N,
            distance_NJ,
        )


@dataclass(frozen=True, eq=False)
class NodeAnswer:
    """From a node. `uploads` are signed UPLOAD messages as they go over the wire, of the hosted clients that took part in
    `round` (0: nothing was trained). Where there is an `error`, nothing else is said."""

    clients: tuple[int, ...] = ()  # hosted, ascending
    round: int = 0  # that was trained
    uploads: tuple[bytes, ...] = ()
    trained: tuple[int, ...] = ()  # by whom, ascending
    losses: tuple[Row, ...] = ()  # theirs: total, classification, prototype
    figures: TestFigures | None = None  # of the order's round
    left_out: tuple[
        int, ...
    ] = ()  # hosted clients that sent an upload of the order's round and are in no verdict of it
    seconds: float = 0.0  # of training
    error: str = ""  # one line

    def record(self) -> RecordDict:
        clients, trained, left_out = (
            _numbers(column) for column in (self.clients, self.trained, self.left_out)
        )
        return _record(
            {
                "clients": clients,
                "round": self.round,
                "uploads": b"".join(map(sized, self.uploads)),
                "trained": trained,
                "losses": np.array(self.losses, "<f8").tobytes(),
                "figures": self.figures.write() if self.figures else b"",
                "left_out": left_out,
                "seconds": self.seconds,
                "error": self.error,
            }
        )

    @staticmethod
    def read(record: RecordDict) -> NodeAnswer:
        found = _fields(record, NodeAnswer)
        clients, trained, left_out = (
            _clients(found[key]) for key in ("clients", "trained", "left_out")
        )
        _check(set(trained) | set(left_out) <= set(clients), "clients that are not hosted")
        _check(
            0 <= found["round"] < MOST_ROUNDS and bool(found["round"]) >= bool(trained), "a round"
        )
        _check(0 <= found["seconds"] < MOST_SECONDS, "seconds")
        if found["figures"]:
            figures = TestFigures.read(found["figures"], len(clients))
        else:
            figures = None
        losses = _losses(found["losses"], len(trained))
        uploads = _uploads(found["uploads"], len(trained))
        error = one_line(found["error"])
        return NodeAnswer(
            clients,
            found["round"],
            uploads,
            trained,
            losses,
            figures,
            left_out,
            found["seconds"],
            error,
        )


_KINDS: dict[type, dict[str, type]] = {
    RoundOrder: {
        "run": str,
        "experiment": str,
        "round": int,
        "last": bytes,
        "train": bool,
        "hello": bool,
        "state": str,
    },
    NodeAnswer: {
        "clients": bytes,
        "round": int,
        "uploads": bytes,
        "trained": bytes,
        "losses": bytes,
        "figures": bytes,
        "left_out": bytes,
        "seconds": float,
        "error": str,
    },
}


def _record(fields: Mapping[str, Any]) -> RecordDict:
    return RecordDict({NAME: ConfigRecord({"version": VERSION, **fields})})


def _fields(record: RecordDict, letter: type) -> dict[str, Any]:
    """The letter's fields, each of its type; one that has others, or lacks one, is refused."""
    found = record.get(NAME)
    if not isinstance(found, ConfigRecord) or len(record) != 1:
        raise UserError("what came is no letter of fedrfq: the other side runs another app")
    fields: dict[str, Any] = dict(found)
    if fields.pop("version", None) != VERSION:
        raise UserError(
            "the other side runs another version of fedrfq: install the same on all machines"
        )
    kinds = _KINDS[letter]
    _check(fields.keys() == kinds.keys(), "fields")
    for key, kind in kinds.items():
        _check(type(fields[key]) is kind, key)
        _check(not isinstance(fields[key], bytes) or len(fields[key]) <= MOST_BYTES, key)
    return fields


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise UserError(f"a letter is refused, it has {what} that cannot be")


def _numbers(clients: Sequence[int]) -> bytes:
    return np.array(clients, "<u4").tobytes()


def _clients(content: bytes) -> tuple[int, ...]:
    _check(len(content) % 4 == 0 and len(content) <= 4 * MOST_CLIENTS, "a list of clients")
    clients = tuple(np.frombuffer(content, "<u4").tolist())
    _check(
        all(a < b for a, b in pairwise(clients)) and (not clients or clients[-1] < MOST_CLIENTS),
        "a list of clients",
    )
    return clients


def _losses(content: bytes, number: int) -> tuple[Row, ...]:
    """Any numbers: what becomes of a malicious client's training is its own affair."""
    _check(len(content) == 24 * number, "losses")
    rows = np.frombuffer(content, "<f8").reshape(number, 3)
    return tuple(
        (total, classification, prototype) for total, classification, prototype in rows.tolist()
    )


def _uploads(content: bytes, most: int) -> tuple[bytes, ...]:
    reader = Reader(content)
    found = []
    try:
        while reader.left():
            found.append(reader.sized())
    except Refused as error:
        raise UserError(f"a letter is refused, its uploads are cut short: {error}") from error
    _check(len(found) <= most, "more uploads than clients that trained")
    return tuple(found)


def _array(reader: Reader, kind: str) -> NDArray[Any]:
    try:
        content = reader.sized()
    except Refused as error:
        raise UserError(f"a letter is refused, its figures are cut short: {error}") from error
    size = np.dtype(kind).itemsize
    _check(len(content) % size == 0, "figures")
    found = np.frombuffer(content, kind)
    return found.astype(found.dtype.newbyteorder("="))


def _rows(reader: Reader, kind: str, rows: int, columns: int) -> NDArray[Any]:
    found = _array(reader, kind)
    _check(len(found) == rows * columns, "figures of other clients")
    return found.reshape(rows, columns)


def one_line(text: str) -> str:
    """Somebody else's words as one line that does no harm to a terminal or a log."""
    return "".join(c if c.isprintable() else " " for c in text[:_MOST_LINE])
