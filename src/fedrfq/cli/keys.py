"""`fedrfq keys`: make the keys of a party on its own machine, which they never leave."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say
from fedrfq.node.membership.certificates import DEFAULT_DAYS

app = typer.Typer(
    help="Make the keys of a party, which never leave its machine.", no_args_is_help=True
)

Days = Annotated[
    int, typer.Option(min=1, max=36_500, help="The number of days the certificate is valid.")
]


@app.command()
def new(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of the party; created if it does not exist."
        ),
    ],
    name: Annotated[str, typer.Option(help="The name by which others will know this party.")],
    address: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="The address of a server; others have none."),
    ] = "",
    courier: Annotated[
        bool,
        typer.Option(
            "--courier", help="Make keys for a courier, which carries clients' uploads to servers."
        ),
    ] = False,
    days: Days = DEFAULT_DAYS,
) -> None:
    """Make the keys of a new party, and a request to take part in a federation.

    Send the request (request.toml) to whoever founds or changes the federation. The keys stay in
    the folder.

    Example: fedrfq keys new hospital-3 --name hospital-3
    """
    from fedrfq.node.membership.founding import NewKeys
    from fedrfq.node.storage.party_folder import REQUEST

    NewKeys.new(name, address, days, courier).write(folder)
    request = folder / REQUEST
    say(
        Console(),
        f"wrote the keys of {name}: send {request} to whoever founds or changes the federation,"
        " never a .key file",
    )


@app.command()
def rotate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the party.")],
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The new address of a server that moves.")
    ] = "",
    days: Days = DEFAULT_DAYS,
) -> None:
    """Make new keys for a party of a federation, and a request to use them.

    The party keeps using its old keys until the servers have agreed on the change (see `fedrfq
    committee change` and `fedrfq committee approve`).

    Example: fedrfq keys rotate hospital-3
    """
    from fedrfq.node.membership.epochs import ROTATION
    from fedrfq.node.membership.founding import NewKeys
    from fedrfq.node.membership.identity import read_member
    from fedrfq.node.storage.party_folder import REQUEST

    member, role = read_member(folder)
    keys = NewKeys.new(member.name, address or member.address, days, role == "courier")
    keys.write(folder / ROTATION)
    request = folder / ROTATION / REQUEST
    say(
        Console(),
        f"wrote new keys of {member.name}: give {request} to `fedrfq committee change`, "
        "and never give anybody a .key file",
    )
