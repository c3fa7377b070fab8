"""Strict JSON: without the NaN and Infinity that Python writes and most parsers reject."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """Return `value` as strict JSON; NaN and infinities become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def from_json(text: str | bytes) -> Any:
    """Return the value that a text states, which may be hostile; ValueError if it is not JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    # JSON has no tuples; json.dumps would write a list, too.
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
