"""Run the page with four hospitals, and measure how long it takes to the first certified round.

    python bench/worked_page.py --where namespaces --out results/worked-page.json

`users` runs each party as a user of its own, on one machine. `namespaces` has each hospital in a
network of its own; between them are the project's TCP proxies, which delay, lose and cut.
`trial` founds the federation in one go, with keys made for all. The first two need root.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from fedrfq.data import load
from fedrfq.node.ops.local_cluster import free_ports

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support.networks import WEATHER, networks
from support.worked_page import HOSPITALS, WorkedPage, make_scans, play

CLASSES = ("fracture", "healthy", "pneumonia")
STAGES = ("first round", "changed", "joined", "upgraded", "restored")


def timed(page: WorkedPage, last: str) -> dict[str, Any]:
    """Run the page up to the `last` stage; return what each stage took from the first command on.

    `load` is how many processes wanted the cores in the last minute.
    """
    found = {}
    try:
        for stage in play(page):
            seconds = round(time.monotonic() - page.began, 1)
            load = round(os.getloadavg()[0], 1)
            found[stage] = {"commands": len(page.ran), "seconds": seconds, "load": load}
            if stage == last:
                break
    finally:
        page.stop()
    return {**found, "rounds": page.certified("ward-a")}


def users(folder: Path, last: str) -> dict[str, Any]:
    """Run the page with each party as a user of its own."""
    from project.test_worked_page import addresses, as_user, chown, python_for_all

    python = python_for_all()
    if python is None:
        raise SystemExit("this needs root, and a Python that other users can run")
    return timed(WorkedPage(folder, addresses(), as_user, lambda: chown(folder), python), last)


def in_namespaces(folder: Path, last: str) -> dict[str, Any]:
    """Run the page with each hospital in a network of its own, in bad weather."""
    with networks("abcde", HOSPITALS, Random(0)) as between:

        def inside(party: str) -> list[str]:
            return between.inside(party[-1]) if party else []

        found = timed(WorkedPage(folder, between.replaced(HOSPITALS), inside), last)
        connections = sum(proxy.connections for proxy in between.proxies)
    return {**found, "connections": connections, "weather": vars(WEATHER)}


def trial(folder: Path, last: str) -> dict[str, Any]:
    """Found a federation with keys made for all, and wait for its first certified round."""
    page = WorkedPage(folder, {})
    contract = f"--classes {','.join(CLASSES)} --shape 1x28x28"
    more = f"--set rounds=2000 --minimum 3 --port {free_ports(1)[0]}"
    page.run(f"fedrfq committee init . --servers 4 --clients 4 {contract} {more}")
    wards = [f"client-{number}" for number in range(4)]
    try:
        for number, hospital in enumerate(HOSPITALS):
            page.run(f"fedrfq server server-{number}")
            page.run(f"fedrfq client client-{number} --data scans-{hospital}")
        page.until(lambda: all(page.certified(ward) for ward in wards), "the first round")
        seconds = round(time.monotonic() - page.began, 1)
        load = round(os.getloadavg()[0], 1)
        return {"first round": {"commands": len(page.ran), "seconds": seconds, "load": load}}
    finally:
        page.stop()


PLACES = {"users": users, "namespaces": in_namespaces, "trial": trial}


def main() -> None:
    """Run the page at one of the places."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--where", choices=PLACES, default="users")
    parser.add_argument("--last", choices=STAGES, default="joined", help="stage")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fedrfq-page-"))
    try:
        folder.chmod(0o1777)
        dataset = load("mnist5k")
        for number, hospital in enumerate("abcde"):
            make_scans(folder / f"scans-{hospital}", dataset, number, CLASSES)
        found = {
            options.where: {"cores": os.cpu_count(), **PLACES[options.where](folder, options.last)}
        }
    finally:
        shutil.rmtree(folder)
    print(json.dumps(found, indent=1))
    if options.out is not None:
        earlier = {}
        if options.out.exists():
            earlier = json.loads(options.out.read_text())
        options.out.write_text(json.dumps({**earlier, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
