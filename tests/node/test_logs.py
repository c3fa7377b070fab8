"""The log of a server or client: lines for people, or JSON."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from fedrfq.errors import UserError
from fedrfq.node import logs


@pytest.fixture
def _log() -> Iterator[None]:
    """The test's own logging, put back afterwards."""
    root = logging.getLogger()
    before = root.handlers[:]
    level = root.level
    root.handlers = []
    yield
    root.handlers = before
    root.setLevel(level)


def said(form: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.begin(form, level, stream)
    return stream


@pytest.mark.usefixtures("_log")
def test_an_event_is_a_line_for_people() -> None:
    stream = said("text")
    logs.log_event("decided", round=3, value="ab")
    logs.log_event("hidden", "debug")
    logs.log_event("odd", "warning", text="two\nlines", peer="a b")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    decided  round=3  value=ab", first
    )
    assert second.endswith('warning odd  text="two\\nlines"  peer=a b')


@pytest.mark.usefixtures("_log")
def test_an_event_is_an_object_of_json_that_of_libraries_too() -> None:
    stream = said("json", "debug")
    logs.log_event("decided", round=3, filtered={"client-1": 5})
    logging.getLogger("asyncio").error("x\n%s", "y")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {"level": "info", "event": "decided", "round": 3, "filtered": {"client-1": 5}}
    assert (second["level"], second["event"]) == ("error", "x\ny")


@pytest.mark.usefixtures("_log")
def test_an_exception_is_on_one_line() -> None:
    stream = said("text")
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        logging.getLogger("any").exception("failed")
    (line,) = stream.getvalue().splitlines()
    assert "ZeroDivisionError" in line


@pytest.mark.usefixtures("_log")
def test_what_peers_bring_about_is_said_so_often_and_then_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = said("json")
    for number in range(100):
        logs.log_peer_event("connected", peer=number)
        logs.log_event("own")
    logs.log_peer_event("disconnected")
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert [events.count(name) for name in ("connected", "own", "disconnected")] == [20, 100, 1]
    monkeypatch.setattr(logs, "_WINDOW_S", -1.0)
    logs.log_peer_event("connected")
    assert json.loads(stream.getvalue().splitlines()[-1])["held_back"] == 80


@pytest.mark.parametrize(
    ("form", "level", "option"), [("xml", "info", "--log-format"), ("text", "loud", "--log-level")]
)
def test_unknown_forms_and_levels_are_refused(form: str, level: str, option: str) -> None:
    with pytest.raises(UserError, match=option):
        logs.begin(form, level)
