"""A real federation of processes against the simulator, byte for byte.

    python bench/parity.py --out results/network/parity.json                       (4 servers, 20 clients, 20 rounds)
    python bench/parity.py --clients 3 --rounds 2 --set partition.shots=7          (a look)

Servers and clients run as processes on this machine. Then `fedrfq run` trains the same clients with the same seed, each alone
(`train.alone`), with a simulated committee of that size: every upload, global prototype, verdict and detector's memory of
every round, and every client's last model, are compared. And the uploads that the real servers recorded are given to the
simulated committee, which has to decide what the real one did.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq import data
from fedrfq.committee import Simulated
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Upload
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import outcome, unpack
from fedrfq.files import hash_chain, tensors, toml
from fedrfq.learning.round_loop import LoopState, RoundLoop, mandate
from fedrfq.node.client import MODEL
from fedrfq.node.membership import founding
from fedrfq.node.ops.local_cluster import Cluster, Size, free_ports
from fedrfq.prototypes.fixed_point import admit
from testbed import record

_LOOK_S = 0.2
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recorded:
    """A round as somebody wrote it down: what the clients sent, and what became of it."""

    uploads: dict[int, bytes]
    outcome: Outcome


def held(folder: Path, size: Size, sets: Sequence[str], limit_s: float) -> Cluster:
    """A federation that has gone through all its rounds, each with all clients, however slow they start."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size.servers)]
    waits = {"minimum": size.clients, "deadline_ms": round(limit_s * 1000)}
    founding.init(folder, addresses, size.clients, waits, None, [*sets, f"rounds={size.rounds}"])
    cluster = Cluster(folder)
    until = time.monotonic() + limit_s
    cluster.start()
    try:
        while not cluster.finished():
            if cluster.fallen() or time.monotonic() > until:
                names = [child.name for child in cluster.fallen()]
                raise RuntimeError(
                    f"the federation did not end: {names or 'it took too long'}, see {folder}"
                )
            time.sleep(_LOOK_S)
    finally:
        cluster.stop()
    return cluster


def recorded(path: Path, run: bytes) -> list[Recorded]:
    """The rounds of a bodies.bin."""
    return [_round(entry.payload) for entry in hash_chain.entries(path, run)]


def _round(payload: bytes) -> Recorded:
    messages = [placed.message for placed in unpack(payload)]
    uploads = {m.body.client: m.body.content for m in messages if isinstance(m.body, Upload)}
    decided = outcome([m for m in messages if not isinstance(m.body, Upload)])
    assert decided is not None, "a server that saw every round has all of its outcome"
    return Recorded(uploads, decided)


def simulated(experiment: Experiment) -> tuple[LoopState, list[Recorded]]:
    """The same federation in one process, each client trained alone: how it ends, and its rounds."""
    alone = replace(experiment, train=replace(experiment.train, alone=True))
    loop = RoundLoop([alone], data.load(experiment.data.name), _CPU)
    state = loop.start()
    rounds = []
    for _ in range(experiment.rounds):
        state, (found,) = loop.advance(state)
        assert found.report is not None, "the experiment of a federation has a committee"
        rounds.append(_round(found.report.bodies))
    return state, rounds


def decided(experiment: Experiment, classes: int, rounds: Sequence[Recorded]) -> Iterator[Outcome]:
    """What the simulated committee makes of recorded uploads, round after round."""
    assert isinstance(experiment.committee, Simulated)
    order = mandate(experiment, classes)
    task = order.task
    application = PrototypeApplication(order.task)
    last = b""
    before = application.start()
    for number, found in enumerate(rounds, start=1):
        globals_, memory = application.memory(before)
        uploads = admit(number, found.uploads, task.classes, task.values, task.precision)
        agreed = experiment.committee.decide(order, number, last, memory, globals_, uploads)
        assert agreed.report is not None
        before = _round(agreed.report.bodies).outcome
        last = agreed.last
        yield before


def models(cluster: Cluster, state: LoopState) -> list[bool]:
    """Whether each client's model on its disk is that of the run."""
    found = [
        tensors.load(cluster.own(~k) / MODEL / "model.safetensors")[0]
        for k in range(len(state.params))
    ]
    pairs = zip(found, state.params, strict=True)
    return [
        own.keys() == p.keys() and all(torch.equal(own[name], p[name][0]) for name in p)
        for own, p in pairs
    ]


def compared(cluster: Cluster) -> dict[str, Any]:
    """What is the same, of a federation that has ended."""
    federation = cluster.federation
    assert federation.network is not None
    experiment = from_table(toml.strict(federation.network.experiment))
    servers = [
        recorded(cluster.own(s) / "bodies.bin", federation.roster.run)
        for s in range(federation.roster.n)
    ]
    real = servers[0]
    (state, run) = simulated(experiment)
    again = list(decided(experiment, federation.task.classes, real))
    return {
        "servers": federation.roster.n,
        "clients": experiment.clients,
        "rounds": len(real),
        "all rounds": len(real) == experiment.rounds,
        "servers agree": all(other == real for other in servers),
        "uploads": [one.uploads for one in real] == [one.uploads for one in run],
        "outcomes": [one.outcome for one in real] == [one.outcome for one in run],
        "outcomes of the recorded uploads": again == [one.outcome for one in real],
        "models": all(models(cluster, state)),
        "sha256 of all outcomes": hashlib.sha256(
            b"".join(part for one in real for part in one.outcome)
        ).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="of the experiment"
    )
    parser.add_argument(
        "--limit", type=float, default=3600.0, help="seconds that the federation may take"
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = Size(options.servers, options.clients, options.rounds)
        found = compared(held(Path(folder) / "federation", size, options.set, options.limit))
    if options.out:
        record(options.out, found)
    print(json.dumps(found, indent=2))
    sys.exit(not all(value for value in found.values()))


if __name__ == "__main__":
    main()
