"""The source of what a user wrote, in a file or typed into the cell of a notebook.

Python itself finds no source of a class that was typed into a cell, although it remembers the text
of every cell.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import suppress
from inspect import isfunction
from pathlib import Path
from typing import Any

CELL = "the notebook's cell"


def source_of(thing: Any) -> str:
    """Return the source of a class or a function; OSError where there is none."""
    try:
        return inspect.getsource(thing)
    except (OSError, TypeError):
        if isinstance(thing, type):
            return _class_in(_cell(thing), thing.__name__)
        raise OSError("there is no source of it") from None


def text_around(cls: type) -> tuple[str, str]:
    """Return the name and the text of the file or cell that a class stands in, as far as known."""
    module = sys.modules.get(cls.__module__)
    with suppress(OSError, TypeError):
        inspect.getsource(cls)
        return Path(str(inspect.getfile(cls))).name, inspect.getsource(module) if module else ""
    with suppress(OSError):
        return CELL, _cell(cls)
    return "", ""


def _cell(cls: type) -> str:
    """Return the text of the cell that a class was typed into; OSError where there is none."""
    for name in dict.fromkeys(_places(cls)):
        text = "".join(linecache.getlines(name))
        if _class_in(text, cls.__name__):
            return text
    raise OSError(f"there is no source of {cls.__name__}")


def _places(cls: type) -> Iterator[str]:
    """Yield under what names the text may be known: those of its functions, or the newest cells."""
    functions = [member for member in vars(cls).values() if isfunction(member)]
    for function in functions:
        yield function.__code__.co_filename
    # Only what the user wrote says where: `dataclass` writes such functions as `__init__` nowhere.
    if any(not function.__name__.startswith("__") for function in functions):
        return
    for name, known in reversed(linecache.cache.items()):
        # What was never in a file has no time of change.
        if len(known) > 1 and known[1] is None:
            yield name


def definitions(text: str) -> dict[str, str]:
    """Return the text of each class, and function outside classes, by its name, with decorators.

    Of two with one name it is the last; there are none in what is not Python.
    """
    found = {}
    try:
        tree = ast.parse(text)
    # Somebody's mistake, in a cell that never ran; null bytes are a ValueError.
    except (SyntaxError, ValueError):
        return {}
    lines = text.splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) or (
            isinstance(node, ast.FunctionDef) and node in tree.body
        ):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            found[node.name] = "".join(lines[first - 1 : node.end_lineno])
    return found


def _class_in(text: str, name: str) -> str:
    """Return the text of the last class of that name; "" if there is none."""
    return definitions(text).get(name, "") if f"class {name}" in text else ""
