"""Messages as people read them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from fedrfq.consensus.messages import Message


def shown(value: Any) -> str:
    """Anything, with digests cut to what tells them apart, and nested messages by their kind."""
    if isinstance(value, Message):
        return f"{value.body.kind.name}({_body(value.body)})"
    if isinstance(value, bytes):
        return value.hex()[:6]
    if hasattr(value, "__dataclass_fields__"):
        return f"{type(value).__name__}({_body(value)})"
    if isinstance(value, tuple):
        return "[" + ", ".join(map(shown, value)) + "]"
    return str(value)


def _body(body: Any) -> str:
    return " ".join(shown(getattr(body, field.name)) for field in fields(body) if field.repr)
