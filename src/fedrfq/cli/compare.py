"""The commands that train grids of runs: `fedrfq compare` and `fedrfq robustness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.options import Deterministic, Device, Json
from fedrfq.cli.study_options import DryRun, MaxClients, Models, Out, open_grid, show, train
from fedrfq.cli.terminal import command_line
from fedrfq.studies.sheets import flat, write


def compare(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="GRID.toml", help="The methods, settings and seeds to compare, as TOML."
        ),
    ],
    out: Out = Path("runs"),
    device: Device = "auto",
    json: Json = False,
    max_clients: MaxClients = None,
    models: Models = True,
    deterministic: Deterministic = False,
    dry_run: DryRun = False,
) -> None:
    """Compare methods: train every method in every setting with every seed.

    Prints the paired differences between methods with their confidence intervals, and writes
    table.json, table.csv, table.md and figures to OUT/NAME. After Ctrl-C, a crash or kill -9 the
    same command continues.

    Example: fedrfq compare examples/compare.toml
    """
    from fedrfq.studies import compare_tables
    from fedrfq.studies.compare import Comparison, ComparisonFindings

    comparison = Comparison.load(file)
    grid = open_grid(
        comparison.experiments.values(),
        out,
        device=device,
        max_clients=max_clients,
        models=models,
        deterministic=deterministic,
    )
    if not train(grid, dry_run, command_line("compare", file, "--out", out)):
        return
    findings = ComparisonFindings.of(comparison, grid.ended)
    result = findings.table()
    folder = out / comparison.name
    sheets = compare_tables.sheets(findings)
    write(folder, comparison.name, sheets, result, [flat(cell) for cell in findings.cells])
    pictures = compare_tables.draw(folder, findings)
    show(folder, sheets, pictures, result if json else None)


def robustness(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="GRID.toml",
            help="The attacks, detectors, numbers of attackers and seeds to try, as TOML.",
        ),
    ],
    out: Out = Path("runs"),
    device: Device = "auto",
    json: Json = False,
    max_clients: MaxClients = None,
    models: Models = True,
    deterministic: Deterministic = False,
    dry_run: DryRun = False,
) -> None:
    """Test detectors against attacks: train every combination with every number of attackers.

    Writes table.json, table.csv, table.md and heat maps to OUT/NAME. After Ctrl-C, a crash or
    kill -9 the same command continues.

    Example: fedrfq robustness examples/robustness.toml
    """
    from fedrfq.studies import robustness_tables
    from fedrfq.studies.robustness import RobustnessFindings, RobustnessStudy

    study = RobustnessStudy.load(file)
    grid = open_grid(
        # The runs without an attack come first: all others are compared with them.
        [*study.clean.values(), *study.experiments.values()],
        out,
        device=device,
        max_clients=max_clients,
        models=models,
        deterministic=deterministic,
    )
    if not train(grid, dry_run, command_line("robustness", file, "--out", out)):
        return
    findings = RobustnessFindings.of(study, grid.ended)
    result = findings.table()
    folder = out / study.name
    sheets = robustness_tables.sheets(findings)
    write(folder, study.name, sheets, result, [flat(cell) for cell in findings.cells])
    pictures = robustness_tables.draw(folder, findings)
    show(folder, sheets, pictures, result if json else None)
