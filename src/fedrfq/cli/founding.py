"""fedrfq committee init, add: found a federation, with keys made here or from the parties' own requests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.keys import DAYS, Days
from fedrfq.cli.terminal import say
from fedrfq.consensus.roster import MOST_CLIENTS, MOST_SERVERS
from fedrfq.errors import UserError
from fedrfq.federation.members import ROLES

_SERVERS = 4  # where nobody asked to be one
_MS = 1000
_MOST_COURIERS = 100

Folder = Annotated[
    Path, typer.Argument(metavar="DIR", help="The federation's folder; made if it is not there.")
]
Servers = Annotated[
    int | None,
    typer.Option(
        min=0, max=MOST_SERVERS, help="Servers to make keys for; 4 unless some were added."
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MOST_CLIENTS,
        help="Clients to make keys for; the experiment's unless some were added.",
    ),
]
Couriers = Annotated[
    int,
    typer.Option(
        min=0, max=_MOST_COURIERS, help="Couriers to make keys for; they carry clients' uploads."
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="Where servers run: once for all, or once for each."),
]
Port = Annotated[
    int,
    typer.Option(
        min=1, max=65535, help="Of the first server; others on its host count up from it."
    ),
]
Experiment = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="What is computed; as in the quickstart unless given."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the experiment."),
]
Minimum = Annotated[
    int | None, typer.Option(min=1, help="Clients that a round needs; more than half unless given.")
]
Deadline = Annotated[
    float, typer.Option(min=0.001, help="Seconds that a round waits for absent clients.")
]
Timeout = Annotated[
    float, typer.Option(min=0.001, help="Seconds before a silent leader is replaced.")
]


def init(
    folder: Folder,
    servers: Servers = None,
    clients: Clients = None,
    couriers: Couriers = 0,
    host: Hosts = None,
    port: Port = 7400,
    experiment: Experiment = None,
    sets: Sets = None,
    minimum: Minimum = None,
    deadline: Deadline = 60,
    timeout: Timeout = 2,
    days: Days = DAYS,
) -> None:
    """Found a federation: the federation.toml that all share, and a folder with keys for each party that made none itself.

    Of requests added before (`fedrfq committee add`) it needs no keys; then none are made here unless --servers or
    --clients say so. The same requests and options give everyone the same file.

    Example: fedrfq committee init consortium --servers 4 --clients 20 --host 127.0.0.1
    """
    from fedrfq.node.membership import founding

    if servers is None and not founding.requests(folder):
        makes = _SERVERS
    else:
        makes = servers or 0
    waits = {
        "minimum": minimum,
        "deadline_ms": round(deadline * _MS),
        "view_ms": round(timeout * _MS),
    }
    places = addresses(host or ["127.0.0.1"], makes, port)
    federation = founding.init(
        folder, places, clients, waits, experiment, sets or [], days, couriers
    )
    roster = federation.roster
    console = Console()
    say(console, f"wrote {folder / 'federation.toml'}: {federation.about()}")
    if roster.n == 1:
        say(
            console,
            "note: one server is a committee that everybody has to trust; 4 bear one that lies",
        )
    say(
        console,
        "each party needs its own folder with this file in it, and nobody else's; check it with `fedrfq doctor`",
    )


def add(
    folder: Folder,
    requests: Annotated[
        list[Path], typer.Argument(metavar="REQUEST...", help="As `fedrfq keys new` wrote them.")
    ],
) -> None:
    """Take parties' requests, each signed with the party's own key; `fedrfq committee init` then founds of them.

    Example: fedrfq committee add consortium hospital-3.toml hospital-4.toml
    """
    from fedrfq.node.membership import founding

    there = founding.add(folder, requests)
    servers, clients, couriers = (sum(request.role == role for request in there) for role in ROLES)
    if couriers:
        carrying = f", and {couriers} couriers"
    else:
        carrying = ""
    say(
        Console(),
        f"{folder}: {servers} servers and {clients} clients{carrying} have asked to take part",
    )


def addresses(hosts: list[str], servers: int, port: int) -> list[str]:
    """Of so many servers; those on one host have ports of their own."""
    if len(hosts) not in (1, servers):
        raise UserError(
            f"--host is given once for all servers, or once for each of the {servers}, not {len(hosts)} times"
        )
    each = [
        f"[{host}]" if ":" in host and not host.startswith("[") else host
        for host in (hosts * servers)[:servers]
    ]
    return [f"{host}:{port + each[:k].count(host)}" for k, host in enumerate(each)]
