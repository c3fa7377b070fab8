"""The log of a process: one line per event, as text or JSON. Never a key, a prototype or an upload.

Events that peers can cause are logged only so often and then counted, so that nobody can fill a
disk by being refused.
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
_NUMBERS = {level: logging.getLevelNamesMapping()[level.upper()] for level in LEVELS}
# So many events of one kind that peers can cause are logged per window.
_BURST = 20
_WINDOW_S = 60.0
_log = logging.getLogger("fedrfq.node")


def log_event(event: str, level: str = "info", **facts: Any) -> None:
    """Log an event of this party, with its facts."""
    _log_facts(event, level, {"facts": facts})


def log_peer_event(event: str, level: str = "info", **facts: Any) -> None:
    """Log an event that a peer can cause as often as it likes."""
    _log_facts(event, level, {"facts": facts, "often": True})


def _log_facts(event: str, level: str, extra: dict[str, Any]) -> None:
    number = _NUMBERS[level]
    if _log.isEnabledFor(number):
        # Not by `log`, which looks for the line of code it was called from. Nobody is shown that.
        _log.handle(_log.makeRecord(_log.name, number, "", 0, event, (), None, extra=extra))


def begin(form: str, level: str, stream: TextIO | None = None) -> None:
    """Log to standard error from now on, what libraries log included."""
    for option, value, known in (("--log-format", form, FORMATS), ("--log-level", level, LEVELS)):
        if value not in known:
            raise UserError(f"{option} is one of {', '.join(known)}, not '{value}'")
    sink = logging.StreamHandler(stream or sys.stderr)
    sink.setFormatter(LineFormatter(_json if form == "json" else _text))
    sink.addFilter(RateLimit())
    logging.basicConfig(level=level.upper(), handlers=[sink], force=True)


class LineFormatter(logging.Formatter):
    """Formats a record as exactly one line, even if its facts contain line breaks."""

    def __init__(self, write: Callable[[str, str, str, Mapping[str, Any]], str]) -> None:
        super().__init__()
        self._write = write

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        facts = dict(getattr(record, "facts", {}))
        if record.exc_info:
            facts["error"] = self.formatException(record.exc_info)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        time = time.replace("+00:00", "Z")
        return self._write(time, record.levelname.lower(), record.getMessage(), facts)


def _json(time: str, level: str, event: str, facts: Mapping[str, Any]) -> str:
    return json.dumps({"time": time, "level": level, "event": event, **facts}, default=str)


def _text(time: str, level: str, event: str, facts: Mapping[str, Any]) -> str:
    pairs = "".join(f"  {name}={_plain(value)}" for name, value in facts.items())
    return f"{time} {level:7} {_plain(event)}{pairs}"


def _plain(value: Any) -> str:
    """Return the text as it is if it is one line of visible characters, else as JSON."""
    # A peer's name must not be able to forge a line of its own.
    text = str(value)
    if text.isprintable():
        return text
    return json.dumps(text)


class RateLimit(logging.Filter):
    """Lets through a burst of each kind of event per window, and counts the rest.

    The first event of the next window says how many were held back.
    """

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}
        self._seen: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the record is to be logged."""
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
