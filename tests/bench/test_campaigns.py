"""Small campaigns against real processes: the command, what it checks, what it records."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import chaos
from chaos import CALM, ROUGH, Campaign
from crowds import Crowds, Stretch
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from loadclient import Crowd
from standstill import Watch
from support.paths import BENCH
from support.proxy import Proxy
from testbed import answering, founded, servers


def campaign(name: str, out: Path, *options: object) -> dict[str, Any]:
    """Run a campaign's command and return what it recorded."""
    command = [sys.executable, str(BENCH / name), "--out", str(out), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    recorded: dict[str, Any] = json.loads(out.read_text())
    assert recorded["command"].startswith(f"python bench/{name} --out")
    assert {"revision", "machine", "at", "python", "interpreter"} <= set(recorded)
    return recorded


def test_killed_stopped_and_isolated_servers_lose_nothing(tmp_path: Path) -> None:
    found = campaign("chaos.py", tmp_path / "chaos.json", "--cycles", 3, "--seed", 2)
    assert found["wrong"] == []
    assert found["cycles"] >= 3
    kills = [number for what, number in found["hits"].items() if "killed" in what]
    assert sum(kills) == found["cycles"]
    assert found["rounds"] > 5


def test_a_standstill_is_kept_and_only_waited_out_in_calm_weather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chaos, "STANDSTILL_S", 0.0)
    monkeypatch.setattr(chaos, "_CALM_S", 0.3)
    record = tmp_path / "chaos.json"
    rounds = iter([1, 1, 1, *range(2, 9)])
    said = list[str]()
    with founded(3, [1, 2, 3, 4]) as folder:
        cluster = Cluster(folder, range(4))
        campaign = Campaign(cluster, [], [Proxy(0, Random(0), ROUGH)], Random(0), said.append)
        stuck = Watch(cluster, [], lambda: 1, record)
        stuck.still_s()
        monkeypatch.setattr(stuck, "still_s", lambda: 99.0)
        with pytest.raises(RuntimeError, match=r"calm weather either: .*chaos-standstill-2"):
            asyncio.run(campaign._wait_in_calm_weather(stuck))
        assert campaign.proxies[0].weather == CALM
        asyncio.run(campaign._wait_in_calm_weather(Watch(cluster, [], rounds.__next__, record)))
        assert campaign.proxies[0].weather == ROUGH
    kept = json.loads((tmp_path / "chaos-standstill-2.json").read_text())
    assert (kept["round"], set(kept["servers"])) == (1, {"0", "1", "2", "3"})
    assert set(kept["said"]) == {f"server-{k}" for k in range(4)}
    assert campaign.hits["stood still"] == len(said) == 2


async def isolated(
    cluster: Cluster, targets: list[int], ports: list[int], victim: int
) -> tuple[list[int], list[int], list[int]]:
    """Return the rounds of all servers at three moments.

    These are when the victim is cut off, when the others have passed its turn to lead twice, and
    when it has caught up.
    """
    proxies = [Proxy(target, Random(0)) for target in targets]
    campaign = Campaign(cluster, [], proxies, Random(0), lambda text: None)
    crowd = Crowd(cluster.folder, range(3))

    async def until(holds: Callable[[list[int]], bool]) -> list[int]:
        while True:
            statuses = [cluster.status(server) or {"round": 0} for server in cluster.children]
            rounds = [status["round"] for status in statuses]
            if holds(rounds):
                return rounds
            await asyncio.sleep(0.05)

    for server, (proxy, port) in enumerate(zip(proxies, ports, strict=True)):
        proxy.who = campaign.owner
        proxy.apart = lambda source, server=server: campaign.apart(server, source)
        await proxy.start(port)
    try:
        await answering(cluster, range(4))
        await crowd.start()
        await crowd.all_connected()
        crowd.go(10**9)
        await until(lambda rounds: min(rounds) > 3)
        campaign.isolated = victim
        # What is under way arrives first, which takes a while on a busy machine.
        before = await until(lambda rounds: True)
        while True:
            seen = before
            before = await until(lambda rounds, seen=seen: max(rounds) > max(seen) + 1)
            if before[victim] == seen[victim]:
                break
        during = await until(lambda rounds: max(rounds) > max(before) + 8)
        campaign.isolated = None
        after = await until(lambda rounds: min(rounds) > max(during))
    finally:
        await crowd.stop()
        for proxy in proxies:
            await proxy.stop()
    return before, during, after


def test_an_isolated_server_stands_still_while_the_others_go_on_and_catches_up() -> None:
    """The victim dials some servers and is dialled by the others: it is cut off from all.

    The clients cannot reach it either.
    """
    both = free_ports(8)
    victim = 1
    targets = both[:4]
    ports = both[4:]
    listen = {server: ["--listen", f"127.0.0.1:{port}"] for server, port in enumerate(targets)}
    waits = {"view_ms": 200, "resend_ms": 200, "deadline_ms": 60_000}
    with founded(3, ports, waits) as folder, servers(folder, more=listen) as cluster:
        before, during, _ = asyncio.run(
            asyncio.wait_for(isolated(cluster, targets, ports, victim), 120)
        )
    # One more round may follow from what it had received before.
    assert during[victim] <= max(before) + 1


def test_hostile_connections_cost_no_round(tmp_path: Path) -> None:
    found = campaign(
        "hostile.py", tmp_path / "hostile.json", "--connections", 40, "--clients", 4, "--held", 1
    )
    assert found["wrong"] == []
    assert found["during"]["rounds"] > 0
    assert found["returned"]["times"] > 0
    attacks = found["attacks"].items()
    attempts = [number for how, number in attacks if not how.startswith(("flood", "frames"))]
    assert sum(attempts) == 40
    assert found["attacks"]["oversized frame: refused, reset or closed"] == 5


def test_the_benchmark_measures_everything_it_promises(tmp_path: Path) -> None:
    options = ("--servers", 4, "--clients", 3, "--repeats", 1, "--timeout-ms", 300, "--rounds", 12)
    detector = ("--detector", "adaptive")
    found = campaign("network.py", tmp_path / "speed.json", *options, *detector)
    assert found["detector"] == "adaptive"
    (row,) = found["rows"]
    assert (row["servers"], row["clients"]) == (4, 3)
    assert set(row["best"]) == set(row["met"])
    assert row["best"]["commits_s"] > 0
    assert row["best"]["silent_leader_timeouts"] > 1


def test_clients_of_several_processes_are_in_the_same_rounds() -> None:
    async def stretches(cluster: Cluster) -> list[Stretch]:
        await answering(cluster, range(4))
        crowd = Crowds(cluster.folder, 3, rounds=4, processes=2)
        try:
            await crowd.connect()
            first = await crowd.go(1)
            second = await crowd.go(3)
        finally:
            crowd.stop()
        assert crowd.until == 4
        return [*first, *second]

    with founded(3, free_ports(4)) as folder, servers(folder) as cluster:
        found = asyncio.run(asyncio.wait_for(stretches(cluster), 120))
    # Two clients and one, in one round and in three.
    assert [len(stretch.latencies) for stretch in found] == [2, 1, 6, 3]
    decided_at = [stretch.decided_at for stretch in found]
    assert max(decided_at[:2]) < min(decided_at[2:])
