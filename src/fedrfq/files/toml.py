"""Tables of settings: read strictly, changed by `--set`, and written back."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError

Table = dict[str, Any]
_LINE = re.compile(
    r'(\[{1,2}\w+\]{1,2})?|\w+ = ("(?:[^"\\]|\\.)*"|[\w.+-]+)'
)  # of what `dump` writes


def read(path: Path) -> Table:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"there is no experiment file {path}: `fedrfq config > {path}` writes one to start from"
        ) from None
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # whole numbers may be too long, and lists too deep
        raise UserError(f"{path} cannot be read as TOML: {error}") from error


def strict(text: str) -> Table:
    """What `dump` wrote this text of; any other text is a ValueError, before a parser could be led into its depths."""
    if not all(_LINE.fullmatch(line) for line in text.split("\n")):
        raise ValueError("a line is neither a table's name nor a key with its value")
    table = tomllib.loads(text)
    if dump(table) != text:
        raise ValueError("it is not as this program writes it")
    return table


def assign(table: Table, assignment: str) -> Table:
    """The table with `a.b=c` set; c is a TOML value, or else a plain string."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise UserError(
            f"--set takes KEY=VALUE, for example --set method.lam=0.5; found '{assignment}'"
        )
    value = _value(text.strip())
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return merge(table, value)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Both tables in one; where both have a value, the second's."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def dump(table: Mapping[str, Any]) -> str:
    """TOML text of plain values, tables one level deep, and lists of tables."""
    lines = [f"{key} = {_text(value)}" for key, value in table.items() if not _nested(value)]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *(f"{k} = {_text(v)}" for k, v in value.items())]
        elif _nested(value):
            for row in value:
                lines += ["", f"[[{key}]]", *(f"{k} = {_text(v)}" for k, v in row.items())]
    return "\n".join(lines) + "\n"


def _nested(value: Any) -> bool:
    return isinstance(value, Mapping | list)


def _text(value: str | bool | int | float) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
