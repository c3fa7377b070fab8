"""The commands that train grids of runs: `fedrfq compare` and `fedrfq robustness`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.options import Deterministic, Device, Json
from fedrfq.cli.study_options import DryRun, MaxClients, Models, Out, open_grid, show, train
from fedrfq.cli.terminal import command_line, say
from fedrfq.errors import UserError
from fedrfq.studies.sheets import flat, write

if TYPE_CHECKING:
    from fedrfq.experiment import Experiment
    from fedrfq.studies.grid import Grid


NoControls = Annotated[
    bool,
    typer.Option(
        "--no-controls", help="Leave out the methods without exchange: local, codes, self."
    ),
]
NoTune = Annotated[
    bool,
    typer.Option("--no-tune", help="Leave every method its own λ; by default the best is chosen."),
]


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
    no_controls: NoControls = False,
    no_tune: NoTune = False,
    dry_run: DryRun = False,
) -> None:
    """Compare methods: train every method in every setting with every seed.

    Methods that exchange nothing stand beside those of the file as controls, and each method's λ
    is first chosen on samples held back from training. Prints the paired differences between
    methods with their confidence intervals, and writes table.json, table.csv, table.md and figures
    to OUT/NAME. After Ctrl-C, a crash or kill -9 the same command continues.

    Example: fedrfq compare examples/compare.toml
    """
    from fedrfq.studies import compare_tables
    from fedrfq.studies.compare import Comparison, ComparisonFindings

    comparison = Comparison.load(file, controls=not no_controls, tune=not no_tune)
    again = command_line("compare", file, "--out", out, *_switches(no_controls, no_tune))

    def opened(experiments: Iterable[Experiment], models: bool) -> Grid:
        return open_grid(
            experiments,
            out,
            device=device,
            max_clients=max_clients,
            models=models,
            deterministic=deterministic,
        )

    if comparison.tuning.experiments:
        tuning = opened(comparison.tuning.experiments, models=False)
        try:
            trained = train(tuning, dry_run, again, what="tuning λ: ")
        except UserError as error:
            raise UserError(f"tuning λ: {error} (or compare without tuning: --no-tune)") from error
        # Which runs follow depends on the λ chosen: a dry run knows them once these have ended.
        if not trained and tuning.stacks:
            say(Console(stderr=True), f"then {len(comparison.experiments)} runs with the best λ")
            return
        comparison = comparison.tuned(tuning.ended)
    grid = opened(comparison.experiments.values(), models)
    if not train(grid, dry_run, again):
        return
    findings = ComparisonFindings.of(comparison, grid.ended)
    result = findings.table()
    folder = out / comparison.name
    sheets = compare_tables.sheets(findings)
    write(folder, comparison.name, sheets, result, [flat(cell) for cell in findings.cells])
    pictures = compare_tables.draw(folder, findings)
    show(folder, sheets, pictures, result if json else None)


def _switches(no_controls: bool, no_tune: bool) -> list[str]:
    """Return the options that decide what is compared, as they are given on a command line."""
    switches = {"--no-controls": no_controls, "--no-tune": no_tune}
    return [switch for switch, given in switches.items() if given]


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
    write(folder, study.name, sheets, result, [cell.columns() for cell in findings.cells])
    pictures = robustness_tables.draw(folder, findings)
    show(folder, sheets, pictures, result if json else None)
