"""fedrfq committee change, approve: a new federation.toml, agreed on by the servers of the old one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say
from fedrfq.errors import UserError

Expelled = Annotated[
    list[str] | None, typer.Option("--expel", metavar="NAME", help="A party that is no longer one.")
]


def change(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of any party, with its federation.toml."),
    ],
    requests: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="REQUEST...", help="As `fedrfq keys new` or `keys rotate` wrote them."
        ),
    ] = None,
    expel: Expelled = None,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="Clients that a round needs from now on.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the new file goes.")] = Path(
        "federation.new.toml"
    ),
) -> None:
    """Make the federation.toml that shall take the present one's place. Nothing changes before a quorum of servers approves.

    Who asks under a name that is there gets new keys; a new server takes the seat of one that is expelled.

    Example: fedrfq committee change server-0 hospital-9/request.toml --expel client-3 --out new.toml
    """
    from fedrfq.node.membership.change import changed, differences
    from fedrfq.node.membership.founding import read_request
    from fedrfq.node.membership.identity import read_federation
    from fedrfq.node.storage.party_folder import FEDERATION, write

    federation = read_federation(folder / FEDERATION)
    new = changed(federation, [read_request(path) for path in requests or ()], expel or (), minimum)
    write(out, new.text.encode())
    for line in differences(federation, new):
        say(Console(), line)
    say(
        Console(),
        f"wrote {out}: send it to the servers, {federation.roster.quorum} of whom must `fedrfq committee approve` it",
    )


def approve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A server's folder.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="NEW.toml", help="As `fedrfq committee change` wrote it."),
    ] = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take an approval back, while it is not yet decided.")
    ] = False,
) -> None:
    """Say what would change, and have this server move it in every round until a quorum of servers does.

    The server need not be restarted. Once decided, all parties put the old run aside in past/ and go on with the new file.

    Example: fedrfq committee approve server-0 new.toml
    """
    from fedrfq.node.membership.change import differences
    from fedrfq.node.membership.identity import load
    from fedrfq.node.membership.proposal import propose, take_back

    identity = load(folder)
    console = Console()
    if not identity.is_server:
        raise UserError(f"{folder} is a {identity.role}'s: only servers decide who takes part")
    if withdraw:
        say(console, "withdrawn" if take_back(folder) else "there was nothing to withdraw")
        return
    if file is None:
        raise UserError("give the new federation's file, or --withdraw")
    new = propose(identity, file)
    for line in differences(identity.federation, new):
        say(console, line)
    say(
        console,
        f"{identity.member.name} moves this from now on; {identity.federation.roster.quorum} servers make it so",
    )
