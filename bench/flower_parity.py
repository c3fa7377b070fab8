"""Compare a federation on Flower's simulation engine with the same one by `fedrfq run`.

    python bench/flower_parity.py
    python bench/flower_parity.py --only thousand

- alone: 20 clients, 20 rounds of mnist5k, one node and one program for each client: the bytes must
  be the same.
- shards: the same clients on 4 nodes, each of which trains its clients at once: the accuracies must
  be within 0.2 points.
- thousand: 1,000 clients on 4 nodes: all processes together must stay within 4 GB.
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
MAX_POINTS_APART = 0.2
MAX_BYTES = 4e9
SAME = ("audit.log", "bodies.bin", "clients.csv", "prototypes.safetensors", "partition.csv")


def alone(folder: Path) -> dict[str, Any]:
    """Compare bytes: one node for each client."""
    experiment = load(APP / "experiment.toml")
    flower, took, peak = on_flower(folder, experiment, experiment.clients)
    direct = by_itself(folder, experiment)
    same = {
        name: (flower.path / name).read_bytes() == (direct.path / name).read_bytes()
        for name in SAME
    }
    verified = len(list(Audit(flower.path, recompute=True).rounds())) == experiment.rounds
    return {
        "same": same,
        "verified": verified,
        "seconds": took,
        "peak_bytes": peak,
        **accuracies(flower, direct),
        "holds": all(same.values()) and verified,
    }


def shards(folder: Path) -> dict[str, Any]:
    """Compare accuracies: four nodes, each of which trains its clients at once."""
    experiment = load(APP / "experiment.toml", ["train.alone=false"])
    flower, took, peak = on_flower(folder, experiment, 4)
    compared = accuracies(flower, by_itself(folder, experiment))
    return {
        "seconds": took,
        "peak_bytes": peak,
        **compared,
        "holds": compared["most_points_apart"] <= MAX_POINTS_APART,
    }


def thousand(folder: Path) -> dict[str, Any]:
    """Measure the memory of 1,000 clients."""
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
        "holds": done and peak <= MAX_BYTES,
    }


def on_flower(folder: Path, experiment: Experiment, nodes: int) -> tuple[RunDirectory, float, int]:
    """Return the run, its seconds, and the peak memory of all its processes together."""
    file = folder / "experiment.toml"
    file.write_text(toml.dump(experiment.table()), encoding="utf-8")
    settings = {"experiment": str(file), "out": str(folder / "flower"), "patience-s": 120}
    with simulation(folder / "superlink") as engine, engine.watched():
        began = time.perf_counter()
        output = engine.run(settings, nodes, limit_s=1800)
        took = time.perf_counter() - began
        peak = engine.peak
    (path,) = (folder / "flower").glob("*/*")
    run = RunDirectory(path)
    if run.result() is None:
        raise RuntimeError(output)
    return run, round(took, 1), peak


def by_itself(folder: Path, experiment: Experiment) -> RunDirectory:
    """Run the same experiment without Flower."""
    session = Session.begin([experiment], pick_device("cpu"), folder / "direct")
    for _ in session.advance():
        pass
    session.finish()
    return session.runs[0]


def accuracies(flower: RunDirectory, direct: RunDirectory) -> dict[str, Any]:
    """Return the last round's accuracies, and the largest difference in any round."""
    pairs = list(zip(flower.rounds(), direct.rounds(), strict=True))
    apart = [abs(a.accuracy_mean - b.accuracy_mean) for a, b in pairs]
    flower_last, direct_last = pairs[-1]
    return {
        "accuracy": flower_last.accuracy_mean,
        "accuracy_direct": direct_last.accuracy_mean,
        "points_apart": apart[-1],
        "most_points_apart": max(apart),
    }


MEASURES = {"alone": alone, "shards": shards, "thousand": thousand}


def record(name: str, results: Mapping[str, Any], out: Path) -> None:
    """Write the results to NAME.json in the folder `out`."""
    machine = {**here(), "flwr": version("flwr"), "ray": version("ray"), "cores": os.cpu_count()}
    out.mkdir(parents=True, exist_ok=True)
    content = {
        "command": f"python bench/flower_parity.py --only {name}",
        **results,
        "environment": machine,
    }
    (out / f"{name}.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Run the comparisons, and fail if one does not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(MEASURES), help="one comparison (default: all)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, metavar="FOLDER", help="where to write the records"
    )
    arguments = parser.parse_args()
    names = list(MEASURES)
    if arguments.only:
        names = [arguments.only]
    failed = []
    for name in names:
        with TemporaryDirectory(prefix="fedrfq-") as folder:
            results = MEASURES[name](Path(folder))
        record(name, results, arguments.out)
        sys.stdout.write(f"{name}: {json.dumps(results)}\n")
        if not results["holds"]:
            failed.append(name)
    if failed:
        sys.exit(f"does not hold: {', '.join(failed)}")


if __name__ == "__main__":
    main()
