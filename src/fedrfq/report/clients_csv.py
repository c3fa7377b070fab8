"""Reads clients.csv: the clients after the last round, and uploads that are worth a look."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from fedrfq.errors import UserError
from fedrfq.files import regular
from fedrfq.runs.run_directory import MAX_ROW_BYTES

# A report keeps every event in memory, and reads a file from somebody else: both are bounded.
_MAX_BYTES = 1 << 28
_MAX_EVENTS = 100_000
# Characters of a reason that are shown.
_MAX_REASON = 1000
_FULL_PERCENT = 100
_VERDICTS = ("kept", "filtered", "refused")
_COLUMNS = (
    "round",
    "client",
    "classes",
    "samples",
    "accuracy",
    "prototype_accuracy",
    "malicious",
    "verdict",
)


@dataclass(frozen=True)
class ClientRow:
    """A client after a round; accuracies are in percent, or None where the run has none."""

    round: int
    number: int
    classes: int
    samples: int
    accuracy: float | None
    prototype_accuracy: float | None
    malicious: bool
    verdict: str  # kept, filtered, refused, or empty if the client did not take part
    # On the common test set; None in rounds without that test.
    accuracy_all: float | None
    accuracy_held: float | None
    accuracy_unheld: float | None
    ece: float | None
    # Of the upload, in percent; None if there was none, or the run is from before weights.
    weight: float | None
    reason: str  # why it weighs less, or was refused

    @staticmethod
    def of(row: dict[str, str]) -> ClientRow:
        """Parse a row of the file; a verdict that is not one of ours counts as none."""
        verdict = row["verdict"]
        if verdict not in _VERDICTS:
            verdict = ""
        return ClientRow(
            int(row["round"]),
            int(row["client"]),
            int(row["classes"]),
            int(row["samples"]),
            _number(row["accuracy"]),
            _number(row["prototype_accuracy"]),
            row["malicious"] == "1",
            verdict,
            # Runs from before there was that test lack the columns.
            _number(row.get("accuracy_all")),
            _number(row.get("accuracy_held")),
            _number(row.get("accuracy_unheld")),
            _number(row.get("ece")),
            _number(row.get("weight")),
            (row.get("reason") or "")[:_MAX_REASON],
        )

    @property
    def lighter(self) -> bool:
        """Return whether the upload was kept with less than its full weight."""
        return self.verdict == "kept" and self.weight is not None and self.weight < _FULL_PERCENT


@dataclass(frozen=True)
class Clients:
    """Clients after the last round (`last`), and uploads that are worth a look (`events`).

    These are malicious, or were dropped or given less weight.
    `tested` are the clients after the last round that tested them on all classes.
    """

    last: tuple[ClientRow, ...] = ()
    events: tuple[ClientRow, ...] = ()
    tested: tuple[ClientRow, ...] = ()

    @staticmethod
    def read(path: Path) -> Clients:
        """Read the file, or raise a UserError that a report can show as a note."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError(f"it has more than {_MAX_BYTES:,} bytes")
            complete_lines = (line.decode() for line in regular.lines(path, MAX_ROW_BYTES))
            return _read(csv.DictReader(complete_lines))
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise UserError(
                f"Cannot read {path.name} ({error!r}), so the charts of clients are missing."
            ) from error


def _read(rows: csv.DictReader[str]) -> Clients:
    last: dict[int, ClientRow] = {}
    tested: dict[int, ClientRow] = {}
    events: list[ClientRow] = []
    missing = set(_COLUMNS) - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"it has no column {min(missing)}")
    for row in rows:
        client = ClientRow.of(row)
        # Rounds are in order, so the last row of a client stays.
        last[client.number] = client
        if client.accuracy_all is not None:
            tested[client.number] = client
        dropped = client.verdict in ("filtered", "refused")
        if dropped or client.lighter or (client.malicious and client.verdict):
            events.append(client)
        if len(events) > _MAX_EVENTS:
            raise ValueError(
                f"it lists more than {_MAX_EVENTS:,} uploads that were malicious or count for less"
            )
    return Clients(_in_order(last), tuple(events), _in_order(tested))


def _in_order(clients: dict[int, ClientRow]) -> tuple[ClientRow, ...]:
    return tuple(clients[number] for number in sorted(clients))


def _number(text: str | None) -> float | None:
    """Parse a number; a missing or empty cell, nan and infinity are None."""
    if text and math.isfinite(value := float(text)):
        return value
    return None
