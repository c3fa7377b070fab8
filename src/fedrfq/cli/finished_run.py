"""The commands for a finished run: `fedrfq show`, `predict` and `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.completion import complete
from fedrfq.cli.options import Json, RunPath
from fedrfq.cli.terminal import say
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

ClientNumber = Annotated[int, typer.Argument(help="The client whose model to use, from 0.")]


def show(path: RunPath) -> None:
    """Print the results of a run and draw its accuracy curve.

    The curve is written to accuracy.png in the run directory. The run need not have ended.

    Example: fedrfq show runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.cli.run_table import run_table
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.summary import plot

    run = RunDirectory.open(path)
    console = Console()
    console.print(run_table(run))
    say(console, f"wrote {plot(run)}")


def predict(
    path: RunPath,
    client: ClientNumber,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Images of the size that the model was trained on."),
    ],
    json: Json = False,
) -> None:
    """Classify images with the model that one client has trained.

    Each image is classified twice: by the client's own head and by the nearest global prototype.

    Example: fedrfq predict runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 digit.png
    """
    from fedrfq.runs.inference import ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    predictions = ClientModel.load(RunDirectory.open(path), client).predict(files)
    table = Table("file", "class", "probability", "nearest prototype")
    # A method without prototypes has no nearest one.
    for row in predictions:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    Console(markup=False).print(table)
    if json:
        sys.stdout.write(to_json({"client": client, "predictions": predictions}) + "\n")


def export(
    path: RunPath,
    client: ClientNumber,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            help="The file format: safetensors, torchscript or onnx.",
            autocompletion=complete(lambda: ("safetensors", "torchscript", "onnx")),
        ),
    ] = "safetensors",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write. Default: client-N in the run directory."
        ),
    ] = None,
) -> None:
    """Write the model that one client has trained to a file that other programs can load.

    Example: fedrfq export runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 --format onnx
    """
    from fedrfq.runs.inference import FORMATS, ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    if format_ not in FORMATS:
        raise UserError(f"--format {format_} is not known: choose one of {', '.join(FORMATS)}")
    target = out or path / f"client-{client}{FORMATS[format_]}"
    written = ClientModel.load(RunDirectory.open(path), client).export(target, format_)
    say(Console(), f"wrote {written}")
