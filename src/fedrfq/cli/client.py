"""`fedrfq client`: one client of a federation, to the end of its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import progress
from fedrfq.node.storage.client_history import HistoryLine


def client(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The client's folder, with its keys and federation.toml."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="The experiment's data, of which it takes its share; or a path: all is its own.",
        ),
    ],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    once: Annotated[bool, typer.Option("--once", help="Stop after one round.")] = False,
    log_format: Annotated[
        str, typer.Option(help="text or json; the log goes to standard error.")
    ] = "text",
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run a client: train, send what was learnt to every server, and go on from each result that a quorum certifies.

    Its model stays in DIR/model. SIGTERM and Ctrl-C stop it cleanly; started again, it goes on where it was.

    Example: fedrfq client consortium/client-3 --data mnist5k
    """
    from fedrfq.node import logs
    from fedrfq.node.client import MODEL, attend
    from fedrfq.runs.session import pick_device

    where = pick_device(device)
    with _shown() as on_round:
        logs.begin(log_format, log_level)
        ended = attend(folder, data, where, once, on_round)
        if ended.accuracies is None or not (ended.finished or once):
            logs.say("stopped", after_round=ended.round)
            return
        figures = {key: round(value, 2) for key, value in vars(ended.accuracies).items()}
        logs.say("finished", "info", round=ended.round, model=folder / MODEL, **figures)


@contextmanager
def _shown() -> Iterator[Callable[[HistoryLine], None]]:
    """A count of rounds below the log, where somebody looks at it."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda line: None
        return
    with progress(errors) as bar:
        task = bar.add_task("training", total=None, figures="")
        yield lambda line: bar.update(
            task, completed=line.round, figures=f"accuracy {line.accuracy:.2f} %"
        )
