"""What a client writes down of each round: a line of rounds.jsonl in its folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.files.atomic import writing
from fedrfq.files.strict_json import to_json

NAME = "rounds.jsonl"


@dataclass(frozen=True)
class HistoryLine:
    """Accuracies are in percent, on the client's own test samples. Losses are missing if it did not train in the round, the
    verdict ("kept" or "filtered") and the score if its upload was not there in time."""

    round: int
    accuracy: float
    prototype_accuracy: float
    prototype_accuracy_own: float
    loss: float | None
    loss_classification: float | None
    loss_prototype: float | None
    verdict: str
    score: int | None
    seconds: float  # since the round before was known here

    def facts(self) -> dict[str, Any]:
        """For the log: what is known, in a few digits."""
        known = {key: value for key, value in asdict(self).items() if value is not None}
        digits = {
            key: round(value, 4) if isinstance(value, float) else value
            for key, value in known.items()
        }
        return {**digits, "verdict": self.verdict or "not there in time"}


class ClientHistory:
    """Of one run. `last` is the last round written down; a line that a crash cut short is gone."""

    def __init__(self, folder: Path, run: str) -> None:
        self.path = folder / NAME
        self.run = run
        with writing(self.path):
            self.path.touch()
            whole = self.path.read_bytes().rpartition(b"\n")
            os.truncate(self.path, len(whole[0] + whole[1]))
        self.last = max((self._round(line) for line in whole[0].splitlines()), default=0)

    def write(self, line: HistoryLine) -> None:
        """Once a round, however often it is said."""
        if line.round <= self.last:
            return
        with writing(self.path), self.path.open("ab") as file:
            file.write(to_json({"run": self.run, **asdict(line)}).encode() + b"\n")
        self.last = line.round

    def _round(self, line: bytes) -> int:
        """0 where it is of another run."""
        try:
            found = json.loads(line)
            if found["run"] == self.run:
                return int(found["round"])
            return 0
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path} is not as this program writes it: move it away"
            ) from error
