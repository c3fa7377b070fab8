"""fedrfq keys: a party's own keys, which never leave its machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say

app = typer.Typer(help="A party's own keys.", no_args_is_help=True)

Days = Annotated[
    int, typer.Option(min=1, max=36_500, help="For how long the certificate is valid.")
]
DAYS = 730


@app.callback()
def keys() -> None:
    """A party's own keys."""


@app.command()
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The party's folder; made if it is not there.")
    ],
    name: Annotated[str, typer.Option(help="What the others will call this party.")],
    address: Annotated[str, typer.Option(help="A server's host:port; a client has none.")] = "",
    courier: Annotated[
        bool, typer.Option("--courier", help="Of one that carries clients' uploads to the servers.")
    ] = False,
    days: Days = DAYS,
) -> None:
    """Make a party's keys and a request to send to whoever founds the federation. The keys stay here.

    Example: fedrfq keys new hospital-3 --name hospital-3
    """
    from fedrfq.node.membership.founding import NewKeys
    from fedrfq.node.storage.party_folder import REQUEST

    NewKeys.new(name, address, days, courier).write(folder)
    say(Console(), f"wrote the keys of {name}; send in {folder / REQUEST}, and never a .key file")


@app.command()
def rotate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a party.")],
    address: Annotated[str, typer.Option(help="A server's new host:port, if it moves.")] = "",
    days: Days = DAYS,
) -> None:
    """Make new keys for a party that has a seat, and a request for them. They are used once the servers have agreed
    (`fedrfq committee change`, `approve`); until then the old ones are.

    Example: fedrfq keys rotate hospital-3
    """
    from fedrfq.node.membership.epochs import ROTATION
    from fedrfq.node.membership.founding import NewKeys
    from fedrfq.node.membership.identity import read_member
    from fedrfq.node.storage.party_folder import REQUEST

    member, role = read_member(folder)
    NewKeys.new(member.name, address or member.address, days, role == "courier").write(
        folder / ROTATION
    )
    say(
        Console(),
        f"wrote new keys of {member.name}; send in {folder / ROTATION / REQUEST}, and never a .key file",
    )
