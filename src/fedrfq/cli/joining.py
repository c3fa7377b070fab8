"""`--join` of servers and clients: from an empty folder into a federation, with one command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.node.membership.identity import Identity

Join = Annotated[
    Path | None,
    typer.Option(
        "--join",
        metavar="SHARED",
        help="The first time: make keys, put a request into this folder, wait there for the "
        "founder's federation.toml, and ask you for its id. The party is called like DIR.",
    ),
]


def joined(folder: Path, shared: Path) -> bool:
    """Return whether the party of this folder has agreed to the federation of the shared folder."""
    from fedrfq.node.membership.refounding import has_agreed

    return has_agreed(folder, shared)


def await_founding(folder: Path, shared: Path, address: str = "") -> Identity:
    """Ask to take part, and wait for the federation; say what happens."""
    from fedrfq.node.membership import joining, refounding
    from fedrfq.node.storage.party_folder import FEDERATION, REQUESTS

    console = Console()
    if (aside := refounding.set_aside(folder)) is not None:
        say(
            console,
            f"the federation that {folder} agreed to is no longer in {shared / FEDERATION}, and had"
            f" certified no round: it is set aside in {aside}, and you are asked anew",
        )
    name = joining.ask(folder, shared, address).member.name
    say(console, f"the keys of {name} are in {folder}; its request is in {shared / REQUESTS}")
    say(console, f"waiting for {shared / FEDERATION}; after Ctrl-C the same command waits again")
    identity = joining.await_federation(folder, shared)
    for line in joining.terms(identity.federation):
        say(console, line)
    return identity


def agree(identity: Identity, shared: Path) -> None:
    """Ask for the id that the others name, and take the federation's file if it is the same."""
    from fedrfq.node.membership import joining

    # Its own id is not shown: it would be typed instead of the one that the others see.
    say(
        Console(),
        "Whoever types the id agrees to all this. Have the founder read it to you and all others "
        f"at once, by telephone: {joining.LEAST_DIGITS} digits or more.",
    )
    try:
        told = input("id: ")
    except EOFError:
        raise UserError(
            "nobody typed the id: start this in a terminal, or give the id on standard input"
        ) from None
    joining.agree(identity, told, shared)
    about = identity.federation.about()
    say(Console(), f"agreed: {identity.member.name} is now a member of the federation ({about})")
