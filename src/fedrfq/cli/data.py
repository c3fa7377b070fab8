"""`fedrfq data`: list the datasets, download them, and look at one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq import plugins
from fedrfq.cli.completion import complete, dataset_and_weight_names
from fedrfq.cli.options import Recolour, Resize, ShapeOption, WindowOption
from fedrfq.errors import UserError


def _begin() -> None:
    """Make the datasets of installed plugins known to all commands."""
    plugins.load_installed()


app = typer.Typer(
    callback=_begin, help="List, download and inspect datasets and weights.", no_args_is_help=True
)


@app.command("list")
def list_() -> None:
    """List the known datasets and weights, and say which of them are in the cache.

    Example: fedrfq data list
    """
    from fedrfq.data import DATASETS
    from fedrfq.data import cached_dataset as cached
    from fedrfq.data import weights as pretrained

    table = Table("name", "classes", "images", "cached", "description")
    for name, source in DATASETS.items():
        images = cached.count(name) or source.images
        table.add_row(
            name,
            str(len(source.classes)),
            f"{images:,}",
            _yes_or_no(cached.path(name)),
            source.description,
        )
    for name, weights in pretrained.WEIGHTS.items():
        table.add_row(name, "weights", "", _yes_or_no(pretrained.path(name)), weights.description)
    Console(markup=False).print(table)


def _yes_or_no(path: Path) -> str:
    if path.is_file():
        return "yes"
    return "no"


@app.command("get")
def get_(
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a dataset, or resnet18 for its weights.",
            autocompletion=complete(dataset_and_weight_names),
        ),
    ],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="Convert this file or folder instead of downloading."
        ),
    ] = None,
) -> None:
    """Download a dataset or weights into the cache, and check them against known hashes.

    Prints the path of the file in the cache.

    Example: fedrfq data get mnist
    """
    from fedrfq.data import get
    from fedrfq.data import weights as pretrained

    if name in pretrained.WEIGHTS and source is not None:
        raise UserError(
            f"{name} is weights, which --from cannot convert: leave out --from {source}"
        )
    if name in pretrained.WEIGHTS:
        path = pretrained.get_weights(name)
    else:
        path = get(name, source)
    typer.echo(path)


@app.command("info")
def info_(
    name: Annotated[
        str,
        typer.Argument(
            help="The name of a dataset or of weights, or the path of a dataset of your own.",
            autocompletion=complete(dataset_and_weight_names),
        ),
    ],
    shape: ShapeOption = "",
    window: WindowOption = "",
    resize: Resize = False,
    recolour: Recolour = False,
) -> None:
    """Show how many images each class of a dataset has, their shape, the hash and the origin.

    Images of your own that are not alike, or of more than 8 bits, need an option that says how they
    are converted; without it the error proposes one. `fedrfq committee init` takes the same
    options, and `fedrfq run` takes them as settings, such as --set data.window=0:4095.

    Example: fedrfq data info mnist5k
    """
    from fedrfq.data import ImageForm, info
    from fedrfq.data import weights as pretrained

    if name in pretrained.WEIGHTS:
        facts = pretrained.info(name)
    else:
        form = ImageForm.of(shape, window, resize, recolour)
        facts = info(name, replace(form, chosen="options"))
    if "train" in facts:
        Console(markup=False).print(_count_table(facts))
    for key in ("name", "cached", "path", "bytes", "shape", "writers", "sha256", "source"):
        if facts.get(key) is not None:
            typer.echo(f"{key}: {facts[key]}")


def _count_table(facts: dict[str, Any]) -> Table:
    table = Table("class", "train", "test")
    for name in facts["classes"]:
        table.add_row(name, str(facts["train"][name]), str(facts["test"][name]))
    table.add_row("all", str(sum(facts["train"].values())), str(sum(facts["test"].values())))
    return table
