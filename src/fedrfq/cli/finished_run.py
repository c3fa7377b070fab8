"""The commands on a finished run: `fedrfq show`, `predict`, `export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.cli.terminal import say
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

Json = Annotated[
    bool,
    typer.Option("--json", help="End with one JSON object on the last line of standard output."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="DIR", help="A run's directory, as printed at its end.")
]


def show(path: RunPath) -> None:
    """Print a run's table and draw its accuracy curve as accuracy.png in its directory.

    Example: fedrfq show runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c
    """
    from fedrfq.runs.run_directory import RunDirectory
    from fedrfq.runs.summary import plot, table

    found = RunDirectory.open(path)
    console = Console()
    console.print(table(found))
    say(console, f"curve: {plot(found)}")


def predict(
    path: RunPath,
    client: Annotated[int, typer.Argument(help="Which client's model, from 0.")],
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="Pictures of the data's size.")
    ],
    json: Json = False,
) -> None:
    """Classify pictures with a trained client's model, by its own head and by the nearest global prototype.

    Example: fedrfq predict runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 digit.png
    """
    from fedrfq.runs.inference import ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    found = ClientModel.load(RunDirectory.open(path), client).predict(files)
    table = Table("file", "class", "probability", "nearest prototype")
    for row in found:
        table.add_row(*("–" if value is None else str(value) for value in row.values()))
    Console(markup=False).print(table)
    if json:
        sys.stdout.write(to_json({"client": client, "predictions": found}) + "\n")


def export(
    path: RunPath,
    client: Annotated[int, typer.Argument(help="Which client's model, from 0.")],
    to: Annotated[
        str, typer.Option("--format", help="safetensors, torchscript or onnx.")
    ] = "safetensors",
    out: Annotated[
        Path | None, typer.Option(help="The file; by default client-N in the run's directory.")
    ] = None,
) -> None:
    """Write a client's trained model to a file that other programs load.

    Example: fedrfq export runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 --format onnx
    """
    from fedrfq.runs.inference import FORMATS, ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    if to not in FORMATS:
        raise UserError(f"--format is one of {', '.join(FORMATS)}, not '{to}'")
    target = out or path / f"client-{client}{FORMATS[to]}"
    say(Console(), f"wrote {ClientModel.load(RunDirectory.open(path), client).export(target, to)}")
