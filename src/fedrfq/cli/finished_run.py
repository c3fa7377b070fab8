"""The commands for a finished run: `fedrfq show`, `predict` and `export`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Column, Table

from fedrfq.cli.completion import complete
from fedrfq.cli.modules import give_modules
from fedrfq.cli.options import Json, Modules, RunPath, run_path
from fedrfq.cli.terminal import say, wide_console
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

if TYPE_CHECKING:
    from fedrfq.runs.inference import ClientModel

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
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="The run directory, as printed when the run ended, or latest; "
            "or a network client's folder.",
            callback=run_path,
        ),
    ],
    client: ClientNumber,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE…", help="Images of the size that the model was trained on."),
    ],
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help='With a public map: the probability below which the answer is "I do not know". '
            "Default: public.threshold of the experiment.",
        ),
    ] = None,
    json: Json = False,
    module: Modules = None,
) -> None:
    """Classify images with the model that one client has trained.

    Without a public map, each image is classified by the client's own head and by the nearest
    global prototype.
    With a public map, the client also knows classes that only others hold: its answer then says who
    spoke, its own model or the public map.
    A note says so where the client never saw the class.

    Example: fedrfq predict runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 digit.png
    """
    model = _client_model(path, client, module or [])
    predictions = model.predict(files, threshold)
    # A name that is cut off says nothing: it goes on in the next line.
    file = Column("file", overflow="fold")
    table = Table(file, "class", "probability", "nearest prototype", "note")
    if model.public is not None:
        table = Table(file, "class", "probability", "who spoke", "note")
    for row in predictions:
        table.add_row(*_cells(row))
    wide_console(markup=False).print(table)
    if json:
        sys.stdout.write(to_json({"client": client, "predictions": predictions}) + "\n")


def _client_model(path: Path, client: int, modules: Sequence[str]) -> ClientModel:
    """Return a client's model, from a run directory or from a network client's folder."""
    from fedrfq.data.image_form import AS_FOUND
    from fedrfq.node.client_learning import MODEL, place
    from fedrfq.node.membership.identity import load
    from fedrfq.runs.inference import ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    if (path / MODEL).is_dir():
        identity = load(path)
        if client != ~identity.party:
            raise UserError(f"{path} is the folder of client {~identity.party}: give that number")
        experiment, number = place(identity)
        contract = identity.federation.contract
        form = AS_FOUND if contract is None else contract.form
        model = ClientModel.of_party(path / MODEL, experiment, number, form)
    else:
        run = RunDirectory.open(path)
        give_modules(run, modules)
        experiment = run.experiment()
        model = ClientModel.load(run, client)
    if experiment.public.used and model.public is None:
        say(
            Console(stderr=True),
            "note: this client has learned nothing on the public map yet, so its own model speaks"
            " alone; a run writes what its clients learned when it ends",
        )
    return model


def _cells(row: Mapping[str, object]) -> list[str]:
    """Return a prediction as cells of the table."""
    file = str(row["file"])
    class_ = row["class"]
    probability = str(row["probability"])
    notes: list[str] = []
    if "spoke" not in row:
        # A method without prototypes has no nearest one.
        nearest = str(row["nearest_prototype"] or "–")
        return [file, str(class_), probability, nearest, _never_seen(row)]
    if class_ is None:
        class_ = "I do not know"
        notes.append(f"perhaps {row['most_likely']}")
    if not row["seen"]:
        notes.append(f"never saw class {row['most_likely']}")
    return [file, str(class_), probability, str(row["spoke"]), "; ".join(notes)]


def _never_seen(row: Mapping[str, object]) -> str:
    """Say which of the two predictions without a public map is a class the client never saw."""
    named = {"class": "seen", "nearest_prototype": "nearest_prototype_seen"}
    unseen = [str(row[class_]) for class_, seen in named.items() if row[seen] is False]
    return "; ".join(f"never saw class {name}" for name in dict.fromkeys(unseen))


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
    module: Modules = None,
) -> None:
    """Write the model that one client has trained to a file that other programs can load.

    Example: fedrfq export runs/mnist5k-fedrfq/20260101-120000-seed0-1a2b3c 3 --format onnx
    """
    from fedrfq.runs.inference import FORMATS, ClientModel
    from fedrfq.runs.run_directory import RunDirectory

    if format_ not in FORMATS:
        raise UserError(f"--format {format_} is not known: choose one of {', '.join(FORMATS)}")
    target = out or path / f"client-{client}{FORMATS[format_]}"
    run = RunDirectory.open(path)
    give_modules(run, module or [])
    written = ClientModel.load(run, client).export(target, format_)
    say(Console(), f"wrote {written}")
