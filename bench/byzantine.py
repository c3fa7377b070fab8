"""A server that lies, as a real process among three honest ones: rounds go on, the result is honest, evidence names it.

python bench/byzantine.py
python bench/byzantine.py --behaviours equivocate --rounds 8
"""

from __future__ import annotations

import asyncio
import sys
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
BEHAVIOURS = ("equivocate", "forge", "censor", "wrong")
_LIMIT_S = 3.0  # a round, on average


@dataclass(frozen=True)
class Found:
    """What came of it, by the logs of the honest servers, each recomputed."""

    rounds: int
    view_changes: int
    as_honest: bool  # globals, verdicts and state are what one honest server makes of the uploads
    agree: bool  # all logs, and all that clients have seen
    evidence: dict[str, int]  # proofs by party


@contextmanager
def under_attack(behaviour: str) -> Iterator[Cluster]:
    """Three honest servers, and one that is not."""
    waits = {"view_ms": 300, "resend_ms": 200}
    with founded(CLIENTS, free_ports(4), waits) as folder, servers(folder, range(3)) as cluster:
        module = [sys.executable, SERVER, str(cluster.own(EVIL)), "--behaviour", behaviour]
        evil = Child("evil", module, cluster.own(EVIL) / "output.log")
        evil.start()
        try:
            yield cluster
            assert evil.running, evil.said()
        finally:
            stop([evil])


async def decided(cluster: Cluster, rounds: int) -> Crowd:
    """So many rounds, with all clients."""
    crowd = Crowd(cluster.folder, range(CLIENTS), rounds)
    await answering(cluster, range(3))
    while not all(
        _meets(cluster, server) for server in range(3)
    ):  # or it would be passed over before it can lie
        await asyncio.sleep(0.05)
    await crowd.start()
    try:
        await crowd.all_connected()
        crowd.go(rounds)
        await asyncio.wait_for(crowd.reached(rounds), 60 + _LIMIT_S * rounds)
        while any(
            (cluster.status(server) or {"round": 0})["round"] <= rounds for server in range(3)
        ):
            await asyncio.sleep(0.05)
    finally:
        await crowd.stop()
    return crowd


def _meets(cluster: Cluster, server: int) -> bool:
    """Whether a server is connected with the one that lies."""
    peers = (cluster.status(server) or {"peers": []})["peers"]
    return any(
        peer["connected"] for peer in peers if peer["name"] == name(cluster.federation, EVIL)
    )


def computed(federation: Federation, rounds: int) -> list[Outcome]:
    """What one honest server makes of all that the clients send."""
    application = reconfigurable(federation)
    outcomes = [reconfigurable(federation).start()]
    for round_ in range(1, rounds + 1):
        uploads = [
            Upload(round_, client, content(federation.task, 0, round_, client))
            for client in range(CLIENTS)
        ]
        outcomes.append(application.decide(round_, outcomes[-1], uploads))
    return outcomes[1:]


def judged(cluster: Cluster, crowd: Crowd, rounds: int) -> Found:
    expected = [
        tuple(map(part_digest, OUTCOME, outcome))
        for outcome in computed(cluster.federation, rounds)
    ]
    run = cluster.federation.roster.run
    logs = []
    proofs = set()
    for server in range(3):
        audit = Audit(cluster.own(server), recompute=True)
        logs.append([audited.certificate for audited in audit.rounds()])
        proofs |= {
            accusation(message.body)
            for message in audit.evidence()
            if isinstance(message.body, Evidence)
        }
    records = [[certificate.record for certificate in log] for log in logs]
    seen = [{record.round: record.value(run) for record in log} for log in records]
    return Found(
        rounds=len(records[0]),
        view_changes=sum(certificate.view > 0 for certificate in logs[0]),
        as_honest=all(
            [(r.globals_, r.verdicts, r.state) for r in log] == expected for log in records
        ),
        agree=all(one == crowd.seen for one in seen),
        evidence=dict(Counter(name(cluster.federation, party) for party, *_ in proofs)),
    )


def attacked(behaviour: str, rounds: int) -> Found:
    with under_attack(behaviour) as cluster:
        crowd = asyncio.run(decided(cluster, rounds))
        cluster.stop()
        return judged(cluster, crowd, rounds)


def main() -> None:
    parser = arguments(__doc__, "byzantine.json")
    parser.add_argument("--behaviours", nargs="+", default=BEHAVIOURS, choices=BEHAVIOURS)
    parser.add_argument("--rounds", type=int, default=100)
    options = parser.parse_args()
    table = Table(
        "behaviour", "rounds", "view changes", "as one honest server", "all agree", "proofs"
    )
    results = {}
    for behaviour in options.behaviours:
        found = results[behaviour] = attacked(behaviour, options.rounds)
        proofs = ", ".join(f"{who}: {number}" for who, number in found.evidence.items()) or "none"
        table.add_row(
            behaviour,
            *map(str, (found.rounds, found.view_changes, found.as_honest, found.agree)),
            proofs,
        )
    console().print(table)
    record(options.out, {name: vars(found) for name, found in results.items()})


if __name__ == "__main__":
    main()
