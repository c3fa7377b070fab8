"""`fedrfq client`: run one client of a federation through all its rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.completion import complete, dataset_names
from fedrfq.cli.data_preview import show_data
from fedrfq.cli.joining import Join, agree, await_founding, joined
from fedrfq.cli.modules import module_giver
from fedrfq.cli.options import Device, LogFormat, LogLevel, Modules, StatusPort
from fedrfq.cli.terminal import progress, say
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.node.storage.client_history import HistoryLine

ClientFolder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The folder of the client, with its keys and federation.toml."
    ),
]


def client(
    folder: ClientFolder,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="The dataset of the experiment, of which the client takes its share; "
            "or the path of a dataset that is all its own.",
            autocompletion=complete(dataset_names),
        ),
    ],
    join: Join = None,
    device: Device = "auto",
    status_port: StatusPort = 0,
    once: Annotated[bool, typer.Option("--once", help="Stop after one round.")] = False,
    renew: Annotated[
        bool,
        typer.Option(
            "--renew",
            help="Replace the statistics that the client sent by those of its present samples, "
            "in the next round: samples that are no longer there are forgotten.",
        ),
    ] = False,
    module: Modules = None,
    classes: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME",
            help="Where noise protects samples: the classes that this client uploads, whether it "
            "has samples of them or not; all of the federation if not given. Declared once.",
        ),
    ] = "",
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Run one client of a federation.

    The client trains, sends its prototypes (or, when they are due, statistics on the federation's
    public map) to every server, and continues from each result that a
    quorum of servers has certified. Its model is kept in DIR/model. SIGTERM and Ctrl-C stop it
    cleanly; started again, it continues where it stopped.

    With --join it founds a federation together with others, from an empty folder. It shows how your
    data fit and what would be uploaded before it asks whether you agree.

    Example: fedrfq client ward-a --data scans --join consortium
    """
    from fedrfq.node import logs
    from fedrfq.node.client import attend
    from fedrfq.node.client_learning import MODEL
    from fedrfq.runs.session import pick_device

    torch_device = pick_device(device)
    if join is not None and not joined(folder, join):
        _join(folder, data, join)
    # The bar must exist before the log, whose lines then appear above it.
    with _progress() as on_round:
        logs.begin(log_format, log_level)
        prepare = module_giver(module or [])
        names = [name.strip() for name in classes.split(",") if name.strip()]
        ended = attend(
            folder, data, torch_device, once, on_round, status_port, prepare, names, renew
        )
        if ended.accuracies is None or not (ended.finished or once):
            logs.log_event("stopped", after_round=ended.round)
            return
        known = vars(ended.accuracies).items()
        figures = {key: round(value, 2) for key, value in known if value is not None}
        logs.log_event("finished", "info", round=ended.round, model=folder / MODEL, **figures)


def forget(
    folder: ClientFolder,
    status_port: StatusPort = 0,
    log_format: LogFormat = "text",
    log_level: LogLevel = "info",
) -> None:
    """Take back all statistics that a client has sent to its federation.

    Stop the client first. In the next round this sends a signed withdrawal in place of an upload,
    and ends once a quorum of servers has certified what remains: the statistics that the federation
    would have had without this client. The client does not start again until
    DIR/forgotten.txt is removed. Only a federation with public.revocable = true can forget.

    Example: fedrfq forget consortium/client-3
    """
    from fedrfq.node import logs
    from fedrfq.node.client import take_back

    logs.begin(log_format, log_level)
    ended = take_back(folder, status_port)
    if ended.forgotten:
        logs.log_event("forgotten", "info", round=ended.round)
        return
    if not ended.finished:
        raise UserError(
            "stopped before the servers have forgotten this client: start the command again"
        )
    raise UserError(
        "the run is over, and nothing can be taken back any more; if the federation goes on without"
        " this client, it is forgotten"
    )


def _join(folder: Path, data: str, shared: Path) -> None:
    from fedrfq.data.library import is_there
    from fedrfq.node.data_preview import preview

    # What the data must be is not known before the federation is founded, which may take days.
    if not is_there(data):
        say(
            Console(),
            f"warning: there is no {data} here, and no dataset of that name: press Ctrl-C and give"
            " the path of your samples, unless a plugin of the federation brings them",
        )
    identity = await_founding(folder, shared)
    found = preview(identity, data)
    say(Console(), f"your data: {found.about}")
    if found.window is not None:
        warning = "warning: " if found.window.suspicious else ""
        say(Console(), f"{warning}{found.window.about}")
    show_data(found, Console(markup=False))
    agree(identity, shared)


@contextmanager
def _progress() -> Iterator[Callable[[HistoryLine, int], None]]:
    """Show a count of rounds below the log; nothing where standard error is not a terminal."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield lambda line, rounds: None
        return
    with progress(errors) as bar:
        task = bar.add_task("training", total=None, figures="")

        def update(line: HistoryLine, rounds: int) -> None:
            figures = f"accuracy {line.accuracy:.2f} %"
            bar.update(task, completed=line.round, total=rounds, figures=figures)

        yield update
