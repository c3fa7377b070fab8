"""The messages between the server app and the nodes.

Either side may be hostile, so every field is checked and bounded before it is used, and anything
with another layout is refused. A message is one `ConfigRecord` of plain values; rows of numbers are
little-endian bytes.
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

# The key of the record in a message, and the version of its layout.
NAME = "fedrfq"
VERSION = 2
# Bounds of what a hostile message can make its reader allocate or loop over.
MAX_CLIENTS = 1 << 20
MAX_ROUNDS = 1 << 31
MAX_CLASSES = 1 << 16
# Characters of an experiment or a folder, and bytes of any other field.
MAX_TEXT = 1 << 16
MAX_BYTES = 1 << 30
# Sums of this many seconds are still finite.
MAX_SECONDS = 1e9
_MAX_LINE = 1000

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
# A client's losses in a round: total, classification, prototype.
Losses = tuple[float, float, float]


@dataclass(frozen=True)
class RoundOrder:
    """What the server app asks of a node.

    It carries the result of the last decided round: its certificate, GLOBALS, VERDICTS and PUBLIC,
    as `round_log.pack` writes them (empty before the first round, and where nothing is exchanged).
    PUBLIC is left out if there are no public statistics, and if the node has them already.
    The node tests its models with the result, and then trains the next round if `train` is set.
    With `hello`, it only says which clients it hosts.
    """

    run: str  # the federation's run id in hex; empty where nothing is exchanged
    experiment: str  # as `toml.dump` writes its table
    round: int  # the last decided round; 0 before the first
    last: bytes
    train: bool
    hello: bool = False
    # Where a node keeps its models, if it has no folder of its own and its keys are simulated.
    state: str = ""

    def record(self) -> RecordDict:
        """Return the message to send."""
        return _record(vars(self))

    @staticmethod
    def read(record: RecordDict) -> RoundOrder:
        """Check and return a received order; raise a UserError if it is invalid."""
        order = RoundOrder(**_fields(record, RoundOrder))
        _check(len(order.run) in (0, 64) and set(order.run) <= set("0123456789abcdef"), "run id")
        _check(len(order.experiment) <= MAX_TEXT, "experiment")
        _check(len(order.state) <= MAX_TEXT and order.state.isprintable(), "state folder")
        _check(0 <= order.round < MAX_ROUNDS, "round")
        # Only a decided round of a federation has a result.
        _check(not order.last or (order.round > 0 and bool(order.run)), "result")
        return order


@dataclass(frozen=True, eq=False)
class NodeFigures:
    """What a node measured with the result of a round: a value for each hosted client, in order.

    Accuracies are in percent. Where nothing is exchanged, those by prototypes are nan and there
    are no distances.

    Prototype failure compares the samples of all clients with each other. So each test sample's
    label and its distances to all global prototypes are here, `samples_K` of them for each client,
    as `metrics.prototype_failure` takes them.

    `common_KF` has what each client knows of all classes, as `CommonFigures.packed` writes it. It
    has no columns in rounds without that test, and where clients have data of their own.
    """

    head_K: Floats
    prototype_K: Floats
    prototype_own_K: Floats
    collapsed_K: Ints  # 1 if the client's training collapsed
    saturated_K: Ints  # values that were clipped in the client's upload of that round
    samples_K: Ints
    y_N: Ints
    distance_NJ: Singles
    common_KF: Floats

    def write(self) -> bytes:
        """Return the figures as bytes."""
        accuracies = np.stack([self.head_K, self.prototype_K, self.prototype_own_K])
        counts = np.stack([self.collapsed_K, self.saturated_K, self.samples_K])
        columns = (
            accuracies.astype("<f8"),
            counts.astype("<i8"),
            self.y_N.astype("<i8"),
            self.distance_NJ.astype("<f4"),
            self.common_KF.astype("<f8"),
        )
        return b"".join(sized(column.tobytes()) for column in columns)

    @staticmethod
    def read(content: bytes, clients: int) -> NodeFigures:
        """Check and return the figures of so many clients."""
        reader = Reader(content)
        accuracies_3K = _rows(reader, "<f8", 3, clients)
        counts_3K = _rows(reader, "<i8", 3, clients)
        y_N = _array(reader, "<i8")
        distances = _array(reader, "<f4")
        common = _array(reader, "<f8")
        _check(not reader.left(), "figures: too many bytes")
        _check_counts(counts_3K, len(y_N))
        classes = 0
        if len(y_N):
            classes = len(distances) // len(y_N)
        _check(classes * len(y_N) == len(distances), "figures: number of distances")
        # Without distances nothing is exchanged, and accuracies by prototypes are nan.
        known = accuracies_3K if classes else accuracies_3K[:1]
        _check(bool(((known >= 0) & (known <= 100)).all()), "figures: accuracy")
        _check(bool((y_N >= 0).all() and (y_N < (classes or MAX_CLASSES)).all()), "figures: label")
        _check(not (distances < 0).any(), "figures: distance")
        _check(len(common) % max(clients, 1) == 0, "figures: number of those on all classes")
        # Those that a client does not have are nan.
        _check(not ((common < 0) | (common > 100)).any(), "figures: accuracy on all classes")
        head_K, prototype_K, prototype_own_K = accuracies_3K
        collapsed_K, saturated_K, samples_K = counts_3K
        return NodeFigures(
            head_K=head_K,
            prototype_K=prototype_K,
            prototype_own_K=prototype_own_K,
            collapsed_K=collapsed_K,
            saturated_K=saturated_K,
            samples_K=samples_K,
            y_N=y_N,
            distance_NJ=distances.reshape(len(y_N), classes),
            common_KF=common.reshape(clients, len(common) // max(clients, 1)),
        )


def _check_counts(counts_3K: Ints, samples: int) -> None:
    collapsed_K, _, samples_K = counts_3K
    _check(bool((counts_3K >= 0).all() and (counts_3K <= MAX_BYTES).all()), "figures: count")
    _check(bool((collapsed_K <= 1).all()), "figures: collapsed client")
    _check(int(samples_K.sum()) == samples, "figures: number of test samples")


@dataclass(frozen=True, eq=False)
class NodeAnswer:
    """What a node answers; if there is an `error`, all other fields are empty.

    `uploads` are signed UPLOAD messages as they go over the wire, of the hosted clients that took
    part in `round`. Round 0 means that nothing was trained.
    """

    clients: tuple[int, ...] = ()  # that the node hosts, ascending
    round: int = 0
    uploads: tuple[bytes, ...] = ()
    trained: tuple[int, ...] = ()  # the clients that trained the round, ascending
    losses: tuple[Losses, ...] = ()  # of the clients that trained, in their order
    figures: NodeFigures | None = None  # measured with the result of the order's round
    # Hosted clients that sent an upload in the order's round, and have no verdict in its result.
    left_out: tuple[int, ...] = ()
    seconds: float = 0.0  # spent on training
    error: str = ""  # one line

    def record(self) -> RecordDict:
        """Return the message to send."""
        figures = b""
        if self.figures:
            figures = self.figures.write()
        return _record(
            {
                "clients": _numbers(self.clients),
                "round": self.round,
                "uploads": b"".join(map(sized, self.uploads)),
                "trained": _numbers(self.trained),
                "losses": np.array(self.losses, "<f8").tobytes(),
                "figures": figures,
                "left_out": _numbers(self.left_out),
                "seconds": self.seconds,
                "error": self.error,
            }
        )

    @staticmethod
    def read(record: RecordDict) -> NodeAnswer:
        """Check and return a received answer; raise a UserError if it is invalid."""
        fields = _fields(record, NodeAnswer)
        clients = _clients(fields["clients"])
        trained = _clients(fields["trained"])
        left_out = _clients(fields["left_out"])
        number = fields["round"]
        _check(set(trained) | set(left_out) <= set(clients), "list of clients: not hosted")
        _check(0 <= number < MAX_ROUNDS and (number > 0 or not trained), "round")
        _check(0 <= fields["seconds"] < MAX_SECONDS, "seconds")
        figures = None
        if fields["figures"]:
            figures = NodeFigures.read(fields["figures"], len(clients))
        return NodeAnswer(
            clients=clients,
            round=number,
            uploads=_uploads(fields["uploads"], len(trained)),
            trained=trained,
            losses=_losses(fields["losses"], len(trained)),
            figures=figures,
            left_out=left_out,
            seconds=fields["seconds"],
            error=one_line(fields["error"]),
        )


# The type of every field on the wire.
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


def _fields(record: RecordDict, message: type) -> dict[str, Any]:
    """Return the fields of a message; refuse one that has other fields or values of other types."""
    content = record.get(NAME)
    if not isinstance(content, ConfigRecord) or len(record) != 1:
        raise UserError("received a message that is not fedrfq's: the other side runs another app")
    fields: dict[str, Any] = dict(content)
    if fields.pop("version", None) != VERSION:
        raise UserError(
            "the other side runs another version of fedrfq: install the same on all machines"
        )
    kinds = _KINDS[message]
    _check(fields.keys() == kinds.keys(), "set of fields")
    for key, kind in kinds.items():
        # Not isinstance: True is an int.
        _check(type(fields[key]) is kind, key)
        _check(kind is not bytes or len(fields[key]) <= MAX_BYTES, key)
    return fields


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise UserError(f"refused a message from the other side: invalid {what}")


def _numbers(clients: Sequence[int]) -> bytes:
    return np.array(clients, "<u4").tobytes()


def _clients(content: bytes) -> tuple[int, ...]:
    _check(len(content) % 4 == 0 and len(content) <= 4 * MAX_CLIENTS, "list of clients")
    clients = tuple(np.frombuffer(content, "<u4").tolist())
    _check(all(a < b for a, b in pairwise(clients)), "list of clients: not ascending")
    _check(not clients or clients[-1] < MAX_CLIENTS, "list of clients: number too large")
    return clients


def _losses(content: bytes, number: int) -> tuple[Losses, ...]:
    """Return so many clients' losses, which may be nan: malicious clients train as they like."""
    _check(len(content) == 24 * number, "losses")
    rows = np.frombuffer(content, "<f8").reshape(number, 3)
    return tuple(
        (total, classification, prototype) for total, classification, prototype in rows.tolist()
    )


def _uploads(content: bytes, trained: int) -> tuple[bytes, ...]:
    reader = Reader(content)
    uploads = []
    try:
        while reader.left():
            uploads.append(reader.sized())
    except Refused as error:
        raise UserError(f"refused a message: its uploads are cut short: {error}") from error
    _check(len(uploads) <= trained, "uploads: more than clients that trained")
    return tuple(uploads)


def _array(reader: Reader, kind: str) -> NDArray[Any]:
    try:
        content = reader.sized()
    except Refused as error:
        raise UserError(f"refused a message: its figures are cut short: {error}") from error
    size = np.dtype(kind).itemsize
    _check(len(content) % size == 0, "figures: part of a number")
    values = np.frombuffer(content, kind)
    return values.astype(values.dtype.newbyteorder("="))


def _rows(reader: Reader, kind: str, rows: int, columns: int) -> NDArray[Any]:
    values = _array(reader, kind)
    _check(len(values) == rows * columns, "figures: number of clients")
    return values.reshape(rows, columns)


def one_line(text: str) -> str:
    """Return a stranger's text as one short line that cannot harm a terminal or a log."""
    return "".join(c if c.isprintable() else " " for c in text[:_MAX_LINE])
