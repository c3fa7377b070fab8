"""How servers are seen: the board, the pages on their loopback port, the tables, and the log."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import fedrfq
from federations import PATIENCE_S, Servers, Uploader, fetched, founded, process, status, until, uploaded, without_torch
from rich.console import Console

from fedrfq.committee import layouts
from fedrfq.consensus.machine import Decided, Outcome
from fedrfq.consensus.messages import Certificate, Evidence, Kind, Record, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.detectors import Verdict
from fedrfq.errors import UserError
from fedrfq.net import asking, board, identity, logs, meters
from fedrfq.net.web import Page, Web
from fedrfq.status_show import named, shown


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


# The board


def test_the_board_says_what_is_missing_and_who_is_behind(tmp_path: Path) -> None:
    charter = founded(tmp_path, rounds=5, deadline_ms=60_000)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2)
        client = Uploader(tmp_path / "client-1", 5)
        await client.start()
        await until(lambda: servers[0]._replica.holdings.held == 1 and servers[0]._links.connected() == {1, 2, ~1})
        found = json.loads((await fetched(tmp_path / "server-0"))[1])
        assert (found["name"], found["party"], found["run"]) == ("server-0", 0, charter.roster.run.hex())
        assert (found["round"], found["rounds"], found["view"], found["leader"]) == (1, 5, 0, "server-1")
        assert (found["phase"], found["finished"], found["abstaining"], found["failed"]) == (
            "collecting uploads",
            False,
            False,
            None,
        )
        assert (found["held"], found["clients"], found["missing"]) == (1, 3, ["client-0", "client-2"])
        assert [peer["connected"] for peer in found["peers"]] == [True, True, False]
        assert found["connected_clients"] == 1
        await until(lambda: set(servers[0]._driver.heard) == {1, 2})
        found = json.loads((await fetched(tmp_path / "server-0"))[1])
        assert (found["behind"], found["unheard"], found["needed"]) == ([], ["server-3"], 3)
        assert found["last"] is None
        await client.stop()
        await servers.stop()

    run(test())


def test_the_board_follows_a_round_to_its_end(tmp_path: Path) -> None:
    """Two of four cannot decide: they stop where a third is needed, and ask for another view."""
    founded(tmp_path, rounds=5, clients=1, view_ms=200)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1)
        client = Uploader(tmp_path / "client-0", 5)
        await client.start()
        await until(lambda: len(servers[0]._replica.lists) == 2)
        found = servers[0]._seen.board(servers[0]._driver, servers[0]._links)
        assert (found.phase, found.listed) == ("awaiting a proposal", ("server-0", "server-1"))
        await servers.start(2)
        await until(lambda: servers[0]._seen.decided >= 1 and servers[0]._seen.decided in client.decided)
        found = servers[0]._seen.board(servers[0]._driver, servers[0]._links)
        assert found.last is not None
        assert (found.last.clients, found.last.filtered, found.last.value) == (1, (), client_value(client, found.last.round))
        await client.stop()
        await servers.stop()
        await servers.start(0)
        again = servers[0]._seen.board(servers[0]._driver, servers[0]._links)
        assert again.last is not None
        assert again.last.round == servers[0]._replica.round - 1 >= 1
        await servers.stop()

    run(test())


def client_value(client: Uploader, round_: int) -> str:
    return client.decided[round_].certificate.record.value(client.charter.roster.run).hex()


class Told:
    """As much of a replica as a phase follows from."""

    over = silent = False
    view = 1

    def __init__(self, *kinds: Kind, view: int = 1, **more: bool) -> None:
        self.own = {kind: type("Said", (), {"view": 0 if kind == Kind.LIST else view}) for kind in kinds}
        for key, value in more.items():
            setattr(self, key, value)


def test_phases() -> None:
    listed = (Kind.LIST,)
    stories = {
        "collecting uploads": Told(),
        "changing views": Told(*listed, Kind.PREPARE, Kind.COMMIT, view=0),
        "preparing": Told(*listed, Kind.PREPARE),
        "committing": Told(*listed, Kind.PREPARE, Kind.COMMIT),
        "abstaining": Told(silent=True),
        "over": Told(silent=True, over=True),
    }
    assert {board.phase(told): None for told in stories.values()} == dict.fromkeys(stories)  # type: ignore[arg-type]


def test_who_was_filtered_and_why_comes_from_the_verdicts(tmp_path: Path) -> None:
    charter = founded(tmp_path)
    certificate = Certificate(Kind.COMMIT, 2, Record(9, *[bytes(32)] * 5), ())
    verdicts = layouts.encode_verdicts((0, 2), Verdict(np.array([True, False]), np.array([3, 77])))
    last = board.last(charter, Decided(certificate, Outcome(b"", verdicts, b""), ()))
    assert (last.round, last.view, last.clients) == (9, 2, 2)
    assert last.filtered == (board.Filtered("client-2", 77),)
    assert board.last(charter, Decided(certificate, None, ())).filtered is None
    assert board.last(charter, Decided(certificate, Outcome(b"", b"?", b""), ())).filtered is None


def test_evidence_names_the_party_and_a_servers_motion_the_server(tmp_path: Path) -> None:
    charter = founded(tmp_path)
    rules, own = Rules(charter.roster), identity.load(tmp_path / "server-1")
    for client, name in ((2, "client-2"), (charter.roster.mover(1), "server-1")):
        one, other = (rules.signed(Upload(4, client, content), own.signer) for content in (b"1", b"2"))
        charge = board.charge(charter, rules.unsigned(Evidence(4, one, other)))
        assert charge == board.Charge(4, name, "UPLOAD and UPLOAD")


# The pages


async def asked(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def get(path: str = "/page", host: str = "127.0.0.1", method: str = "GET") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (get(), 200),
        (get("/page?x=1"), 200),
        (get(host="localhost:80"), 200),
        (get("/sick"), 503),
        (get("/"), 404),
        (get("/../page"), 404),
        (get(method="POST"), 405),
        (get(host="evil.example"), 403),
        (get(host="127.0.0.1.evil.example"), 403),
        (b"GET /page HTTP/1.1\r\n\r\n", 403),
        (b"GET /page HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n", 403),
        (b"nonsense\r\n\r\n", 400),
        (b"\xff\xfe \x00 \r\n\r\n", 400),
        (b"GET /page HTTP/9\r\nHost: localhost\r\n\r\n", 400),
    ],
)
def test_pages_are_for_this_machine_and_only_to_be_read(request_: bytes, code: int) -> None:
    async def test() -> None:
        web = Web({"/page": lambda: Page("found"), "/sick": lambda: Page("not well", code=503)})
        answer = await asked(await web.start(), request_)
        assert answer.startswith(b"HTTP/1.1 %d " % code)
        assert answer.endswith(b"\r\n\r\nfound") == (code == 200)
        await web.stop()

    run(test())


def test_a_request_is_small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.net.web._MOST_S", 0.05)

    async def test() -> None:
        web = Web({"/page": lambda: Page("found")})
        port = await web.start()
        assert await asked(port, b"GET /page HTTP/1.1\r\nX: " + bytes(1 << 20)) == b""
        assert await asked(port, b"GET /pa") == b""
        assert (await asked(port, get())).endswith(b"found")
        await web.stop()

    run(test())


def test_only_so_many_are_served_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.net.web._MOST_AT_ONCE", 2)

    async def test() -> None:
        web = Web({"/page": lambda: Page("found")})
        port = await web.start()
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        await asyncio.sleep(0.05)
        assert await asked(port, get()) == b""
        for _, writer in idle:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await asked(port, get())).endswith(b"found")
        await web.stop()

    run(test())


def test_a_port_that_is_taken_is_said() -> None:
    async def test() -> None:
        one, other = Web({}), Web({})
        with pytest.raises(UserError, match="--status-port"):
            await other.start(await one.start())
        await one.stop()

    run(test())


METRIC = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\]|\\.)*"\})? [0-9.e+-]+|# (HELP|TYPE) [a-z_]+ .+')


def test_metrics_are_in_prometheus_form(tmp_path: Path) -> None:
    charter = founded(tmp_path, rounds=5)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, charter, 3)
        await until(lambda: servers[0]._seen.decided == 3)
        code, text = await fetched(tmp_path / "server-0", "/metrics")
        assert code == 200
        assert all(METRIC.fullmatch(line) for line in text.splitlines())
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert lines["fedrfq_round"] == "4"
        assert lines["fedrfq_commits_total"] == "3" == lines["fedrfq_round_seconds_count"]
        assert lines["fedrfq_servers_connected"] == "3"
        assert float(lines["fedrfq_flush_seconds_total"]) > 0
        assert all(int(lines[f"fedrfq_{key}_total"]) > 0 for key in ("frames_in", "frames_out", "bytes_in", "bytes_out"))
        await servers.stop()

    run(test())


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = meters.Histogram((1.0, 2.0))
    for seconds in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(seconds)
    assert histogram.lines("t", "times")[2:] == [
        't_bucket{le="1.0"} 2',
        't_bucket{le="2.0"} 3',
        't_bucket{le="+Inf"} 4',
        "t_sum 12.0",
        "t_count 4",
    ]


def test_labels_are_escaped() -> None:
    assert meters.counters("c", "about", "why", {'a"\n\\': 1})[2:] == ['c{why="a\\"\\n\\\\"} 1']


# The tables


def printed(boards: dict[str, Any]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(shown(boards))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    """A board, as a server that runs says it."""
    founded(tmp_path, servers=1, clients=1)
    found: dict[str, Any] = {}

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0)
        found.update(json.loads(json.dumps(asdict(servers[0]._seen.board(servers[0]._driver, servers[0]._links)))))
        await servers.stop()

    run(test())
    return found


def test_one_server_is_shown_in_full(told: dict[str, Any]) -> None:
    filtered = [{"name": "client-3", "score": 5}, {"name": "client-9", "score": 70}]
    told["last"] = {"round": 6, "view": 1, "value": "ab" * 32, "clients": 20, "filtered": filtered}
    told["charges"], told["evidence"] = [{"round": 2, "name": "server-2", "what": "LIST and LIST"}], 1
    told["behind"], told["unheard"], told["changing"] = ["server-3"], ["server-2"], ["server-1"]
    text = printed({"server-0": told})
    assert "1 of 3, view 0, led by server-0" in text
    assert "client-9 (score 70), client-3 (score 5) of 20" in text
    assert "1: server-2 signed LIST and LIST in round 2" in text
    assert re.search(r"servers behind +│ server-3 ", text)
    assert re.search(r"servers not heard from +│ server-2: not since server-\d was started", text)
    assert re.search(r"ask for another view +│ server-1", text)


def test_nobody_is_said_to_be_unheard_of_once_all_have_spoken(told: dict[str, Any]) -> None:
    assert told["unheard"] == []
    assert "not heard from" not in printed({"server-0": told})


@pytest.mark.parametrize(("connected", "state"), [(1, "waits for servers"), (2, "ok")])
def test_a_server_without_enough_others_waits_for_them(told: dict[str, Any], connected: int, state: str) -> None:
    told["peers"] = [{"name": f"server-{k}", "connected": k <= connected, "round": 1} for k in (1, 2, 3)]
    told["needed"] = 3
    text = printed({"server-0": told})
    assert re.search(rf"state +│ {state} ", text)
    assert f"server-{connected} of 3, 2 are needed; clients: 0 of 1" in text
    assert re.search(r"state +│ ok ", printed({"server-0": {**told, "finished": True}}))


def test_a_server_that_was_left_behind_is_said_to_be(tmp_path: Path) -> None:
    """Who has spoken, but of no round as late as ours; who has not is not."""
    founded(tmp_path)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0)
        servers[0]._driver.heard.update({1: 4, 2: 3})
        servers[0]._replica.round = 4
        found = servers[0]._seen.board(servers[0]._driver, servers[0]._links)
        assert (found.behind, found.unheard) == (("server-2",), ("server-3",))
        await servers.stop()

    run(test())


def test_a_client_has_no_status(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1)
    for name, role in (("client-0", "client"), ("courier-0", "courier")):
        said = fedrfq("committee", "status", tmp_path / name, expect=2).stderr
        assert f"{name}, a {role}: only servers have a status" in said


def test_several_servers_are_shown_a_line_each(told: dict[str, Any]) -> None:
    boards = {
        "server-0": told,
        "server-1": None,
        "server-2": {**told, "name": "server-2", "failed": "no room"},
        "server-3": {**told, "name": "server-3", "abstaining": True},
        "server-4": {**told, "name": "server-4", "waiting": True},
        "server-5": {**told, "name": "server-5", "finished": True},
    }
    lines = {line.split("│")[1].strip(): line for line in printed(boards).splitlines() if line.startswith("│ server-")}
    states = ["ok", "not running", "cannot write: no votes", "abstaining", "waits for clients", "finished"]
    assert [word in lines[f"server-{k}"] for k, word in enumerate(states)] == [True] * 6


def test_markup_in_what_is_said_stays_text(told: dict[str, Any]) -> None:
    assert "[red]x[/red]" in printed({"server-0": {**told, "failed": "[red]x[/red]"}})


def test_many_names_are_cut_short() -> None:
    assert named([]) == "none"
    assert named([str(k) for k in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"


def test_status_finds_the_servers_that_run(tmp_path: Path) -> None:
    founded(tmp_path)
    for folder in (tmp_path, tmp_path / "server-0"):
        assert "no server of" in fedrfq("committee", "status", folder, expect=2).stderr
    with process(tmp_path / "server-0"), process(tmp_path / "server-2"):
        for number in (0, 2):
            status(tmp_path / f"server-{number}")
        text = fedrfq("committee", "status", tmp_path).stdout
        rows = [line for line in text.splitlines() if line.startswith("│ server-")]
        assert ["not running" in row for row in rows[:4]] == [False, True, False, True]
        assert "server-0 (run" in fedrfq("committee", "status", tmp_path / "server-0").stdout
        watching = subprocess.Popen(
            without_torch("committee", "status", tmp_path, "--watch"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        with watching:
            with pytest.raises(subprocess.TimeoutExpired):
                watching.wait(2.5)
            watching.terminate()
            assert watching.wait(PATIENCE_S) == 130
    assert (tmp_path / "server-0" / "status.json").exists()  # they were killed
    assert "no server of" in fedrfq("committee", "status", tmp_path / "server-0", expect=2).stderr
    assert "neither" in fedrfq("committee", "status", tmp_path / "nowhere", expect=2).stderr


@pytest.mark.parametrize("text", ["", "[]", '{"port": "x"}', '{"port": 1}', '{"port": 99999999}', "{" * 2000])
def test_a_status_file_that_leads_nowhere_is_a_server_that_does_not_run(text: str, tmp_path: Path) -> None:
    founded(tmp_path, servers=1, clients=1)
    (tmp_path / "server-0" / "status.json").write_text(text)
    assert "no server of" in fedrfq("committee", "status", tmp_path, expect=2).stderr


def test_a_server_of_another_version_is_said_to_be(
    tmp_path: Path, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status.json").write_text('{"port": 1}')
    monkeypatch.setattr(asking, "_page", lambda port: told)
    assert asking.ask(tmp_path) == told
    monkeypatch.setattr(asking, "_page", lambda port: {key: value for key, value in told.items() if key != "needed"})
    with pytest.raises(UserError, match="another version"):
        asking.ask(tmp_path)


# The log


@pytest.fixture
def _log() -> Iterator[None]:
    """The test's own logging, put back afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
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
    logs.say("decided", round=3, value="ab")
    logs.say("hidden", "debug")
    logs.say("odd", "warning", text="two\nlines", peer="a b")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info    decided  round=3  value=ab", first)
    assert second.endswith('warning odd  text="two\\nlines"  peer=a b')


@pytest.mark.usefixtures("_log")
def test_an_event_is_an_object_of_json_that_of_libraries_too() -> None:
    stream = said("json", "debug")
    logs.say("decided", round=3, filtered={"client-1": 5})
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
def test_what_peers_bring_about_is_said_so_often_and_then_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = said("json")
    for number in range(100):
        logs.hear("connected", peer=number)
        logs.say("own")
    logs.hear("disconnected")
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert [events.count(name) for name in ("connected", "own", "disconnected")] == [20, 100, 1]
    monkeypatch.setattr(logs, "_WINDOW_S", -1.0)
    logs.hear("connected")
    assert json.loads(stream.getvalue().splitlines()[-1])["held_back"] == 80


@pytest.mark.parametrize(("form", "level", "option"), [("xml", "info", "--log-format"), ("text", "loud", "--log-level")])
def test_unknown_forms_and_levels_are_refused(form: str, level: str, option: str) -> None:
    with pytest.raises(UserError, match=option):
        logs.begin(form, level)
