"""What clients.csv says: the clients after the last round, and what became of uploads that were dropped or malicious."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from fedrfq.errors import UserError

_MOST_BYTES = 1 << 28
_MOST_EVENTS = 100_000
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
    """A client after a round; accuracies in percent, none where there is none."""

    round: int
    number: int
    classes: int
    samples: int
    accuracy: float | None
    prototype_accuracy: float | None
    malicious: bool
    verdict: str  # kept, filtered, refused, or nothing where it did not take part

    @staticmethod
    def of(row: dict[str, str]) -> ClientRow:
        return ClientRow(
            int(row["round"]),
            int(row["client"]),
            int(row["classes"]),
            int(row["samples"]),
            _number(row["accuracy"]),
            _number(row["prototype_accuracy"]),
            row["malicious"] == "1",
            row["verdict"] if row["verdict"] in ("kept", "filtered", "refused") else "",
        )


@dataclass(frozen=True)
class Clients:
    """`last`: each client after the last round. `events`: uploads that were dropped, or sent by malicious clients."""

    last: tuple[ClientRow, ...]
    events: tuple[ClientRow, ...]

    @staticmethod
    def read(path: Path) -> Clients:
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            with path.open(encoding="utf-8", newline="") as file:
                return _read(
                    csv.DictReader(line for line in file if line.endswith("\n"))
                )  # the last may be torn
        except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
            raise UserError(
                f"{path.name} cannot be read ({error!r}): no chart of clients."
            ) from error


def _read(rows: csv.DictReader[str]) -> Clients:
    last: dict[int, ClientRow] = {}
    events: list[ClientRow] = []
    missing = set(_COLUMNS) - set(rows.fieldnames or ())
    if missing:
        raise ValueError(f"it has no column {min(missing)}")
    for row in rows:
        client = ClientRow.of(row)
        last[client.number] = client
        if (client.malicious and client.verdict) or client.verdict in ("filtered", "refused"):
            events.append(client)
        if len(events) > _MOST_EVENTS:
            raise ValueError(
                f"it tells of more than {_MOST_EVENTS:,} uploads that were malicious or dropped"
            )
    return Clients(tuple(last[number] for number in sorted(last)), tuple(events))


def _number(text: str) -> float | None:
    if text:
        value = float(text)
    else:
        value = math.nan
    if math.isfinite(value):
        return value
    return None
