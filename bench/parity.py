"""Compare a real federation of processes with the simulator, byte for byte.

    python bench/parity.py --out results/network/parity.json
    python bench/parity.py --clients 3 --rounds 2 --set partition.shots=7

The first has 4 servers, 20 clients and 20 rounds; the second is a quick look. Servers and clients
run as processes on this machine. Then `fedrfq run` trains the same clients with the same seed, each
alone (`train.alone`), with a simulated committee of that size. Every upload, global prototype,
verdict, detector memory and public statistic of every round, and every client's last model, are
compared. Finally the simulated committee gets the uploads that the real servers recorded, and must
decide the same.

With noise for privacy the run is given what the real clients drew. `--kill CLIENT` kills that
client by signal 9 whenever it has drawn an upload and not yet sent it, and starts it again: what
was drawn must be what counts, and be drawn once.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrfq import data
from fedrfq.committee import PreviousRound, Simulated
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import OUTCOME, Part, PartKind, Upload
from fedrfq.experiment import Experiment, from_table
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import unpack
from fedrfq.files import hash_chain, tensors, toml
from fedrfq.learning.round_loop import LoopState, RoundLoop, committee_settings
from fedrfq.node.client_learning import MODEL
from fedrfq.node.membership import founding
from fedrfq.node.ops.child_processes import fedrfq_command
from fedrfq.node.ops.local_cluster import Cluster, Size, free_ports
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUploads, UploadKey
from testbed import record

_POLL_S = 0.2
_KILLED = Path(__file__).with_name("killed_after_draw.py")
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Recorded:
    """A recorded round: what the clients sent, and what was decided."""

    uploads: dict[int, bytes]
    outcome: Outcome


class Mortal:
    """Clients that are killed whenever they have drawn noise, and what each had drawn by then."""

    def __init__(self, cluster: Cluster, clients: Sequence[int]) -> None:
        self.cluster = cluster
        self.clients = clients
        self.drawn: dict[Path, bytes] = {}
        for client in clients:
            child = cluster.children[~client]
            words = child.command[child.command.index("client") :]
            child.command = [sys.executable, str(_KILLED), *words]

    def revive(self) -> None:
        """Note what is on the disk of each client that was killed, and start it again."""
        for client in self.clients:
            child = self.cluster.children[~client]
            if child.code == -signal.SIGKILL:
                self.drawn |= _drawn(self.cluster, client)
                child.start()

    def deaths(self) -> int:
        """Return how often a client was started again."""
        return sum(self.cluster.children[~client].starts - 1 for client in self.clients)

    def nothing_redrawn(self) -> bool:
        """Return whether all that was drawn before a death is as it was, and nothing else came."""
        now = {}
        for client in self.clients:
            now |= _drawn(self.cluster, client)
        return now == self.drawn


def _drawn(cluster: Cluster, client: int) -> dict[Path, bytes]:
    files = (cluster.own(~client) / FOLDER).glob("*.upload")
    return {path: path.read_bytes() for path in files}


def held(
    folder: Path, size: Size, sets: Sequence[str], limit_s: float, kill: Sequence[int] = ()
) -> tuple[Cluster, Mortal]:
    """Run a federation through all its rounds, each with all clients.

    Rounds wait for all clients, however slow they start.
    """
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size.servers)]
    waits = {"minimum": size.clients, "deadline_ms": round(limit_s * 1000)}
    founding.init(folder, addresses, size.clients, waits, sets=[*sets, f"rounds={size.rounds}"])
    cluster = Cluster(folder)
    mortal = Mortal(cluster, kill)
    deadline = time.monotonic() + limit_s
    cluster.start()
    try:
        while not cluster.finished():
            mortal.revive()
            if cluster.failed() or time.monotonic() > deadline:
                why = ", ".join(child.name for child in cluster.failed()) + " ended early"
                if not cluster.failed():
                    why = f"it took more than {limit_s:g} s"
                raise RuntimeError(f"the federation did not finish: {why}; see {folder}")
            time.sleep(_POLL_S)
    finally:
        cluster.stop()
    return cluster, mortal


def recorded(path: Path, run: bytes) -> list[Recorded]:
    """Return the rounds in a bodies.bin."""
    return _rounds([entry.payload for entry in hash_chain.entries(path, run)])


def _rounds(payloads: Sequence[bytes]) -> list[Recorded]:
    rounds = []
    public = b""
    for payload in payloads:
        rounds.append(_round(payload, public))
        public = rounds[-1].outcome.public
    return rounds


def _round(payload: bytes, public: bytes) -> Recorded:
    """Return a round; `public` is the public part before it, which is recorded when it changes."""
    uploads = {}
    contents = {PartKind.PUBLIC: public, PartKind.SUCCESSOR: b""}
    for placed in unpack(payload):
        body = placed.message.body
        if isinstance(body, Upload):
            uploads[body.client] = body.content
        elif isinstance(body, Part):
            contents[body.what] = body.content
    return Recorded(uploads, Outcome(*(contents[what] for what in OUTCOME)))


def simulated(cluster: Cluster, experiment: Experiment) -> tuple[LoopState, list[Recorded]]:
    """Run the same federation in one process, each client trained alone and with the same noise.

    Return its last state and its rounds.
    """
    alone = replace(experiment, train=replace(experiment.train, alone=True))
    loop = RoundLoop([alone], data.load(experiment.data.name), _CPU)
    _give_noise(loop, cluster)
    state = loop.start()
    bodies = []
    for _ in range(experiment.rounds):
        state, (result,) = loop.advance(state)
        assert result.report is not None, "the experiment of a federation has a committee"
        bodies.append(result.report.bodies)
    return state, _rounds(bodies)


def _give_noise(loop: RoundLoop, cluster: Cluster) -> None:
    """Give a run what the clients of a federation drew."""
    (experiment,) = loop.experiments
    run = cluster.federation.roster.run.hex()
    for client in range(experiment.clients):
        kept = DrawnUploads(cluster.own(~client) / FOLDER)
        for number in range(1, experiment.rounds + 1):
            # A client is the only one, and so the first, of its own folder.
            drawn = kept.get(UploadKey(run, number, 0))
            if drawn is not None:
                loop.public.drawn[0].once(UploadKey("", number, client), lambda drawn=drawn: drawn)


def decided(experiment: Experiment, classes: int, rounds: Sequence[Recorded]) -> Iterator[Outcome]:
    """Yield what the simulated committee decides from recorded uploads, round after round."""
    assert isinstance(experiment.committee, Simulated)
    settings = committee_settings(experiment, classes)
    task = settings.task
    application = PrototypeApplication(task)
    last = b""
    before = application.start()
    for number, recorded_round in enumerate(rounds, start=1):
        known = application.memory(before)
        uploads = task.form(number).admit(number, recorded_round.uploads)
        previous = PreviousRound(last, known.state, known.globals_, known.public)
        agreed = experiment.committee.decide(settings, number, previous, uploads)
        assert agreed.report is not None
        before = _round(agreed.report.bodies, before.public).outcome
        last = agreed.last
        yield before


def models(cluster: Cluster, state: LoopState) -> list[bool]:
    """Return for each client whether the model on its disk is that of the run."""
    same = []
    for client, params in enumerate(state.params):
        stored, _ = tensors.load(cluster.own(~client) / MODEL / "model.safetensors")
        equal = all(
            name in stored and torch.equal(stored[name], p[0]) for name, p in params.items()
        )
        same.append(equal and stored.keys() == params.keys())
    return same


def compared(cluster: Cluster) -> dict[str, Any]:
    """Compare a federation that has finished with the simulator, point by point."""
    federation = cluster.federation
    assert federation.network is not None
    experiment = from_table(toml.strict(federation.network.experiment))
    servers = [
        recorded(cluster.own(s) / "bodies.bin", federation.roster.run)
        for s in range(federation.roster.n)
    ]
    real = servers[0]
    state, run = simulated(cluster, experiment)
    again = list(decided(experiment, federation.task.classes, real))
    outcomes = b"".join(part for one in real for part in one.outcome)
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
        "sha256 of all outcomes": hashlib.sha256(outcomes).hexdigest(),
    }


def survived(mortal: Mortal) -> dict[str, Any]:
    """Say what the deaths of clients did, and what an auditor finds."""
    cluster = mortal.cluster
    checked = subprocess.run(
        fedrfq_command("verify", cluster.own(0), "--recompute", "--json"),
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(checked.stdout.splitlines()[-1])
    return {
        "killed after a draw, before it was sent": mortal.deaths(),
        "uploads drawn by those who were killed": len(mortal.drawn),
        "nothing redrawn": mortal.nothing_redrawn(),
        "rounds that verify --recompute computed anew": found["recomputed"],
        "noise that it names": found["privacy"],
    }


def main() -> None:
    """Run, compare and print the result; fail if anything differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--servers", type=int, default=4, help="servers (default: 4)")
    parser.add_argument("--clients", type=int, default=20, help="clients (default: 20)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds (default: 20)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a key of the experiment to override; repeatable",
    )
    parser.add_argument(
        "--kill",
        type=int,
        action="append",
        default=[],
        metavar="CLIENT",
        help="a client to kill whenever it has drawn noise; repeatable",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="how long the federation may take (default: 3600)",
    )
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="where to write the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = Size(options.servers, options.clients, options.rounds)
        cluster, mortal = held(
            Path(folder) / "federation", size, options.set, options.limit, options.kill
        )
        result = compared(cluster)
        if options.kill:
            result |= survived(mortal)
    if options.out:
        record(options.out, result)
    print(json.dumps(result, indent=2))
    sys.exit(not all(result.values()))


if __name__ == "__main__":
    main()
