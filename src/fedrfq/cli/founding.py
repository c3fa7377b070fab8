"""`fedrfq committee init` and `add`: found a federation, from requests or with keys made here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.completion import complete, detector_names
from fedrfq.cli.keys import Days
from fedrfq.cli.options import ExperimentOption, Recolour, Resize, Sets, ShapeOption, WindowOption
from fedrfq.cli.terminal import count, say
from fedrfq.consensus.roster import MAX_CLIENTS, MAX_SERVERS
from fedrfq.errors import UserError
from fedrfq.federation.members import ROLES
from fedrfq.node.membership.certificates import DEFAULT_DAYS

if TYPE_CHECKING:
    from fedrfq.federation.federation_file import Federation

# The smallest committee that tolerates a faulty server.
_DEFAULT_SERVERS = 4
_MS_PER_S = 1000
_MAX_COURIERS = 100

Folder = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The folder of the federation; created if it does not exist."
    ),
]
Servers = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_SERVERS,
        help="How many servers to make keys for. Default: 4, or none if requests were added.",
    ),
]
Clients = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=MAX_CLIENTS,
        help="How many clients to make keys for. "
        "Default: as many as the experiment has, or none if requests were added.",
    ),
]
Couriers = Annotated[
    int,
    typer.Option(
        min=0,
        max=_MAX_COURIERS,
        help="How many couriers to make keys for; a courier carries clients' uploads to servers.",
    ),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        help="The host that the servers run on: once for all of them, or once for each. "
        "Default: 127.0.0.1.",
    ),
]
Port = Annotated[
    int,
    typer.Option(
        min=1, max=65535, help="The port of the first server; others on its host count up from it."
    ),
]
Minimum = Annotated[
    int | None,
    typer.Option(min=1, help="How many clients a round needs. Default: more than half of them."),
]
Deadline = Annotated[
    float, typer.Option(min=0.001, help="Seconds that a round waits for missing clients.")
]
Pause = Annotated[
    int,
    typer.Option(
        min=0,
        metavar="SECONDS",
        help="How long clients pause after each result, such as 86400 for a round a day. The "
        "deadline counts from the end of the pause.",
    ),
]
Timeout = Annotated[
    float, typer.Option(min=0.001, help="Seconds before a silent leader is replaced.")
]
Detector = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="What decides whose uploads count, or none; `fedrfq list detectors` shows them. "
        "Default: the experiment's, or adaptive if it names none.",
        autocompletion=complete(detector_names),
    ),
]
ClassNames = Annotated[
    str,
    typer.Option(
        metavar="A,B,C|FILE",
        help="The classes of clients' own data, in order, or a file with one on each line. "
        "Default: those of the experiment's dataset.",
    ),
]
Like = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="An example of clients' own data, to read classes and shape from; not published.",
    ),
]


def init(
    folder: Folder,
    servers: Servers = None,
    clients: Clients = None,
    couriers: Couriers = 0,
    host: Hosts = None,
    port: Port = 7400,
    experiment: ExperimentOption = None,
    sets: Sets = None,
    detector: Detector = None,
    minimum: Minimum = None,
    deadline: Deadline = 60,
    pause: Pause = 0,
    timeout: Timeout = 2,
    days: Days = DEFAULT_DAYS,
    classes: ClassNames = "",
    shape: ShapeOption = "",
    window: WindowOption = "",
    resize: Resize = False,
    recolour: Recolour = False,
    like: Like = "",
) -> None:
    """Found a federation: write the federation.toml that all parties share.

    With --classes and --shape, or --like, the file has a data contract: each client brings data of
    its own, mapped to these classes by name. No data is needed for it.

    Parties that put a request into DIR/requests (`fedrfq server` and `client` with --join do, and
    `fedrfq committee add`) have made their own keys. For every
    other party a folder with new keys is written. The same requests and options give the same
    file on every machine.

    Example: fedrfq committee init consortium --servers 4 --clients 20 --host 127.0.0.1
    """
    from fedrfq.node.membership import founding
    from fedrfq.node.membership.contract_choice import ContractChoice
    from fedrfq.node.membership.joining import members, spoken

    choice = ContractChoice.of(
        classes, like, shape=shape, window=window, resize=resize, recolour=recolour
    )
    asked = founding.requests(folder)
    if servers is None and not asked:
        servers = _DEFAULT_SERVERS
    timings = {
        "minimum": minimum,
        "deadline_ms": round((pause + deadline) * _MS_PER_S),
        "view_ms": round(timeout * _MS_PER_S),
    }
    chosen = founding.detector_settings(experiment, sets or [], detector)
    federation = founding.init(
        folder,
        addresses(host or ["127.0.0.1"], servers or 0, port),
        clients=clients,
        timings=timings,
        file=experiment,
        sets=[*(sets or []), *chosen],
        days=days,
        couriers=couriers,
        choice=choice,
        pause_s=pause,
    )
    console = Console()
    say(console, f"wrote {folder / 'federation.toml'}: {federation.about()}")
    for line in members(federation):
        say(console, line)
    say(console, _about_detector(federation))
    for line in _about_privacy(federation):
        say(console, line)
    if federation.contract is not None:
        say(console, f"data contract: {federation.contract.about()}")
        near = federation.contract.near_names()
        if near is not None:
            say(console, f"note: the classes {near[0]!r} and {near[1]!r} are nearly the same name")
    # f = ⌊(1−1)/3⌋ = 0: a committee of one tolerates nothing.
    if federation.roster.n == 1:
        say(
            console,
            "note: everybody has to trust the only server of this federation; "
            "4 servers tolerate one that lies",
        )
    if asked:
        say(console, f"next: read the id to those who asked, all at once: {spoken(federation)}")
    if len(asked) < len(federation.members):
        say(
            console,
            "next: give each party its own folder, with this file in it, and no other party's; "
            "each then checks it with `fedrfq doctor`",
        )


def _about_detector(federation: Federation) -> str:
    name = federation.detector
    if name == "none":
        return "detector: none, so every poisoned upload counts; choose one with --detector"
    return f"detector: {name}; it cannot be changed later, choose another now with --detector"


def _about_privacy(federation: Federation) -> list[str]:
    """Say what noise costs each client, where there is noise."""
    from fedrfq.experiment import from_table
    from fedrfq.files import toml

    assert federation.network is not None
    experiment = from_table(toml.strict(federation.network.experiment))
    if not experiment.has_noise:
        return []
    return [f"noise: all {experiment.rounds} rounds together: {experiment.planned_privacy()}"]


def add(
    folder: Folder,
    requests: Annotated[
        list[Path],
        typer.Argument(metavar="REQUEST…", help="Requests that `fedrfq keys new` wrote."),
    ],
) -> None:
    """Add parties' requests to a federation that is yet to be founded.

    Each request is signed with the party's own key. `fedrfq committee init` then founds the
    federation of these parties.

    Example: fedrfq committee add consortium hospital-3.toml hospital-4.toml
    """
    from fedrfq.node.membership import founding

    added = founding.add(folder, requests)
    servers, clients, couriers = (
        count(sum(request.role == role for request in added), role) for role in ROLES
    )
    say(Console(), f"{folder}: requests of {servers}, {clients} and {couriers}")


def addresses(hosts: list[str], servers: int, port: int) -> list[str]:
    """Return the addresses of so many servers; those on one host get consecutive ports."""
    if len(hosts) not in (1, servers):
        raise UserError(
            f"--host is given {len(hosts)} times: give it once for all servers, "
            f"or once for each of the {servers}"
        )
    # Repeated and cut: one host stands for all servers, and no servers leave no addresses.
    host_of_each = [_bracketed(host) for host in (hosts * servers)[:servers]]
    found = []
    for number, host in enumerate(host_of_each):
        earlier_on_host = host_of_each[:number].count(host)
        found.append(f"{host}:{port + earlier_on_host}")
    return found


def _bracketed(host: str) -> str:
    """Put an IPv6 address in brackets, so that its colons are not taken for that of the port."""
    if ":" in host and not host.startswith("["):
        return f"[{host}]"
    return host
