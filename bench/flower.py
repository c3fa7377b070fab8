"""Time a round on Flower's simulation engine: this package's app against a plain Flower app.

    python bench/flower.py [--clients 100] [--nodes 2] [--rounds 8] [--repeats 3]

The plain app (`bench/plainflower/`) is FedProto as one would write it without this package, in the
manner of Flower's first example: one client per node, stock PyTorch and its loaders, the model in
the context's state, one message to train and one to evaluate, a weighted mean at the server. It
runs with Flower's usual two cores per node, and with one, which is better for it where cores are
few. Data, partition, model, optimiser and λ are the same. Our app also signs every upload, has four
simulated servers agree on every round and record it, and keeps models on disk. Both train and test
every client, and are timed in the server app. Runs alternate on one SuperLink. Of each run the mean
of the rounds from the second on counts (processes start in the first), and of the repeats the best.
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
# How many times as fast as the plain app ours must be.
MIN_SPEEDUP = 5.0
LIMIT_S = 1200.0
EXPERIMENT = """
name = "speed"
rounds = {rounds}
clients = {clients}

[data]
name = "mnist5k"

[partition]
# Few, so that 5,000 images are enough for 100 clients that share none.
shots = 8

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
    """A run: the seconds of its rounds, and the mean accuracy after the last one."""

    seconds: list[float]
    accuracy: float

    @property
    def seconds_per_round(self) -> float:
        """The mean without the first round, in which processes start."""
        return mean(self.seconds[1:])


def plain(engine: Simulation, experiment: Path, nodes: int, cores: int) -> Timed:
    """Run the plain Flower app."""
    out = experiment.with_name("plain.json")
    out.unlink(missing_ok=True)
    settings = {"experiment": str(experiment), "out": str(out)}
    output = engine.run(settings, nodes, LIMIT_S, PLAIN, cores)
    if not out.exists():
        raise RuntimeError(output)
    rounds = json.loads(out.read_text(encoding="utf-8"))
    return Timed([round_["seconds"] for round_ in rounds], rounds[-1]["accuracy"])


def ours(engine: Simulation, experiment: Path, nodes: int, cores: int) -> Timed:
    """Run this package's app."""
    out = experiment.with_name("runs")
    earlier = set(out.glob("*/*"))
    settings = {"experiment": str(experiment), "out": str(out)}
    output = engine.run(settings, nodes, LIMIT_S, cores=cores)
    (path,) = set(out.glob("*/*")) - earlier
    run = RunDirectory(path)
    if run.result() is None:
        raise RuntimeError(output)
    rounds = run.rounds()
    return Timed([record.seconds for record in rounds], rounds[-1].accuracy_mean)


def measured(clients: int, nodes: int, rounds: int, repeats: int) -> dict[str, list[Timed]]:
    """Return all runs by candidate."""
    candidates = {
        USUAL: partial(plain, nodes=clients, cores=2),
        TUNED: partial(plain, nodes=clients, cores=1),
        OURS: partial(ours, nodes=nodes, cores=1),
    }
    runs: dict[str, list[Timed]] = {name: [] for name in candidates}
    with TemporaryDirectory(prefix="fedrfq-") as folder:
        experiment = Path(folder) / "experiment.toml"
        experiment.write_text(EXPERIMENT.format(clients=clients, rounds=rounds), encoding="utf-8")
        with simulation(Path(folder) / "superlink") as engine:
            for _ in range(repeats):
                for name, run in candidates.items():
                    runs[name].append(run(engine, experiment))
    return runs


def main() -> None:
    """Measure, print a table, write the record, and fail if ours is not fast enough."""
    parser = arguments(__doc__, "flower/speed.json")
    parser.set_defaults(out=ROOT / "results" / "flower" / "speed.json")
    parser.add_argument("--clients", type=int, default=100, help="clients (default: 100)")
    parser.add_argument("--nodes", type=int, default=2, help="nodes of our app (default: 2)")
    parser.add_argument("--rounds", type=int, default=8, help="rounds of a run (default: 8)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each app (default: 3)")
    args = parser.parse_args()
    runs = measured(args.clients, args.nodes, args.rounds, args.repeats)
    best = {name: min(run.seconds_per_round for run in timed) for name, timed in runs.items()}
    times = {name: took / best[OURS] for name, took in best.items()}
    title = f"{args.clients} clients, ours on {args.nodes} nodes, best of {args.repeats}"
    table = Table("app", "s per round", "× ours", "accuracy", title=title)
    for name, took in best.items():
        table.add_row(name, f"{took:.3f}", f"{times[name]:.1f}", f"{runs[name][-1].accuracy:.1f}")
    console().print(table)
    results = {
        "versions": {name: version(name) for name in ("flwr", "ray", "torch")},
        "clients": args.clients,
        "nodes": args.nodes,
        "seconds_a_round": best,
        "times_ours": times,
        "runs": {name: [asdict(run) for run in timed] for name, timed in runs.items()},
    }
    record(args.out, results)
    speedup = min(times[USUAL], times[TUNED])
    if speedup < MIN_SPEEDUP:
        sys.exit(f"expected to be {MIN_SPEEDUP:g} times as fast, found {speedup:.1f}")


if __name__ == "__main__":
    main()
