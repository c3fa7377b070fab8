"""Reads the lines of rounds.jsonl, which may be anybody's: every field is checked for its type."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError
from fedrfq.files.strict_json import from_json
from fedrfq.learning.evaluation import RoundRecord
from fedrfq.prototypes.fixed_point import MAX_COUNT

# A loss may grow to 3.4e38, the largest float32, and fall again. What is far larger would break the
# axes of a figure.
_MAX_NUMBER = 1e39


def parsed(path: Path, lines: Sequence[str]) -> list[RoundRecord]:
    """Return the records that the lines of the file at `path` state, of rounds 1, 2, and so on."""
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(_record(number, from_json(line)))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path}, line {number}: "
                f"expected the record of round {number}, found: {error!r:.200}; "
                "restore the file or start the run again"
            ) from error
    return records


def _record(number: int, values: Any) -> RoundRecord:
    # Keys that this version does not know are left out: a newer one may have written them.
    names = {f.name for f in fields(RoundRecord)}
    record = RoundRecord(**{key: values[key] for key in names & set(values)})
    if record.round != number:
        raise ValueError(f"it is of round {record.round}")
    for field in fields(record):
        if not _fits(getattr(record, field.name), str(field.type)):
            raise ValueError(f"{field.name} is not {field.type}")
    return record


def _fits(value: Any, kind: str) -> bool:
    """Return whether a record's value is of this kind, written as a type annotation."""
    if kind.startswith("list[int]"):
        return isinstance(value, list) and all(
            type(item) is int and 0 <= item <= MAX_COUNT for item in value
        )
    if kind.startswith("list[float") and value is not None:
        return isinstance(value, list) and all(_fits(item, "float") for item in value)
    if kind.startswith("dict"):
        return isinstance(value, dict) and all(
            key.isdecimal() and isinstance(item, str) for key, item in value.items()
        )
    if value is None:
        # JSON has no nan: a float that is not a number is written as null.
        return "None" in kind or "float" in kind
    types: tuple[type, ...] = (int, float)
    if kind.startswith("int"):
        types = (int,)
    return type(value) in types and math.isfinite(value) and abs(value) < _MAX_NUMBER
