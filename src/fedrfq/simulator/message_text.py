"""Write messages and their parts as short text for people."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedrfq.consensus.messages import Message


def readable(value: Any) -> str:
    """Return any value as short text; digests are cut, and messages are named by their kind."""
    if isinstance(value, Message):
        return f"{value.body.kind.name}({_field_text(value.body)})"
    if isinstance(value, bytes):
        # Six hex digits are enough to tell the few digests of a transcript apart.
        return value.hex()[:6]
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}({_field_text(value)})"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(readable, value)) + "]"
    return str(value)


def _field_text(body: Any) -> str:
    return " ".join(readable(getattr(body, field.name)) for field in fields(body) if field.repr)
