"""Seconds a round on Flower's simulation engine: this package's app in shards, against a plain Flower app of FedProto.

    python bench/flower.py [--clients 100] [--nodes 2] [--rounds 8] [--repeats 3]

The plain app (`bench/plainflower/`) is what one would write without this package, in the manner of Flower's first example: a
client a node, stock PyTorch and its loaders, the model in the context's state, a message to train and one to evaluate, a
weighted mean at the server. It runs with Flower's usual two cores a node, and with one, which is better for it where cores
are few. Data, partition, model, optimiser and λ are the same. Ours also signs every upload, has four simulated servers agree
on every round and write it down, and keeps models on disk. Both train, test every client, and are timed in the server app.
Runs alternate on one SuperLink; of each run the mean of the rounds from the second on counts (in the first, processes
start), and of the repeats the best.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from rich.table import Table

from fedrfq.runs.run_directory import RunDirectory
from flower_simulation import Simulation, simulation
from testbed import ROOT, arguments, console, record

PLAIN = ROOT / "bench" / "plainflower"
USUAL = "plain Flower, 2 cores a node"
TUNED = "plain Flower, 1 core a node"
OURS = "fedrfq in shards, 1 core a node"
TIMES = 5.0  # as fast, at least
LIMIT_S = 1200.0
EXPERIMENT = """
name = "speed"
rounds = {rounds}
clients = {clients}

[data]
name = "mnist5k"

[partition]
shots = 8  # of each of its classes: 5,000 images are enough for 100 clients with images of their own

[pool]
name = "none"

[method]
name = "fedproto"
aggregate = "weighted"

[committee]
name = "simulated"
servers = 4
"""


@dataclass(frozen=True)
class Timed:
    """A run: its rounds' seconds, and the mean accuracy after the last."""

    seconds: list[float]
    accuracy: float

    @property
    def a_round(self) -> float:
        return mean(self.seconds[1:])


def plain(engine: Simulation, experiment: Path, nodes: int, cores: int) -> Timed:
    out = experiment.with_name("plain.json")
    out.unlink(missing_ok=True)
    said = engine.run(
        {"experiment": str(experiment), "out": str(out)}, nodes, LIMIT_S, PLAIN, cores
    )
    if not out.exists():
        raise RuntimeError(said)
    rounds = json.loads(out.read_text(encoding="utf-8"))
    return Timed([one["seconds"] for one in rounds], rounds[-1]["accuracy"])


def ours(engine: Simulation, experiment: Path, nodes: int, cores: int) -> Timed:
    out = experiment.with_name("runs")
    known = set(out.glob("*/*"))
    said = engine.run({"experiment": str(experiment), "out": str(out)}, nodes, LIMIT_S, cores=cores)
    (path,) = set(out.glob("*/*")) - known
    rounds = RunDirectory(path).rounds()
    if RunDirectory(path).result() is None:
        raise RuntimeError(said)
    return Timed([one.seconds for one in rounds], rounds[-1].accuracy_mean)


def measured(clients: int, nodes: int, rounds: int, repeats: int) -> dict[str, list[Timed]]:
    """All runs, by who ran."""
    candidates = {
        USUAL: partial(plain, nodes=clients, cores=2),
        TUNED: partial(plain, nodes=clients, cores=1),
        OURS: partial(ours, nodes=nodes, cores=1),
    }
    found: dict[str, list[Timed]] = {name: [] for name in candidates}
    with TemporaryDirectory(prefix="fedrfq-") as folder:
        experiment = Path(folder) / "experiment.toml"
        experiment.write_text(EXPERIMENT.format(clients=clients, rounds=rounds), encoding="utf-8")
        with simulation(Path(folder) / "superlink") as engine:
            for _ in range(repeats):
                for name, run in candidates.items():
                    found[name].append(run(engine, experiment))
    return found


def main() -> None:
    parser = arguments(__doc__, "speed.json")
    parser.set_defaults(out=ROOT / "results" / "flower" / "speed.json")
    for name, usual in {"clients": 100, "nodes": 2, "rounds": 8, "repeats": 3}.items():
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    runs = measured(args.clients, args.nodes, args.rounds, args.repeats)
    best = {name: min(run.a_round for run in timed) for name, timed in runs.items()}
    times = {name: took / best[OURS] for name, took in best.items()}
    title = f"{args.clients} clients, ours on {args.nodes} nodes, best of {args.repeats}"
    table = Table("", "s a round", "× ours", "accuracy", title=title)
    for name, took in best.items():
        table.add_row(name, f"{took:.3f}", f"{times[name]:.1f}", f"{runs[name][-1].accuracy:.1f}")
    console().print(table)
    found = {
        "versions": {name: version(name) for name in ("flwr", "ray", "torch")},
        "clients": args.clients,
        "nodes": args.nodes,
        "seconds_a_round": best,
        "times_ours": times,
        "runs": {name: [asdict(run) for run in timed] for name, timed in runs.items()},
    }
    record(args.out, found)
    least = min(times[USUAL], times[TUNED])
    sys.exit(0 if least >= TIMES else f"{least:.1f} times as fast, not {TIMES:g}")


if __name__ == "__main__":
    main()
