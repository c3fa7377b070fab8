"""A lying server as a real process among three honest ones.

    python bench/byzantine.py
    python bench/byzantine.py --behaviours equivocate --rounds 8

Rounds must go on, the result must be that of honest servers, and evidence must name the liar, who
must neither slow the rounds down for long nor fill the logs.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fedrfq.audit import Audit
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Evidence, Upload, part_digest
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.reconfiguration import reconfigurable
from fedrfq.federation.round_log import OUTCOME, accusation
from fedrfq.node.ops.child_processes import Child, stop
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from fedrfq.node.ops.status import name
from loadclient import Crowd, content
from testbed import answering, arguments, console, founded, record, servers

EVIL = 3
CLIENTS = 3
SERVER = str(Path(__file__).parents[1] / "tests" / "support" / "byzantine_server.py")
BEHAVIOURS = ("equivocate", "forge", "censor", "wrong", "incriminate", "missign", "nest")
# What a round may take, on average.
_LIMIT_S = 3.0


@dataclass(frozen=True)
class Found:
    """What the logs of the honest servers show, each of them recomputed."""

    rounds: int
    view_changes: int
    as_honest: bool  # globals, verdicts and state are what one honest server computes
    agree: bool  # all logs agree with each other and with what the clients saw
    evidence: dict[str, int]  # number of proofs by party
    rounds_s: float
    log_bytes: int  # of one honest server, in its log and its audit log, for each round


@contextmanager
def under_attack(behaviour: str) -> Iterator[Cluster]:
    """Start three honest servers and a lying one."""
    waits = {"view_ms": 300, "resend_ms": 200}
    with founded(CLIENTS, free_ports(4), waits) as folder, servers(folder, range(3)) as cluster:
        command = [sys.executable, SERVER, str(cluster.own(EVIL)), "--behaviour", behaviour]
        evil = Child("evil", command, cluster.own(EVIL) / "output.log")
        evil.start()
        try:
            yield cluster
            assert evil.running, evil.said()
        finally:
            stop([evil])


async def decided(cluster: Cluster, rounds: int) -> Crowd:
    """Run `rounds` rounds with all clients, and return the clients."""
    crowd = Crowd(cluster.folder, range(CLIENTS), rounds)
    await answering(cluster, range(3))
    # Otherwise the rounds would pass the liar over before it can lie.
    while not all(_is_connected_to_liar(cluster, server) for server in range(3)):
        await asyncio.sleep(0.05)
    await crowd.start()
    try:
        await crowd.all_connected()
        crowd.go(rounds)
        await asyncio.wait_for(crowd.reached(rounds), 60 + _LIMIT_S * rounds)
        while min(_round(cluster, server) for server in range(3)) <= rounds:
            await asyncio.sleep(0.05)
    finally:
        await crowd.stop()
    return crowd


def _round(cluster: Cluster, server: int) -> int:
    status = cluster.status(server) or {"round": 0}
    return int(status["round"])


def _is_connected_to_liar(cluster: Cluster, server: int) -> bool:
    status = cluster.status(server) or {"peers": []}
    liar = name(cluster.federation, EVIL)
    return any(peer["connected"] for peer in status["peers"] if peer["name"] == liar)


def computed(federation: Federation, rounds: int) -> list[Outcome]:
    """Return the outcomes that one honest server computes from all that the clients send."""
    application = reconfigurable(federation)
    outcomes = [reconfigurable(federation).start()]
    for round_ in range(1, rounds + 1):
        uploads = [
            Upload(round_, client, content(federation.task, 0, round_, client))
            for client in range(CLIENTS)
        ]
        outcomes.append(application.decide(round_, outcomes[-1], uploads))
    return outcomes[1:]


def judged(cluster: Cluster, crowd: Crowd, rounds: int, took_s: float) -> Found:
    """Audit the logs of the honest servers and compare them with each other and the clients."""
    run = cluster.federation.roster.run
    expected = []
    for outcome in computed(cluster.federation, rounds):
        expected.append(tuple(map(part_digest, OUTCOME, outcome)))
    logs = []
    proofs = set()
    for server in range(3):
        audit = Audit(cluster.own(server), recompute=True)
        logs.append([audited.certificate for audited in audit.rounds()])
        for message in audit.evidence():
            if isinstance(message.body, Evidence):
                proofs.add(accusation(message.body))
    records = [[certificate.record for certificate in log] for log in logs]
    outcomes = [[r.outcome() for r in log] for log in records]
    values = [{r.round: r.value(run) for r in log} for log in records]
    return Found(
        rounds=len(records[0]),
        view_changes=sum(certificate.view > 0 for certificate in logs[0]),
        as_honest=all(log == expected for log in outcomes),
        agree=all(log == crowd.seen for log in values),
        evidence=dict(Counter(name(cluster.federation, party) for party, *_ in proofs)),
        rounds_s=rounds / took_s,
        log_bytes=_log_bytes(cluster.own(0)) // rounds,
    )


def _log_bytes(folder: Path) -> int:
    files = [folder / "audit.log", *(folder / "log").iterdir()]
    return sum(file.stat().st_size for file in files)


def attacked(behaviour: str, rounds: int) -> Found:
    """Run a federation with one lying server and return what its logs show."""
    with under_attack(behaviour) as cluster:
        start = time.perf_counter()
        crowd = asyncio.run(decided(cluster, rounds))
        took_s = time.perf_counter() - start
        cluster.stop()
        return judged(cluster, crowd, rounds, took_s)


def main() -> None:
    """Run every behaviour, print a table and write the record."""
    parser = arguments(__doc__, "network/byzantine.json")
    parser.add_argument(
        "--behaviours",
        nargs="+",
        default=BEHAVIOURS,
        choices=BEHAVIOURS,
        help="how the server lies (default: all)",
    )
    parser.add_argument("--rounds", type=int, default=100, help="rounds each (default: 100)")
    options = parser.parse_args()
    table = Table(
        "behaviour",
        "rounds",
        "view changes",
        "as one honest server",
        "all agree",
        "proofs",
        "rounds/s",
        "log, bytes a round",
    )
    results = {}
    for behaviour in options.behaviours:
        found = attacked(behaviour, options.rounds)
        results[behaviour] = found
        proofs = ", ".join(f"{who}: {number}" for who, number in found.evidence.items()) or "none"
        table.add_row(
            behaviour,
            str(found.rounds),
            str(found.view_changes),
            str(found.as_honest),
            str(found.agree),
            proofs,
            f"{found.rounds_s:.1f}",
            f"{found.log_bytes:,}",
        )
    console().print(table)
    record(options.out, {name: vars(found) for name, found in results.items()})


if __name__ == "__main__":
    main()
