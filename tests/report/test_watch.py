"""The page that follows a run while it goes on, in a real browser; hostile files; federations."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import urllib.request
from contextlib import closing

import pytest

from fedrfq.errors import UserError
from fedrfq.federation.round_log import pack
from fedrfq.files import hash_chain
from fedrfq.node.storage.client_history import ClientHistory, HistoryLine
from fedrfq.report.live_federation import LiveFederation
from fedrfq.report.live_page import state
from fedrfq.report.watch import watched, watching
from support.command import SMALL, fedrfq, sets, small_session
from support.committees import some_settings, uploads
from support.federations import PATIENCE_S, Servers, founded, signed, upload, uploaded
from support.reports import ATTACK, COMMITTEE, hostile

LINES = "[...document.querySelectorAll('#accuracy svg .mark-line.role-mark path')]"


def tile(number):
    return f"document.querySelectorAll('.tiles strong')[{number}]?.textContent"


def test_the_page_follows_a_run_round_by_round_and_keeps_what_is_singled_out(tab, tmp_path):
    session = small_session(tmp_path, *COMMITTEE, *ATTACK)
    (run,) = session.runs
    with closing(session), watching([run.path]) as address:
        rounds = session.advance()
        next(rounds)
        tab.open(address)
        tab.wait("document.querySelectorAll('h2').length")
        next(rounds)
        tab.wait(f"{tile(0)} === '2 of 8'")
        series = tab.wait(f"{LINES}.length")
        assert series == 5
        legend = "document.querySelector('#accuracy .role-legend-symbol path')"
        tab.wait(f"!!{legend}")
        tab.js(f"{legend}.scrollIntoView({{block: 'center'}})")
        place = f"(r => [r.x + r.width / 2, r.y + r.height / 2])({legend}.getBoundingClientRect())"
        tab.click(*tab.js(place))
        faded = f"{LINES}.filter(p => +(p.getAttribute('opacity') ?? 1) < 1).length"
        tab.wait(f"{faded} === {series - 1}")
        next(rounds)
        tab.wait(f"{tile(0)} === '3 of 8'")
        third = "document.querySelector('#committee').querySelectorAll('.mark-rect path').length"
        tab.wait(f"{third} === 3")
        assert tab.js(faded) == series - 1
        assert tab.js("[...document.querySelectorAll('.tiles span')][1].textContent") == "time left"
        for _ in rounds:
            pass
        session.finish()
        tab.wait(f"{tile(0)} === '8 of 8' && document.body.innerText.includes('finished')")
        titles = tab.js("[...document.querySelectorAll('h2')].map(h => h.textContent)")
        assert titles[:3] == ["Accuracy", "Clients", "All classes"]
        drawn = tab.js("[...document.querySelectorAll('figure')].map(f => f.id)")
        assert {"accuracy", "clients", "partition", "trail", "filtered", "committee"} <= set(drawn)
    assert {asked.removeprefix(address) for asked in tab.asked} <= {"", "state", "data:,"}
    tab.wait("!document.getElementById('lost').hidden")
    # That nobody answers any more is an error to the browser, and the only one. Vega also warns of
    # a layer that has no rows yet, such as proofs of misbehaviour before there are any.
    expected = ("ERR_CONNECTION", "Infinite extent")
    assert [e for e in tab.errors if not any(words in e for words in expected)] == []


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_nothing_is_wider_than_the_screen(tab, whole, dark):
    with watching([whole]) as address:
        tab.open(address, width=400, dark=dark)
        tab.wait(f"{LINES}.length")
        assert tab.js("document.documentElement.scrollWidth") <= 400
        ground = tab.js("getComputedStyle(document.body).backgroundColor")
        assert (sum(int(part) for part in ground.strip("rgb()").split(",")) < 382) is dark
        assert tab.errors == []


def test_markup_in_a_run_is_only_text_and_damage_is_a_note(tab, whole, tmp_path):
    run = hostile(whole, tmp_path / "run")
    (run / "clients.csv").unlink()
    os.mkfifo(run / "clients.csv")
    with watching([run]) as address:
        tab.open(address)
        tab.wait(f"{LINES}.length")
        assert "<script>window.hacked" in tab.js("document.querySelector('h1').innerText")
        assert "clients.csv" in tab.js("document.querySelector('#head .notes').innerText")
        (run / "rounds.jsonl").write_text("<script>window.hacked = 1</script>\n")
        tab.wait("document.body.innerText.includes('Waiting for a run')")
        shutil.copy(whole / "rounds.jsonl", run / "rounds.jsonl")
        tab.wait(f"{LINES}.length")
        assert tab.js("window.hacked === undefined")
        assert tab.errors == []


def test_runs_that_begin_later_join_the_others_side_by_side(tab, whole, tmp_path):
    with watching([tmp_path]) as address:
        tab.open(address)
        tab.wait("document.body.innerText.includes('contains none')")
        for seed in range(3):
            shutil.copytree(whole, copy := tmp_path / f"run-{seed}")
            text = (copy / "experiment.toml").read_text()
            (copy / "experiment.toml").write_text(text.replace("seed = 0\n", f"seed = {seed}\n", 1))
        lines = "document.querySelectorAll('#accuracy-head svg .mark-line.role-mark path').length"
        tab.wait(f"{lines} === 3")
        # One that cannot be read is left out, and a note says so.
        (tmp_path / "run-1" / "experiment.toml").write_text("rounds = 'many'\n")
        (tmp_path / "run-1" / "rounds.jsonl").write_text("")
        tab.wait(f"{lines} === 2 && document.body.innerText.includes('Left out')")
        assert tab.js(tile(0)) == "16 of 16"


def test_each_run_of_a_grid_has_a_page_of_its_own(tab, whole, tmp_path):
    """Clients × classes, prototypes and all else that a report shows, one click away."""
    for seed in range(2):
        shutil.copytree(whole, copy := tmp_path / f"<b>run-{seed}")
        text = (copy / "experiment.toml").read_text()
        (copy / "experiment.toml").write_text(text.replace("seed = 0\n", f"seed = {seed}\n", 1))
    with watching([tmp_path]) as address:
        tab.open(address)
        link = "[...document.querySelectorAll('#head td a')].find(a => a.text === '<b>run-1')"
        tab.wait(f"!!{link}")
        tab.js(f"{link}.click()")
        tab.wait("document.querySelector('header p')?.textContent.includes('seed 1')")
        tab.wait("!!document.querySelector('#partition svg')")
        drawn = tab.js("[...document.querySelectorAll('figure')].map(f => f.id)")
        assert {"accuracy", "clients", "partition", "trail", "prototypes"} <= set(drawn)
        # The page goes on to follow its own run, and leads back to all.
        (run,) = tmp_path.glob("*run-1")
        lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
        (run / "rounds.jsonl").write_text("".join(lines[:3]))
        tab.wait(f"{tile(0)} === '3 of 8'")
        tab.js("document.querySelector('#head a').click()")
        tab.wait("!!document.querySelector('#accuracy-head svg')")
        assert tab.errors == []
        with urllib.request.urlopen(f"{address}state?run=../../etc", timeout=60) as answer:
            assert "is being read" in answer.read().decode()
        tab.open(f"{address}?run=../../etc")
        tab.wait("document.body.innerText.includes('There is no such run here.')")


def test_the_page_is_for_this_machine_alone(whole):
    with watching([whole]) as address:
        with urllib.request.urlopen(address, timeout=60) as answer:
            policy = answer.read().decode().split('Content-Security-Policy" content="')[1]
        assert policy.startswith("default-src 'none';")
        assert "connect-src 'self'" in policy.split('">')[0]
        request = urllib.request.Request(f"{address}state", headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(request, timeout=60)


def test_a_run_is_watched_from_its_first_round(tmp_path):
    done = fedrfq("run", *sets([*SMALL, "rounds=2"]), "--out", tmp_path, "--watch")
    assert "open http://127.0.0.1:" in done.stderr


def test_a_federation_is_shown_while_its_servers_decide(request, tmp_path):
    async def decided():
        federation = founded(tmp_path)
        servers = Servers(tmp_path)
        await servers.start(0, 1, 2, 3)
        await uploaded(tmp_path, federation, 3)
        live = LiveFederation(tmp_path)
        for name, accuracy in (("client-0", 80.0), ("client-1", 90.0)):
            history = ClientHistory(tmp_path / name, "run")
            line = HistoryLine(1, accuracy, None, None, None, None, None, "filtered", 7, 1.0)
            history.write(line)
        (tmp_path / "client-2" / "rounds.jsonl").write_text("[]\n{}\nnonsense\n")
        page = await asyncio.to_thread(live.page)
        await servers.stop()
        return page

    page = asyncio.run(asyncio.wait_for(decided(), 2 * PATIENCE_S))
    shown = json.loads(state(page))
    assert "<strong>3 of 3</strong>" in shown["head"]
    assert "<strong>85.00 %</strong>" in shown["head"]
    assert shown["sections"][0]["body"].count("finished") == 4
    rows = {name: spec["data"]["values"] for name, spec in shown["figures"].items()}
    assert [row["leader"] for row in rows["committee"]] == ["server-1", "server-2", "server-3"]
    assert {row["round"] for row in rows["trail"]} == {1, 2, 3}
    # What each client stated to hold in the last round.
    stated = uploads(some_settings(3), 3).counts_KJ
    held = {(row["client"], row["class"]): row["train"] for row in rows["partition"]}
    assert held == {
        (f"client-{k}", str(j)): stated[k, j] for k, j in zip(*stated.nonzero(), strict=True)
    }
    assert [row["client"] for row in rows["filtered"]] == ["client-0", "client-1"]
    assert [row["mean"] for row in rows["accuracy"]] == [85.0]
    # The servers have stopped: what is left in the folders is drawn all the same.
    tab = request.getfixturevalue("tab")  # only now: the rest needs no browser
    with watching([tmp_path]) as address:
        tab.open(address)
        tab.wait(f"{tile(0)} === '3 of 3'")
        drawn = "[...document.querySelectorAll('figure')].filter(f => f.querySelector('svg'))"
        tab.wait(f"{drawn}.length === 5")
        assert "server-3" in tab.js("document.querySelector('#committee').textContent")
        assert tab.js("document.body.innerText.match(/not running/g).length") == 4
        assert tab.errors == []


def test_of_a_federation_what_clients_stated_last_is_shown(tmp_path):
    """Nothing in the log is verified here: one who is no member is left out."""
    federation = founded(tmp_path)
    run = federation.roster.run
    stranger = upload(tmp_path / "client-0", 2, 9, uploads(some_settings(10), 2).encoded(2)[9])
    log = tmp_path / "server-0" / "bodies.bin"
    log.touch()
    assert LiveFederation(tmp_path).page().figures() == []
    for messages in (signed(tmp_path, 1), [*signed(tmp_path, 2, [1]), stranger]):
        hash_chain.append(log, run, pack(messages))
    (partition,) = [f for f in LiveFederation(tmp_path).page().figures() if f.name == "partition"]
    assert "stated in round 2" in partition.caption
    assert {row["client"] for row in partition.rows} == {"client-1"}


def test_a_log_that_is_too_large_to_be_read_is_said(tmp_path):
    founded(tmp_path, servers=1, clients=1)
    log = tmp_path / "server-0" / "audit.log"
    log.touch()
    assert "not shown" not in LiveFederation(tmp_path).page().head
    os.truncate(log, (64 << 20) + 1)
    assert "server-0/audit.log has 64 MiB" in LiveFederation(tmp_path).page().head


def test_what_cannot_be_watched_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        watched([tmp_path / "none"])
    founded(tmp_path, servers=1, clients=1)
    with pytest.raises(UserError, match="watch it alone"):
        watched([tmp_path, tmp_path])
