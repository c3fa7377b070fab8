"""Options that several commands have in common, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.completion import complete

Device = Annotated[
    str,
    typer.Option(
        help="Where to compute: auto, cpu, cuda, cuda:N or mps (untested).",
        autocompletion=complete(lambda: ("auto", "cpu", "cuda")),
    ),
]
Json = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as one JSON object on the last line of standard output."
    ),
]
Deterministic = Annotated[
    bool, typer.Option(help="Give the same bytes on every run on CUDA, at some cost in speed.")
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="FILE.py:NAME",
        help="A PyTorch module of your own as the clients' model, such as nets.py:Net, or "
        "mypackage.nets:Net. It is imported: name only code that you trust. Repeat it for several "
        "cohorts.",
    ),
]


def run_path(path: Path) -> Path:
    """Return a run's directory as the user named it; `latest` is the newest run in runs/."""
    from fedrfq.runs.find_runs import named

    return named(path)


def run_paths(paths: list[Path]) -> list[Path]:
    """Return several runs' directories as the user named them."""
    return [run_path(path) for path in paths]


RunPath = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="The run directory, as printed when the run ended, or latest.",
        callback=run_path,
    ),
]
ExperimentOption = Annotated[
    Path | None,
    typer.Option(
        "--experiment",
        metavar="FILE.toml",
        help="The experiment to run. Default: FedRFQ on mnist5k.",
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key of the experiment, such as method.lam=0.5. Repeatable.",
    ),
]
ShapeOption = Annotated[
    str,
    typer.Option(
        "--shape",
        metavar="CxHxW",
        help="Channels, height and width of all images, such as 1x28x28.",
    ),
]
WindowOption = Annotated[
    str,
    typer.Option(
        "--window",
        metavar="BLACK:WHITE",
        help="Values that become black and white, for images of more than 8 bits.",
    ),
]
Resize = Annotated[bool, typer.Option("--resize", help="Resize images of another size.")]
Recolour = Annotated[
    bool, typer.Option("--recolour", help="Turn grey images into colour, or colour into grey.")
]
LogFormat = Annotated[
    str,
    typer.Option(
        help="Format of the log on standard error: text or json.",
        autocompletion=complete(lambda: ("text", "json")),
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        help="Least severe level to log: debug, info, warning or error.",
        autocompletion=complete(lambda: ("debug", "info", "warning", "error")),
    ),
]
StatusPort = Annotated[
    int,
    typer.Option(
        min=0,
        max=65535,
        help="Loopback port for /status, /metrics and /healthz; 0 picks a free one.",
    ),
]
