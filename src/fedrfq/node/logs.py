"""What a process says of itself: one line an event, for people or as JSON. Never a key, a prototype or an upload.

What peers can bring about is said so often, and then counted: nobody fills a disk by being refused.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO

from fedrfq.errors import UserError

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
# of one kind of event
_BURST = 20
_WINDOW_S = 60.0
_log = logging.getLogger("fedrfq.node")


def say(event: str, level: str = "info", **facts: Any) -> None:
    """An event of one's own, with what is to be known of it."""
    _log.log(logging.getLevelNamesMapping()[level.upper()], event, extra={"facts": facts})


def hear(event: str, level: str = "info", **facts: Any) -> None:
    """An event that a peer can bring about as often as it likes."""
    _log.log(
        logging.getLevelNamesMapping()[level.upper()], event, extra={"facts": facts, "often": True}
    )


def begin(form: str, level: str, stream: TextIO | None = None) -> None:
    """From now on all goes to standard error, that of the libraries too."""
    for option, value, known in (("--log-format", form, FORMATS), ("--log-level", level, LEVELS)):
        if value not in known:
            raise UserError(f"{option} is one of {', '.join(known)}, not '{value}'")
    sink = logging.StreamHandler(stream or sys.stderr)
    sink.setFormatter(Lines(_json if form == "json" else _text))
    sink.addFilter(Seldom())
    logging.basicConfig(level=level.upper(), handlers=[sink], force=True)


class Lines(logging.Formatter):
    """A record as one line, whatever its facts contain."""

    def __init__(self, write: Callable[[str, str, str, Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        facts = dict(getattr(record, "facts", {}))
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        at = (
            datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
        return self._write(at, record.levelname.lower(), record.getMessage(), facts)


def _json(at: str, level: str, event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"time": at, "level": level, "event": event, **facts}, default=str)


def _text(at: str, level: str, event: str, facts: Mapping[str, Any]) -> str:
    told = "".join(f"  {name}={_plain(value)}" for name, value in facts.items())
    return f"{at} {level:7} {_plain(event)}{told}"


def _plain(value: Any) -> str:
    """As it is where that is one line of visible characters, else as JSON writes it."""
    text = str(value)
    if text.isprintable():
        return text
    return json.dumps(text)


class Seldom(logging.Filter):
    """Lets through so many of one kind in a while; the first after that says how many it held back."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(record, "often", False):
            return True
        event = record.msg
        if record.created - self._since.get(event, float("-inf")) > _WINDOW_S:
            held_back = self._seen.get(event, 0) - _BURST
            if held_back > 0:
                record.facts["held_back"] = held_back  # type: ignore[attr-defined]
            self._since[event] = record.created
            self._seen[event] = 0
        self._seen[event] += 1
        return self._seen[event] <= _BURST
