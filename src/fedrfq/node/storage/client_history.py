"""A client's history: one line per round in rounds.jsonl in its folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.files.atomic import reporting_write_errors
from fedrfq.files.strict_json import to_json

NAME = "rounds.jsonl"


@dataclass(frozen=True)
class HistoryLine:
    """What a client records of one round.

    `at` says when it heard the result, in UTC; it is missing if the client was away then.

    Accuracies are in percent, on the client's own test samples; those by prototypes are missing
    where a method has none to predict by. The losses are missing if the client did not train in the
    round, the verdict ("kept" or "filtered"), the score and the weight if its upload came too late.
    The weight is what is left of the upload's, in percent; the reason says why it is not all.
    `seconds` counts from the moment the client knew the previous round.

    `accuracy_combined` is by the client's own model together with its classifier on the public map,
    and is missing without a map. The last three are of the final prediction on the common test set,
    which has all classes: on all, on those that the client holds, and on those it does not. They
    are missing in rounds without that test, and where the client has samples of its own.
    """

    round: int
    accuracy: float
    prototype_accuracy: float | None
    prototype_accuracy_own: float | None
    loss: float | None
    loss_classification: float | None
    loss_prototype: float | None
    verdict: str
    score: int | None
    seconds: float
    weight: float | None = None
    reason: str = ""
    accuracy_combined: float | None = None
    accuracy_all: float | None = None
    accuracy_held: float | None = None
    accuracy_unheld: float | None = None
    at: str = ""

    def facts(self) -> dict[str, Any]:
        """Return what is known, rounded to a few digits, for the log."""
        facts = {}
        for key, value in asdict(self).items():
            if key == "at":
                # Every line of the log has its time.
                continue
            if isinstance(value, float):
                facts[key] = round(value, 4)
            elif value not in (None, ""):
                facts[key] = value
        return {**facts, "verdict": self.verdict or "upload too late"}


class ClientHistory:
    """The history of one run.

    `last` is the last round written. `at` is when the newest result was heard, in this run or those
    before; None if the client was away then.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path = folder / NAME
        self.run = run
        self.at: datetime | None = None
        with reporting_write_errors(self.path):
            self.path.touch()
            # A crash may have left half a line at the end. The round is written again.
            lines, newline, _ = self.path.read_bytes().rpartition(b"\n")
            os.truncate(self.path, len(lines + newline))
        self.last = max((self._round(line) for line in lines.splitlines()), default=0)

    def write(self, line: HistoryLine) -> None:
        """Append a line, unless its round has been written already."""
        if line.round <= self.last:
            return
        # One write per line and no sync: a crash tears the last line at most, and nothing is
        # restored from this file.
        with reporting_write_errors(self.path), self.path.open("ab") as file:
            file.write(to_json({"run": self.run, **asdict(line)}).encode() + b"\n")
        self.last = line.round
        self.at = _time(line.at)

    def _round(self, line: bytes) -> int:
        """Return the round of a line, or 0 if it belongs to another run."""
        try:
            # The file may go on from an earlier run, with rounds of the same numbers.
            fields = json.loads(line)
            self.at = _time(fields.get("at", ""))
            if fields["run"] != self.run:
                return 0
            return int(fields["round"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path} has a line that this program did not write: move the file away"
            ) from error


def _time(text: str) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
