"""The commands for studies of one's own: `fedrfq compare` and `fedrfq robustness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrfq.cli.options import Deterministic, Device, Json
from fedrfq.cli.study import DryRun, MaxClients, Models, Out, StudyCommand

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
            metavar="STUDY.toml", help="The methods, settings and seeds to compare, as TOML."
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
    from fedrfq.studies.study import Study

    words = ["compare", str(file)]
    changes: dict[str, Any] = {}
    if no_controls:
        words.append("--no-controls")
        changes["controls"] = False
    if no_tune:
        words.append("--no-tune")
        changes["tune"] = []
    study = Study.load(file, kind="compare", changes=changes)
    command = StudyCommand(words, out, device, json, max_clients, dry_run, models, deterministic)
    command.carry_out(study, out / study.name)


def robustness(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY.toml",
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
    from fedrfq.studies.study import Study

    study = Study.load(file, kind="robustness")
    words = ["robustness", str(file)]
    command = StudyCommand(words, out, device, json, max_clients, dry_run, models, deterministic)
    command.carry_out(study, out / study.name)
