"""The status that servers report, and the tables that show it."""

from __future__ import annotations

import asyncio
import io
import json
import re
import shutil
import signal
import subprocess
from dataclasses import asdict, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedrfq.cli.status_tables import join_names, status_tables
from fedrfq.consensus.events import Decided, Outcome
from fedrfq.consensus.messages import Certificate, ChangeProposal, Evidence, Kind, Record, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.node.membership import identity
from fedrfq.node.membership.founding import NewKeys
from fedrfq.node.ops import status as server_status
from fedrfq.node.ops import status_client
from fedrfq.node.ops.client_status import _why
from fedrfq.node.storage.client_history import HistoryLine
from fedrfq.prototypes.fixed_point import Uploads
from fedrfq.robust.detectors import FULL, Reason, Verdict
from fedrfq.robust.detectors.reasons import toward
from support.command import fedrfq
from support.federations import (
    PATIENCE_S,
    Servers,
    Uploader,
    fetched,
    founded,
    process,
    status,
    until,
    without_torch,
)


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 2 * PATIENCE_S))


# The status


def test_the_status_says_what_is_missing_and_who_is_behind(tmp_path: Path) -> None:
    federation = founded(tmp_path, rounds=5, deadline_ms=60_000)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2)
        client = Uploader(tmp_path / "client-1", 5)
        await client.start()
        await until(
            lambda: (
                servers[0]._replica.upload_pool.held == 1
                and servers[0]._links.connected() == {1, 2, ~1}
            )
        )
        found = json.loads((await fetched(tmp_path / "server-0"))[1])
        assert (found["name"], found["party"], found["run"]) == (
            "server-0",
            0,
            federation.roster.run.hex(),
        )
        assert (found["round"], found["rounds"], found["view"], found["leader"]) == (
            1,
            5,
            0,
            "server-1",
        )
        assert (found["phase"], found["finished"], found["abstaining"], found["failed"]) == (
            "collecting uploads",
            False,
            False,
            None,
        )
        assert (found["held"], found["clients"], found["missing"]) == (
            1,
            3,
            ["client-0", "client-2"],
        )
        assert [peer["connected"] for peer in found["peers"]] == [True, True, False]
        assert found["connected_clients"] == 1
        await until(lambda: set(servers[0]._driver.admission.heard) == {1, 2})
        found = json.loads((await fetched(tmp_path / "server-0"))[1])
        assert (found["behind"], found["unheard"], found["needed"]) == ([], ["server-3"], 3)
        assert found["last"] is None
        await client.stop()
        await servers.stop()

    run(test())


def test_the_status_follows_a_round_to_its_end(tmp_path: Path) -> None:
    """Two of four servers cannot decide: they stop where a third is needed."""
    founded(tmp_path, rounds=5, clients=1, view_ms=200)

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0, 1)
        client = Uploader(tmp_path / "client-0", 5)
        await client.start()
        await until(lambda: len(servers[0]._replica.upload_lists.current) == 2)
        found = servers[0]._tracker.status(servers[0]._driver, servers[0]._links)
        assert (found.phase, found.listed) == ("awaiting a proposal", ("server-0", "server-1"))
        await servers.start(2)
        await until(
            lambda: (
                servers[0]._tracker.decided >= 1 and servers[0]._tracker.decided in client.decided
            )
        )
        found = servers[0]._tracker.status(servers[0]._driver, servers[0]._links)
        assert found.last is not None
        assert (found.last.clients, found.last.filtered, found.last.value) == (
            1,
            (),
            client_value(client, found.last.round),
        )
        await client.stop()
        await servers.stop()
        await servers.start(0)
        again = servers[0]._tracker.status(servers[0]._driver, servers[0]._links)
        assert again.last is not None
        assert again.last.round == servers[0]._replica.round - 1 >= 1
        await servers.stop()

    run(test())


def client_value(client: Uploader, round_: int) -> str:
    return client.decided[round_].certificate.record.value(client.federation.roster.run).hex()


class FakeReplica:
    """As much of a replica as its phase follows from."""

    over = silent = False
    view = 1

    def __init__(self, *kinds: Kind, view: int = 1, **more: bool) -> None:
        own = {kind: type("Said", (), {"view": 0 if kind == Kind.LIST else view}) for kind in kinds}
        self.state = SimpleNamespace(own=own)
        for key, value in more.items():
            setattr(self, key, value)


def test_phases() -> None:
    listed = (Kind.LIST,)
    stories = {
        "collecting uploads": FakeReplica(),
        "changing views": FakeReplica(*listed, Kind.PREPARE, Kind.COMMIT, view=0),
        "preparing": FakeReplica(*listed, Kind.PREPARE),
        "committing": FakeReplica(*listed, Kind.PREPARE, Kind.COMMIT),
        "abstaining": FakeReplica(silent=True),
        "over": FakeReplica(silent=True, over=True),
    }
    for phase, replica in stories.items():
        assert server_status.phase(replica) == phase  # type: ignore[arg-type]


