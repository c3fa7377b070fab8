"""`fedrfq committee change` and `approve`: change a federation by agreement of its servers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.terminal import say
from fedrfq.errors import UserError


def change(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The folder of any party, with its federation.toml."),
    ],
    requests: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="REQUEST…",
            help="Requests of new parties, or for new keys, from `fedrfq keys`.",
        ),
    ] = None,
    expel: Annotated[
        list[str] | None,
        typer.Option("--expel", metavar="NAME", help="A party to remove. Repeatable."),
    ] = None,
    minimum: Annotated[
        int | None, typer.Option(min=1, help="The new minimum of clients that a round needs.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(min=1, help="How many rounds there are to be in all, with those that were."),
    ] = None,
    pause: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="SECONDS", help="How long clients pause after each result from then on."
        ),
    ] = None,
    protocol: Annotated[
        int | None,
        typer.Option(min=1, help="The version of the protocol to go on with, once all speak it."),
    ] = None,
    decisions: Annotated[
        int | None,
        typer.Option(
            min=1, help="The version by which servers decide from then on: this program's."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path(
        "federation.new.toml"
    ),
) -> None:
    """Write the federation.toml that is to replace the present one.

    Nothing changes before a quorum of servers has approved the file with `fedrfq committee
    approve`. A request under a name that is already a party's gives that party new keys. A new
    server takes the place of one that is expelled.

    Example: fedrfq committee change server-0 request.toml --expel client-3 --out new.toml
    """
    from fedrfq.node.membership.change import changed, differences
    from fedrfq.node.membership.founding import read_request
    from fedrfq.node.membership.identity import read_federation
    from fedrfq.node.storage.party_folder import FEDERATION, write

    federation = read_federation(folder / FEDERATION)
    asking = [read_request(path) for path in requests or ()]
    successor = changed(
        federation,
        asking,
        expel or (),
        minimum,
        protocol,
        decisions,
        rounds=rounds,
        pause_s=pause,
    )
    write(out, successor.text.encode())
    console = Console()
    for line in differences(federation, successor):
        say(console, line)
    say(
        console,
        f"wrote {out}: send it to the servers; the change takes effect when "
        f"{federation.roster.quorum} of them have run `fedrfq committee approve` on it",
    )


def approve(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a server.")],
    file: Annotated[
        Path | None,
        typer.Argument(metavar="NEW.toml", help="The file that `fedrfq committee change` wrote."),
    ] = None,
    withdraw: Annotated[
        bool,
        typer.Option("--withdraw", help="Withdraw the approval, if nothing has been decided yet."),
    ] = False,
) -> None:
    """Approve a change of the federation, in the name of one server.

    Prints what would change. From then on the server proposes the change in every round, until a
    quorum of servers does; it need not be restarted. Once the change is decided, all parties move
    the old run to past/ and continue with the new file.

    Example: fedrfq committee approve server-0 new.toml
    """
    from fedrfq.node.membership.change import differences
    from fedrfq.node.membership.identity import load
    from fedrfq.node.membership.proposal import propose, withdraw_proposal

    identity = load(folder)
    console = Console()
    if not identity.is_server:
        raise UserError(
            f"{folder} belongs to a {identity.role}, and only servers decide who takes part: "
            "name the folder of a server"
        )
    if withdraw:
        if withdraw_proposal(folder):
            say(console, "the approval is withdrawn")
        else:
            say(console, "there was no approval to withdraw")
        return
    if file is None:
        raise UserError("name the file to approve (NEW.toml), or give --withdraw")
    successor = propose(identity, file)
    for line in differences(identity.federation, successor):
        say(console, line)
    say(
        console,
        f"{identity.member.name} will propose this each round; "
        f"it takes effect when {identity.federation.roster.quorum} servers approve",
    )


def purge(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a stopped server.")],
    client: Annotated[
        str, typer.Argument(metavar="NAME", help="The client that the federation has forgotten.")
    ],
) -> None:
    """Remove from a server's files what a forgotten client has sent.

    The server must be stopped, and the client's statistics must no longer count: see `fedrfq
    forget`. audit.log stays as it is, so every certificate can still be verified. Rounds in which
    the client took part cannot be computed anew afterwards: `fedrfq verify --recompute` says so and
    ends with exit code 3.

    Example: fedrfq committee purge server-0 client-3
    """
    from fedrfq.node.membership.identity import load
    from fedrfq.node.membership.purge import purge as remove

    identity = load(folder)
    if not identity.is_server:
        raise UserError(f"{folder} belongs to a {identity.role}: only servers have others' uploads")
    purged = remove(identity, client)
    say(Console(), f"removed what {client} sent from {purged} rounds of {folder}")
