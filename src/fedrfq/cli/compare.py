"""The commands that run grids: `fedrfq compare` and `fedrfq robustness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.study_options import (
    Deterministic,
    Device,
    DryRun,
    Json,
    Models,
    Most,
    Out,
    drive,
    grid_of,
    show,
)
from fedrfq.studies.sheets import flat, write


def compare(
    file: Annotated[Path, typer.Argument(metavar="GRID.toml", help="Methods, settings and seeds.")],
    out: Out = Path("runs"),
    device: Device = "auto",
    json: Json = False,
    most: Most = None,
    models: Models = True,
    deterministic: Deterministic = False,
    dry_run: DryRun = False,
) -> None:
    """Compare methods: every method in every setting with every seed, with paired differences and their intervals.

    The same command goes on after Ctrl-C, a crash or kill -9. Writes table.json, .csv, .md and pictures to OUT/NAME.

    Example: fedrfq compare examples/compare.toml
    """
    from fedrfq.studies import compare_tables
    from fedrfq.studies.compare import Comparison, ComparisonFindings

    comparison = Comparison.load(file)
    grid = grid_of(comparison.experiments.values(), out, device, most, models, deterministic)
    if drive(grid, dry_run, f"fedrfq compare {file} --out {out}"):
        found = ComparisonFindings.of(comparison, grid.ended)
        folder = out / comparison.name
        sheets = compare_tables.sheets(found)
        rows = [flat(cell) for cell in found.cells]
        write(folder, comparison.name, sheets, found.table(), rows)
        show(folder, sheets, compare_tables.draw(folder, found), found.table() if json else None)


def robustness(
    file: Annotated[
        Path, typer.Argument(metavar="GRID.toml", help="Attacks, detectors, attackers and seeds.")
    ],
    out: Out = Path("runs"),
    device: Device = "auto",
    json: Json = False,
    most: Most = None,
    models: Models = True,
    deterministic: Deterministic = False,
    dry_run: DryRun = False,
) -> None:
    """Try attacks against detectors: every attack against every detector by every number of malicious clients.

    The same command goes on after Ctrl-C, a crash or kill -9. Writes table.json, .csv, .md and heat maps to OUT/NAME.

    Example: fedrfq robustness examples/robustness.toml
    """
    from fedrfq.studies import robustness_tables
    from fedrfq.studies.robustness import RobustnessFindings, RobustnessStudy

    trial = RobustnessStudy.load(file)
    grid = grid_of(
        [*trial.clean.values(), *trial.experiments.values()],
        out,
        device,
        most,
        models,
        deterministic,
    )
    if drive(grid, dry_run, f"fedrfq robustness {file} --out {out}"):
        found = RobustnessFindings.of(trial, grid.ended)
        folder = out / trial.name
        sheets = robustness_tables.sheets(found)
        rows = [flat(cell) for cell in found.cells]
        write(folder, trial.name, sheets, found.table(), rows)
        show(folder, sheets, robustness_tables.draw(folder, found), found.table() if json else None)
