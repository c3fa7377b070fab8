"""Small runs to report on, and parts of their pages."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from fedrfq.report import run_page
from fedrfq.report.figure import Figure
from support.command import SMALL, fedrfq, only_run, sets

COMMITTEE = ["committee.name=simulated", "committee.faulty=1", "committee.behaviour=lie"]
# Two liars among eight: among six, the detector could not tell them from the others.
ATTACK = [
    "clients=8",
    "attack.name=noise",
    "attack.clients=2",
    "attack.strength=20.0",
    "detector.name=adaptive",
]


def ran(out: Path, *settings: str) -> Path:
    """Run three small rounds, and return the run directory."""
    fedrfq("run", *sets([*SMALL, "rounds=3", *settings]), "--out", out)
    return only_run(out).path


def figures(path: Path) -> dict[str, Figure]:
    """Return the figures of a run's page by their names."""
    return {figure.name: figure for figure in run_page.page(path).figures()}


def rendered(path: Path) -> str:
    """Return the page without the JavaScript that draws its charts."""
    return run_page.page(path).render("")


def hostile(whole: Path, copy: Path) -> Path:
    """Copy the run, with markup in every text that is free."""
    evil = "</script><script>window.hacked = 1</script>"
    evil += "<!-- <img src=x onerror=window.hacked=1>\u2028'\"/" + "x" * 70
    shutil.copytree(whole, copy)
    known = json.loads((copy / "environment.json").read_text())
    known["data"]["classes"] = [f"{evil}{j}" for j in range(10)]
    known |= {"device": evil, "revision": evil}
    known["versions"][evil] = evil
    (copy / "environment.json").write_text(json.dumps(known))
    text = (copy / "experiment.toml").read_text()
    (copy / "experiment.toml").write_text(
        text.replace('name = "mnist5k"', f"name = {json.dumps(evil)}", 1)
    )
    return copy
