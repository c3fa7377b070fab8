"""The commands for studies of one's own: `fedrfq compare` and `fedrfq robustness`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fedrfq.cli.study_options import Models, StudyOptions, with_study_options


@with_study_options
def compare(
    options: StudyOptions,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY.toml", help="The methods, settings and seeds to compare, as TOML."
        ),
    ],
    models: Models = True,
    no_controls: Annotated[
        bool,
        typer.Option(
            "--no-controls", help="Leave out the methods without exchange: local, codes, self."
        ),
    ] = False,
    no_tune: Annotated[
        bool,
        typer.Option(
            "--no-tune", help="Leave every method its own λ; by default the best is chosen."
        ),
    ] = False,
) -> None:
    """Compare methods: train every method in every setting with every seed.

    Methods that exchange nothing stand beside those of the file as controls, and each method's λ
    is first chosen on samples held back from training. Prints the paired differences between
    methods with their confidence intervals, and writes table.json, table.csv, table.md and figures
    to OUT/NAME. After Ctrl-C, a crash or kill -9 the same command continues.

    Example: fedrfq compare examples/compare.toml
    """
    from fedrfq.cli import study

    words = ["compare", str(file)]
    changes: dict[str, Any] = {}
    if no_controls:
        words.append("--no-controls")
        changes["controls"] = False
    if no_tune:
        words.append("--no-tune")
        changes["tune"] = []
    wanted = study.load(options, file, kind="compare", changes=changes)
    study.run(options, wanted, options.out / wanted.name, words, models=models)


@with_study_options
def robustness(
    options: StudyOptions,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="STUDY.toml",
            help="The attacks, detectors, numbers of attackers and seeds to try, as TOML.",
        ),
    ],
    models: Models = True,
) -> None:
    """Test detectors against attacks: train every combination with every number of attackers.

    Writes table.json, table.csv, table.md and heat maps to OUT/NAME. After Ctrl-C, a crash or
    kill -9 the same command continues.

    Example: fedrfq robustness examples/robustness.toml
    """
    from fedrfq.cli import study

    wanted = study.load(options, file, kind="robustness")
    words = ["robustness", str(file)]
    study.run(options, wanted, options.out / wanted.name, words, models=models)