def test_who_was_filtered_and_why_comes_from_the_verdicts(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    certificate = Certificate(Kind.COMMIT, 2, Record(9, *[bytes(32)] * 7), ())
    sent = np.zeros((3, federation.task.classes), np.int64)
    sent[0, :3] = sent[1, 0] = sent[2, :2] = 1
    uploads = Uploads((0, 1, 2), sent, sent[..., None])
    weight_KJ = np.full_like(sent, FULL)
    weight_KJ[1, 0] = FULL // 4
    weight_KJ[2] = 0
    scores = np.array([3, 5, 77])
    verdict = Verdict.of_weights(uploads, weight_KJ, scores, toward(Reason.TOWARD, 2))
    verdicts = codec.encode_verdicts((0, 1, 2), verdict)
    last = server_status.last(federation, Decided(certificate, Outcome(b"", verdicts, b""), ()))
    assert (last.round, last.view, last.clients) == (9, 2, 3)
    why = "classes 0, 1: on the way to class 2 (weight 0 %)"
    assert last.filtered == (server_status.ReducedClient("client-2", 77, 0.0, why),)
    why = "class 0: on the way to class 2 (weight 25 %)"
    assert last.reduced == (server_status.ReducedClient("client-1", 5, 25.0, why),)
    assert server_status.last(federation, Decided(certificate, None, ())).filtered is None
    assert (
        server_status.last(federation, Decided(certificate, Outcome(b"", b"?", b""), ())).filtered
        is None
    )


def test_evidence_names_the_party(tmp_path: Path) -> None:
    federation = founded(tmp_path)
    rules = Rules(federation.roster)
    own = identity.load(tmp_path / "server-1")
    for kind, number, name in ((Upload, 2, "client-2"), (ChangeProposal, 1, "server-1")):
        one, other = (
            rules.signed(kind(4, number, content), own.signer) for content in (b"1", b"2")
        )
        charge = server_status.charge(federation, rules.unsigned(Evidence(4, one, other)))
        what = f"two different {kind.kind.name} messages"
        assert charge == server_status.Accusation(4, name, what)


# The tables


def printed(servers: dict[str, Any], clients: dict[str, Any] | None = None) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(status_tables(servers, clients))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def reported(tmp_path: Path) -> dict[str, Any]:
    """Return the status that a running server reports, as JSON has it."""
    founded(tmp_path, servers=1, clients=1)
    found: dict[str, Any] = {}

    async def test() -> None:
        servers = Servers(tmp_path)
        await servers.start(0)
        found.update(
            json.loads(
                json.dumps(
                    asdict(servers[0]._tracker.status(servers[0]._driver, servers[0]._links))
                )
            )
        )
        await servers.stop()

    run(test())
    return found


def test_one_server_is_shown_in_full(reported: dict[str, Any]) -> None:
    filtered = [
        {"name": "client-3", "score": 5, "weight": 0.0, "reason": "class 1: far"},
        {"name": "client-9", "score": 70, "weight": 0.0, "reason": "class 2: far"},
    ]
    reduced = [{"name": "client-4", "score": 2, "weight": 50.0, "reason": "class 3: near"}]
    reported["last"] = {
        "round": 6,
        "view": 1,
        "value": "ab" * 32,
        "clients": 20,
        "filtered": filtered,
        "reduced": reduced,
    }
    reported["charges"] = [{"round": 2, "name": "server-2", "what": "two different LIST messages"}]
    reported["evidence"] = 1
    reported["behind"] = ["server-3"]
    reported["unheard"] = ["server-2"]
    reported["changing"] = ["server-1"]
    text = printed({"server-0": reported})
    assert "1 of 3, view 0, led by server-0" in text
    worst_first = "client-9 (score 70; class 2: far), client-3 (score 5; class 1: far) of 20"
    assert worst_first in text
    assert "client-4 (score 2; class 3: near) of 20" in text
    assert "1: server-2 signed two different LIST messages in round 2" in text
    assert re.search(r"servers behind +│ server-3 ", text)
    assert re.search(r"servers not heard from +│ server-2, since server-\d was started", text)
    assert re.search(r"ask for another view +│ server-1", text)


def test_nobody_is_said_to_be_unheard_of_once_all_have_spoken(reported: dict[str, Any]) -> None:
    assert reported["unheard"] == []
    assert "not heard from" not in printed({"server-0": reported})


@pytest.mark.parametrize(("connected", "state"), [(1, "waiting for servers"), (2, "ok")])
def test_a_server_without_enough_others_waits_for_them(
    reported: dict[str, Any], connected: int, state: str
) -> None:
    reported["peers"] = [
        {"name": f"server-{k}", "connected": k <= connected, "round": 1} for k in (1, 2, 3)
    ]
    reported["needed"] = 3
    text = printed({"server-0": reported})
    assert re.search(rf"state +│ {state} ", text)
    assert f"server-{connected} of 3; a round needs 2; clients: 0 of 1" in text
    finished = printed({"server-0": {**reported, "finished": True}})
    assert re.search(r"state +│ ok ", finished)
    assert "phase" not in finished


def test_a_server_that_was_left_behind_is_said_to_be_until_it_is_back(tmp_path: Path) -> None:
    """The others go on without it, each of which waits for uploads of the same round."""
    founded(tmp_path, clients=1, rounds=50)

    async def test() -> None:
        servers = Servers(tmp_path)

        def found() -> server_status.ServerStatus:
            return servers[0]._tracker.status(servers[0]._driver, servers[0]._links)

        async def decided(round_: int) -> None:
            client.rounds = round_
            client._upload(max(client.decided, default=0) + 1)
            await until(lambda: round_ in client.decided)

        await servers.start(0, 1, 2, 3)
        client = Uploader(tmp_path / "client-0", 0)
        await client.start()
        await decided(2)
        await until(lambda: not found().unheard)
        await servers.stop(3)
        await decided(6)
        await until(lambda: found().round == 7)
        assert (found().behind, found().unheard) == (("server-3",), ())
        await servers.start(3)
        await until(lambda: not found().behind)
        await client.stop()
        await servers.stop()

    run(test())


def test_a_courier_has_no_status(tmp_path: Path) -> None:
    founded(tmp_path, couriers=1)
    said = fedrfq("committee", "status", tmp_path / "courier-0", expect=2).stderr
    assert "courier-0, a courier, which has no status" in said


CLIENT = {
    "run": "ab" * 32,
    "name": "ward-3",
    "party": -4,
    "rounds": 5,
    "finished": False,
    "failed": None,
    "round": 3,
    "phase": "waiting for the result",
    "upload": {"round": 3, "at": "2026-11-18T02:00:00+00:00"},
    "receipts": ["server-0", "server-2"],
    "connected": ["server-0", "server-1", "server-2"],
    "servers": 4,
    "needed": 3,
    "last": {
        "round": 2,
        "value": "cd" * 32,
        "verdict": "filtered",
        "score": 9,
        "weight": 0.0,
        "why": "counted for 0 %: far",
        "accuracy": 91.25,
    },
    "certificate_expires": "2028-11-17T02:00:00+00:00",
    "ignored": {},
}


def test_one_client_is_shown_in_full() -> None:
    text = printed({}, {"ward-3": CLIENT})
    assert re.search(r"round +│ 3 of 5: waiting for the result", text)
    assert re.search(r"last upload +│ round 3, 2026-11-18T02:00:00", text)
    assert re.search(r"receipts +│ server-0, server-2 of 4", text)
    assert "counted for 0 %: far; accuracy 91.25 %" in text
    assert "expires 2028-11-17" in text
    assert "cannot connect" not in text, "nothing is, or the release is too old to say"
    cut_off = {"unreachable": {"server-3": "d.example:7400: no answer"}}
    text = printed({}, {"ward-3": {**CLIENT, **cut_off}})
    assert re.search(r"cannot connect +│ server-3 \(d.example:7400: no answer\)", text)
    early = printed({}, {"ward-3": {**CLIENT, "upload": None, "last": None, "connected": []}})
    assert "waiting for servers" in early


def test_a_client_says_why_its_upload_counted_for_less() -> None:
    line: dict[str, Any] = {field.name: None for field in fields(HistoryLine)}
    told = [
        _why(HistoryLine(**{**line, "verdict": verdict, "weight": weight, "reason": reason}))
        for verdict, weight, reason in [("", None, ""), ("kept", 100.0, ""), ("kept", 25.0, "far")]
    ]
    assert told == [
        "no upload of this client was in the round",
        "counted in full",
        "counted for 25 %: far",
    ]


def test_several_clients_are_shown_a_line_each_below_the_servers(
    reported: dict[str, Any],
) -> None:
    clients = {"ward-3": CLIENT, "ward-4": None, "ward-5": {**CLIENT, "failed": "no room"}}
    text = printed({"server-0": reported}, clients)
    assert "server-0 (run" in text
    states = [line for line in text.splitlines() if line.startswith("│ ward-")]
    words = ["ok", "not running", "cannot write"]
    assert [word in line for word, line in zip(words, states, strict=True)] == [True] * 3


def test_several_servers_are_shown_a_line_each(reported: dict[str, Any]) -> None:
    statuses = {
        "server-0": reported,
        "server-1": None,
        "server-2": {**reported, "name": "server-2", "failed": "no room"},
        "server-3": {**reported, "name": "server-3", "abstaining": True},
        "server-4": {**reported, "name": "server-4", "waiting": True},
        "server-5": {**reported, "name": "server-5", "finished": True},
    }
    lines = {
        line.split("│")[1].strip(): line
        for line in printed(statuses).splitlines()
        if line.startswith("│ server-")
    }
    states = [
        "ok",
        "not running",
        "cannot write, so it does not vote",
        "abstaining",
        "waiting for clients",
        "finished",
    ]
    assert [word in lines[f"server-{k}"] for k, word in enumerate(states)] == [True] * 6


def test_markup_in_what_is_said_stays_text(reported: dict[str, Any]) -> None:
    assert "[red]x[/red]" in printed({"server-0": {**reported, "failed": "[red]x[/red]"}})


def test_many_names_are_cut_short() -> None:
    assert join_names([]) == "none"
    assert join_names([str(k) for k in range(11)]) == "0, 1, 2, 3, 4, 5, 6, 7 and 3 more"


def _catches_sigterm(pid: int) -> bool:
    """Return whether a process has come so far that it handles SIGTERM itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\s*(\w+)$", status, re.MULTILINE)[1], 16)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


def test_parties_are_found_where_their_folders_are_without_a_federation_beside(
    tmp_path: Path,
) -> None:
    """On a machine with a hospital's server and ward, nobody has put a federation.toml there."""
    founded(tmp_path / "it", clients=1, couriers=1)
    here = tmp_path / "hospital"
    for name in ("server-2", "client-0", "courier-0"):
        shutil.copytree(tmp_path / "it" / name, here / name)
    NewKeys.new("late").write(here / "late")
    found = status_client.parties(here)
    assert found == [(here / "client-0", "client"), (here / "server-2", "server")]
    with pytest.raises(UserError, match="nor one with such folders in it"):
        status_client.parties(tmp_path)


def test_status_finds_the_servers_that_run(tmp_path: Path) -> None:
    founded(tmp_path)
    for folder in (tmp_path, tmp_path / "server-0"):
        assert "no server or client of" in fedrfq("committee", "status", folder, expect=2).stderr
    with process(tmp_path / "server-0"), process(tmp_path / "server-2"):
        for number in (0, 2):
            status(tmp_path / f"server-{number}")
        text = fedrfq("committee", "status", tmp_path).stdout
        rows = [line for line in text.splitlines() if line.startswith("│ server-")]
        assert ["not running" in row for row in rows[:4]] == [False, True, False, True]
        assert "server-0 (run" in fedrfq("committee", "status", tmp_path / "server-0").stdout
        watching = subprocess.Popen(
            without_torch("committee", "status", tmp_path, "--watch"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with watching:
            asyncio.run(until(lambda: _catches_sigterm(watching.pid)))
            with pytest.raises(subprocess.TimeoutExpired):
                watching.wait(2.5)
            watching.terminate()
            assert watching.wait(PATIENCE_S) == 130
    assert (tmp_path / "server-0" / "status.json").exists()  # they were killed
    assert (
        "no server or client of"
        in fedrfq("committee", "status", tmp_path / "server-0", expect=2).stderr
    )
    assert "neither" in fedrfq("committee", "status", tmp_path / "nowhere", expect=2).stderr


@pytest.mark.parametrize(
    "text", ["", "[]", '{"port": "x"}', '{"port": 1}', '{"port": 99999999}', "{" * 2000]
)
def test_a_status_file_that_leads_nowhere_is_a_server_that_does_not_run(
    text: str, tmp_path: Path
) -> None:
    founded(tmp_path, servers=1, clients=1)
    (tmp_path / "server-0" / "status.json").write_text(text)
    assert "no server or client of" in fedrfq("committee", "status", tmp_path, expect=2).stderr


def test_a_server_of_another_version_is_said_to_be(
    tmp_path: Path, reported: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "status.json").write_text('{"port": 1}')
    monkeypatch.setattr(status_client, "_page", lambda port: reported)
    assert status_client.ask(tmp_path) == reported
    older = {key: value for key, value in reported.items() if key != "unreachable"}
    monkeypatch.setattr(status_client, "_page", lambda port: older)
    assert status_client.ask(tmp_path) == older, "what it lacks is not needed"
    monkeypatch.setattr(
        status_client,
        "_page",
        lambda port: {key: value for key, value in reported.items() if key != "needed"},
    )
    with pytest.raises(UserError, match="another version"):
        status_client.ask(tmp_path)
