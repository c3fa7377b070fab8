"""TOML tables of settings: read strictly, changed by `--set`, and written back."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrfq.errors import UserError

Table = dict[str, Any]

# Of a file with settings: those of thousands of keys take fewer bytes.
MAX_BYTES = 1 << 20
_STRING = r'"(?:[^"\\]|\\.)*"'
# The only lines that `dump` writes: empty, [name], [[name]], or key = value, where a value may be
# a list of strings.
_LINE = re.compile(
    rf"(\[{{1,2}}\w+\]{{1,2}})?|\w+ = ({_STRING}|[\w.+-]+|\[{_STRING}(?:, {_STRING})*\])"
)


def read(path: Path) -> Table:
    """Read an experiment file that a user named; it may be a pipe, such as /dev/stdin."""
    try:
        content = _read(path)
        if len(content) > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES:,} bytes")
        return tomllib.loads(content.decode())
    except FileNotFoundError:
        raise UserError(
            f"there is no experiment file {path}: `fedrfq config > {path}` writes one to start from"
        ) from None
    # ValueError also covers integers with too many digits, RecursionError lists nested too deeply.
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read as TOML: {error}") from error


def _read(path: Path) -> bytes:
    """Return the first bytes of a file, or of a pipe that somebody writes to."""
    # Opening a pipe would wait for a writer, perhaps for ever.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        os.set_blocking(file.fileno(), True)
        content = file.read(MAX_BYTES + 1)
        if not content and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is a pipe, and nobody writes to it")
    return content


def plain(text: str) -> Table:
    """Return the table in a file of which every line could be `dump`'s; ValueError otherwise.

    Such files may be hostile. Lists nested deeply, or a key of a million parts, would take all of
    the parser's stack, or of the memory, and no such text reaches it.
    """
    for number, line in enumerate(text.split("\n"), start=1):
        if not _LINE.fullmatch(line):
            raise ValueError(f"line {number} is neither the name of a table nor KEY = VALUE")
    return tomllib.loads(text)


def strict(text: str) -> Table:
    """Return the table that `dump` wrote as `text`; any other text is a ValueError.

    Such files are hashed and signed, so one table must have exactly one text.
    """
    table = plain(text)
    # The parser accepts other spellings of the same table.
    if dump(table) != text:
        raise ValueError("it is not as this program writes it")
    return table


def assign(table: Table, assignment: str) -> Table:
    """Return the table with `a.b=c` set; c is a TOML value or, failing that, a plain string."""
    key, equals, text = assignment.partition("=")
    if not equals or not key.strip():
        raise UserError(
            f"--set takes KEY=VALUE, for example --set method.lam=0.5; found '{assignment}'"
        )
    # The nested table {a: {b: c}}, built from the inside.
    value = _value(text.strip())
    for part in reversed(key.strip().split(".")):
        value = {part: value}
    return merge(table, value)


def _value(text: str) -> Any:
    # Unquoted text is no TOML value; users should not have to quote twice in a shell.
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Table:
    """Return both tables merged at every level; where both have a value, `over` wins."""
    merged = dict(under)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(below, value)
        else:
            merged[key] = value
    return merged


def dump(table: Mapping[str, Any]) -> str:
    """Return TOML text of plain values, lists of strings, tables one level deep, lists of tables.

    A list that is empty leaves no trace.
    """
    # TOML wants plain values first: after a [table] line they would belong to that table.
    lines = _assignments({key: value for key, value in table.items() if not _is_nested(value)})
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *_assignments(value)]
        elif _is_nested(value):
            for row in value:
                lines += ["", f"[[{key}]]", *_assignments(row)]
    return "\n".join(lines) + "\n"


def _assignments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_text(value)}" for key, value in values.items()]


def _is_nested(value: Any) -> bool:
    if isinstance(value, list):
        return not value or isinstance(value[0], Mapping)
    return isinstance(value, Mapping)


def _text(value: str | bool | int | float | list[str]) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, str):
        # A JSON string is a TOML string, but for DEL, which TOML wants escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    # Before repr: a bool is an int, and Python writes True.
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)
