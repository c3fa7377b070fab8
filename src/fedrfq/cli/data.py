"""fedrfq data: list the datasets, get them, look at one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedrfq.data import DATASETS, get, info
from fedrfq.data import cached_dataset as cached
from fedrfq.data import weights as pretrained
from fedrfq.errors import UserError

app = typer.Typer(help="Datasets and weights: list, get, info.", no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List the datasets and weights, and which are in the cache.

    Example: fedrfq data list
    """
    table = Table("name", "classes", "images", "cached", "description")
    for name, source in DATASETS.items():
        images = cached.count(name) or source.images
        table.add_row(
            name,
            str(len(source.classes)),
            f"{images:,}",
            _yes(cached.path(name)),
            source.description,
        )
    for name, weights in pretrained.WEIGHTS.items():
        table.add_row(name, "weights", "", _yes(pretrained.path(name)), weights.description)
    Console(markup=False).print(table)


def _yes(path: Path) -> str:
    if path.is_file():
        return "yes"
    return "no"


@app.command("get")
def get_(
    name: Annotated[str, typer.Argument(help="A dataset's name, or resnet18 for the weights.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Convert this file or folder instead of fetching.")
    ] = None,
) -> None:
    """Fetch a dataset or weights into the cache, checked against known hashes.

    Example: fedrfq data get mnist
    """
    if name in pretrained.WEIGHTS and source is not None:
        raise UserError(
            f"data get {name}: expected no --from for weights, found {source}; leave it out"
        )
    if name in pretrained.WEIGHTS:
        path = pretrained.get_weights(name)
    else:
        path = get(name, source)
    typer.echo(path)


@app.command("info")
def info_(
    name: Annotated[
        str, typer.Argument(help="A dataset's or weights' name, or the path of your own.")
    ],
) -> None:
    """Show a dataset's counts per class, shape, hash and origin.

    Example: fedrfq data info mnist5k
    """
    if name in pretrained.WEIGHTS:
        facts = pretrained.info(name)
    else:
        facts = info(name)
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
