"""A faulty server process among honest ones: rounds go on as without it, and evidence names it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from byzantine import BEHAVIOURS, EVIL, attacked
from fedrfq.consensus.events import Broadcast, Event, Persist, Send, Start
from fedrfq.consensus.messages import Fetch, PartKind, unsigned
from fedrfq.node.ops.local_cluster import free_ports
from fedrfq.simulator.party import Action, RawBytes, Relay
from support import byzantine_server
from support.byzantine_server import Faulty
from testbed import founded

# The faulty server leads two of them.
ROUNDS = 8
MESSAGE = unsigned(bytes(32), Fetch(1, PartKind.CERT))


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_lying_server_changes_nothing(behaviour: str) -> None:
    found = attacked(behaviour, ROUNDS)
    assert (found.rounds, found.as_honest, found.agree) == (ROUNDS, True, True)
    assert set(found.evidence) <= {f"server-{EVIL}"}
    assert found.evidence or behaviour not in ("equivocate", "wrong", "incriminate")
    # Messages of half a megabyte that contradict each other are in no log.
    assert found.log_bytes < 50_000


def test_what_a_behaviour_does_goes_over_its_own_connections() -> None:
    class Scripted:
        def step(self, event: Event) -> list[Action]:
            return [
                Persist(MESSAGE),
                Relay(EVIL, 1, MESSAGE),
                RawBytes(2, b"noise"),
                Broadcast(MESSAGE),
            ]

    noise: list[tuple[int, bytes]] = []
    found = Faulty(Scripted(), lambda to, data: noise.append((to, data))).step(Start())
    assert found == [Send(1, MESSAGE), Broadcast(MESSAGE)]
    assert noise == [(2, b"noise")]


def test_only_servers_misbehave(tmp_path: Path) -> None:
    with founded(2, free_ports(1)) as folder:
        for where, why in ((folder / "client-0", "is a client's"), (tmp_path, "cannot be read")):
            module = [sys.executable, byzantine_server.__file__, str(where), "--behaviour", "forge"]
            done = subprocess.run(module, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 1
            assert why in done.stderr
            assert "Traceback" not in done.stderr
