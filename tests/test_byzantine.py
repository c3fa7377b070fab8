"""A faulty server as a real process among honest ones: rounds go on, the result is the honest one, evidence names it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from command import fedrfq

from fedrfq.audit import Audit
from fedrfq.committee.charter import Charter
from fedrfq.committee.chartered import chartered
from fedrfq.committee.journal import OUTCOME
from fedrfq.consensus.machine import Broadcast, Event, Outcome, Persist, Send, Start
from fedrfq.consensus.messages import Fetch, Upload, What, part_digest, unsigned
from fedrfq.net.byzantine import Faulty
from fedrfq.net.children import Child, stop
from fedrfq.net.cluster import Cluster, free_ports
from fedrfq.simulator.node import Action, Noise, Relay

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
from ground import answering, federation, servers
from loadclient import Crowd, content

ROUNDS = 8  # the faulty server leads two of them
EVIL = 3
MESSAGE = unsigned(bytes(32), Fetch(1, What.CERT))


@contextmanager
def under_attack(behaviour: str) -> Iterator[Cluster]:
    """Three honest servers, and one that is not."""
    with federation(3, free_ports(4), {"view_ms": 300, "resend_ms": 200}) as folder, servers(folder, range(3)) as cluster:
        module = [sys.executable, "-m", "fedrfq.net.byzantine", str(cluster.own(EVIL)), "--behaviour", behaviour]
        evil = Child("evil", module, cluster.own(EVIL) / "output.log")
        evil.start()
        try:
            yield cluster
            assert evil.running, evil.said()
        finally:
            stop([evil])


async def rounds(cluster: Cluster) -> Crowd:
    """Some, with all clients."""
    crowd = Crowd(cluster.folder, range(3), ROUNDS)
    await answering(cluster, range(3))
    await crowd.start()
    try:
        await crowd.all_connected()
        crowd.go(ROUNDS)
        await asyncio.wait_for(crowd.reached(ROUNDS), 90)
        while any((cluster.status(server) or {"round": 0})["round"] <= ROUNDS for server in range(3)):
            await asyncio.sleep(0.05)
    finally:
        await crowd.stop()
    return crowd


def computed(charter: Charter) -> list[Outcome]:
    """What one honest server makes of all that the clients send."""
    application, outcomes = chartered(charter), [chartered(charter).start()]
    for round_ in range(1, ROUNDS + 1):
        uploads = [Upload(round_, client, content(charter.task, 0, round_, client)) for client in range(3)]
        outcomes.append(application.decide(round_, outcomes[-1], uploads))
    return outcomes[1:]


@pytest.mark.parametrize("behaviour", ["equivocate", "forge", "censor", "wrong"])
def test_a_lying_server_changes_nothing(behaviour: str) -> None:
    with under_attack(behaviour) as cluster:
        crowd = asyncio.run(rounds(cluster))
        cluster.stop()
        expected = [tuple(map(part_digest, OUTCOME, outcome)) for outcome in computed(cluster.charter)]
        accused: set[str] = set()
        for server in range(3):
            found = list(Audit(cluster.own(server), recompute=True).rounds())
            records = [audited.certificate.record for audited in found]
            assert [(record.globals_, record.verdicts, record.state) for record in records] == expected
            assert {record.round: record.value(cluster.charter.roster.run) for record in records} == crowd.seen
            accused |= set(re.findall(r"server-\d|client-\d", fedrfq("evidence", cluster.own(server)).stdout))
        assert accused <= {f"server-{EVIL}"}
        assert accused or behaviour not in ("equivocate", "wrong")


def test_what_a_behaviour_does_goes_over_its_own_connections() -> None:
    class Scripted:
        def step(self, event: Event) -> list[Action]:
            return [Persist(MESSAGE), Relay(EVIL, 1, MESSAGE), Noise(2, b"noise"), Broadcast(MESSAGE)]

    noise: list[tuple[int, bytes]] = []
    found = Faulty(Scripted(), lambda to, data: noise.append((to, data))).step(Start())
    assert found == [Send(1, MESSAGE), Broadcast(MESSAGE)]
    assert noise == [(2, b"noise")]


def test_only_servers_misbehave(tmp_path: Path) -> None:
    with federation(2, free_ports(1)) as folder:
        for where, why in ((folder / "client-0", "is a client's"), (tmp_path, "cannot be read")):
            module = [sys.executable, "-m", "fedrfq.net.byzantine", str(where), "--behaviour", "forge"]
            done = subprocess.run(module, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 1
            assert why in done.stderr
            assert "Traceback" not in done.stderr
