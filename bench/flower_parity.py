"""What becomes of a federation on Flower's simulation engine, against the same one by `fedrfq run`.

    python bench/flower_parity.py
    python bench/flower_parity.py --only thousand

- alone: 20 clients, 20 rounds of mnist5k, a node and a program for each client: the same bytes.
- shards: the same clients on 4 nodes, each of which trains its clients at once: the same accuracies, within 0.2 points.
- thousand: 1,000 clients on 4 nodes: within 4 GB, all processes together.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedrfq.audit import Audit
from fedrfq.experiment import Experiment, load
from fedrfq.files import toml
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session, here, pick_device
from flower_simulation import APP, simulation

RESULTS = Path(__file__).parents[1] / "results" / "flower"
POINTS = 0.2
MOST_BYTES = 4e9
SAME = ("audit.log", "bodies.bin", "clients.csv", "prototypes.safetensors", "partition.csv")


def alone(folder: Path) -> dict[str, Any]:
    experiment = load(APP / "experiment.toml")
    flower, took, peak = on_flower(folder, experiment, experiment.clients)
    direct = by_itself(folder, experiment)
    same = {
        name: (flower.path / name).read_bytes() == (direct.path / name).read_bytes()
        for name in SAME
    }
    holds = len(list(Audit(flower.path, recompute=True).rounds())) == experiment.rounds
    found = {
        "same": same,
        "verified": holds,
        "seconds": took,
        "peak_bytes": peak,
        **accuracies(flower, direct),
    }
    return {**found, "holds": all(same.values()) and holds}


def shards(folder: Path) -> dict[str, Any]:
    experiment = load(APP / "experiment.toml", ["train.alone=false"])
    flower, took, peak = on_flower(folder, experiment, 4)
    found = accuracies(flower, by_itself(folder, experiment))
    return {
        "seconds": took,
        "peak_bytes": peak,
        **found,
        "holds": found["most_points_apart"] <= POINTS,
    }


def thousand(folder: Path) -> dict[str, Any]:
    sets = ["train.alone=false", "clients=1000", "partition.share=true", "rounds=3"]
    experiment = load(APP / "experiment.toml", sets)
    flower, took, peak = on_flower(folder, experiment, 4)
    records = flower.rounds()
    done = [record.participants for record in records] == [experiment.clients] * experiment.rounds
    seconds = [round(record.seconds, 2) for record in records]
    return {
        "seconds": took,
        "seconds_of_rounds": seconds,
        "peak_bytes": peak,
        "holds": done and peak <= MOST_BYTES,
    }


def on_flower(folder: Path, experiment: Experiment, nodes: int) -> tuple[RunDirectory, float, int]:
    """The run, its seconds, and the most memory of all its processes together."""
    path = folder / "experiment.toml"
    path.write_text(toml.dump(experiment.table()), encoding="utf-8")
    settings = {"experiment": str(path), "out": str(folder / "flower"), "patience-s": 120}
    with simulation(folder / "superlink") as engine, engine.watched():
        began = time.perf_counter()
        said = engine.run(settings, nodes, limit_s=1800)
        took = time.perf_counter() - began
        peak = engine.peak
    (found,) = (folder / "flower").glob("*/*")
    run = RunDirectory(found)
    if run.result() is None:
        raise RuntimeError(said)
    return run, round(took, 1), peak


def by_itself(folder: Path, experiment: Experiment) -> RunDirectory:
    session = Session.begin([experiment], pick_device("cpu"), folder / "direct")
    for _ in session.advance():
        pass
    session.finish()
    return session.runs[0]


def accuracies(flower: RunDirectory, direct: RunDirectory) -> dict[str, Any]:
    """The last round's, and how far apart they are in any round."""
    pairs = list(zip(flower.rounds(), direct.rounds(), strict=True))
    apart = [abs(a.accuracy_mean - b.accuracy_mean) for a, b in pairs]
    last = pairs[-1]
    return {
        "accuracy": last[0].accuracy_mean,
        "accuracy_direct": last[1].accuracy_mean,
        "points_apart": apart[-1],
        "most_points_apart": max(apart),
    }


MEASURES = {"alone": alone, "shards": shards, "thousand": thousand}


def record(name: str, found: Mapping[str, Any], out: Path) -> None:
    machine = {**here(), "flwr": version("flwr"), "ray": version("ray"), "cores": os.cpu_count()}
    out.mkdir(parents=True, exist_ok=True)
    whole = {
        "command": f"python bench/flower_parity.py --only {name}",
        **found,
        "environment": machine,
    }
    (out / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(MEASURES))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    failed = []
    for name in [arguments.only] if arguments.only else list(MEASURES):
        with TemporaryDirectory(prefix="fedrfq-") as folder:
            found = MEASURES[name](Path(folder))
        record(name, found, arguments.out)
        sys.stdout.write(f"{name}: {json.dumps(found)}\n")
        if not found["holds"]:
            failed.append(name)
    sys.exit(", ".join(failed) if failed else 0)


if __name__ == "__main__":
    main()
