"""`fedrfq local-cluster`: the command that runs a whole federation on this machine.

Here are the options, the live table and the closing summary. The processes themselves are in
`fedrfq.node.ops.local_cluster`, which prints nothing.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedrfq import plugins
from fedrfq.cli.options import ExperimentOption, Modules
from fedrfq.cli.terminal import command_line, count, interruptible, say
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.node.ops.chaos import Chaos
    from fedrfq.node.ops.child_processes import Child
    from fedrfq.node.ops.local_cluster import Cluster

# The exit code when a party failed, or when the logs cannot be verified.
_FAILED = 1
# How often the parties are asked for their status.
_STATUS_S = 0.5
# How often chaos may strike.
_CHAOS_S = 0.1
# How long slow servers get to learn how the last round ended.
_SETTLE_S = 60.0
# Lines that are shown of the log of a party that failed.
_TAIL_LINES = 5


def local_cluster(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The folder of the federation; founded if it does not exist."
        ),
    ],
    servers: Annotated[
        int | None, typer.Option(min=1, help="How many servers: 1, or 4 or more. Default: 4.")
    ] = None,
    clients: Annotated[
        int | None,
        typer.Option(min=1, help="How many clients; each loads PyTorch. Default: 6."),
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="How many rounds. Default: 3.")] = None,
    experiment: ExperimentOption = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos",
            help="Kill and restart random parties, never more than f servers at a time.",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="The seed of a new federation's experiment, and of --chaos.")
    ] = 0,
    module: Modules = None,
) -> None:
    """Run a whole federation on this machine, each server and client as its own process.

    No process outlives this command. After Ctrl-C, a crash or kill -9 the same command continues.
    At the end all logs are verified and compared. The exit code is 1 if a party failed or a log
    cannot be verified.

    Example: fedrfq local-cluster demo --servers 4 --clients 6 --rounds 3 --chaos
    """
    from fedrfq.node.ops.chaos import Chaos
    from fedrfq.node.ops.local_cluster import Cluster, open_or_found

    wanted = {"servers": servers, "clients": clients, "rounds": rounds}
    federation = open_or_found(folder, wanted, experiment, seed)
    given = [word for source in module or [] for word in ("--module", source)]
    cluster = Cluster(folder, more={~k: given for k in range(len(federation.clients))})
    console = Console()
    storm = None
    if chaos:
        storm = Chaos(cluster.children, federation.roster.f, Random(seed), cluster.answers)
    again = f"stopped; continue with: {command_line('local-cluster', folder)}"
    with interruptible(lambda: again, console), _running(cluster):
        _watch(cluster, storm, console)
    if storm is not None:
        say(console, f"a party was killed and restarted {count(storm.cycles, 'time')}")
    _conclude(cluster, console)


@contextmanager
def _running(cluster: Cluster) -> Iterator[None]:
    """Start all parties, and stop them at the end however it comes."""
    try:
        cluster.start()
        yield
    finally:
        cluster.stop()


def _watch(cluster: Cluster, storm: Chaos | None, console: Console) -> None:
    """Follow the parties until every client has done its rounds, or until a party fails."""
    last_look = 0.0
    round_reached = 0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not cluster.finished():
            time.sleep(_CHAOS_S)
            now = time.monotonic()
            _strike(storm, now, live.console)
            # Whoever chaos has killed is expected to be down.
            _check_failures(cluster, () if storm is None else storm.down)
            if now - last_look > _STATUS_S:
                last_look = now
                _relay_warnings(cluster, live.console)
                states = {party: _state(cluster, party) for party in cluster.children}
                round_reached = _show_progress(round_reached, states, live)
    # The clients are done; servers that are down must come back to learn how it ended.
    if storm is not None:
        storm.end()
    _settle(cluster)


def _strike(storm: Chaos | None, now: float, console: Console) -> None:
    if storm is None:
        return
    for line in storm.step(now):
        say(console, line)


def _settle(cluster: Cluster) -> None:
    """Wait until slow servers have learned how the last round ended."""
    deadline = time.monotonic() + _SETTLE_S
    while not cluster.settled():
        _check_failures(cluster, ())
        if time.monotonic() > deadline:
            raise UserError(
                f"not all servers have the last round after {_SETTLE_S:.0f} s: "
                f"look at output.log in their folders in {cluster.folder}"
            )
        time.sleep(_CHAOS_S)


def _show_progress(round_reached: int, states: Mapping[int, PartyState], live: Live) -> int:
    """Update the table, or print a line for each round if there is no terminal.

    Returns the latest round that any party has reached.
    """
    latest = max(state.round for state in states.values())
    if live.console.is_terminal:
        live.update(_table(states), refresh=True)
    elif latest > round_reached:
        say(live.console, f"round {latest}")
    return latest


def _check_failures(cluster: Cluster, expected_down: Collection[int]) -> None:
    """Raise an error that quotes the log of the first party that has failed, if any has."""
    for child in cluster.failed(expected_down):
        raise UserError(
            f"{child.name} has ended with exit code {child.code}; "
            f"its last lines are:\n{_last_lines(child)}"
        )


def _last_lines(child: Child) -> str:
    lines = child.output.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(lines[-_TAIL_LINES:])


def _relay_warnings(cluster: Cluster, console: Console) -> None:
    """Print the warnings and errors that parties have logged since the last call."""
    for child in cluster.children.values():
        for line in child.said():
            # A log line is "time level message".
            level = line.split()[1:2]
            if level in (["warning"], ["error"]):
                say(console, f"{child.name}: {line}")


class PartyState(NamedTuple):
    """A row of the live table; round 0 means that nothing is known yet."""

    name: str
    process: str
    round: int = 0
    view: str = ""
    about: str = ""


def _state(cluster: Cluster, party: int) -> PartyState:
    child = cluster.children[party]
    state = PartyState(child.name, _process_state(child))
    if party < 0:
        last = cluster.last_round(party)
        if last is None:
            return state
        return state._replace(round=last["round"], about=f"accuracy {last['accuracy']:.2f} %")
    status = cluster.status(party)
    if status is None:
        return state
    servers = sum(peer["connected"] for peer in status["peers"])
    clients = status["connected_clients"]
    return state._replace(
        # After the last round a server is in a round that will never be.
        round=min(status["round"], status["rounds"]),
        view=str(status["view"]),
        about=f"{status['phase']}; {servers} servers and {clients} clients connected",
    )


def _process_state(child: Child) -> str:
    if child.running:
        return f"process {child.pid}"
    if child.code == 0:
        return "done"
    return "down"


def _table(states: Mapping[int, PartyState]) -> Table:
    table = Table("party", "process", "round", "view", "state")
    for state in states.values():
        table.add_row(state.name, state.process, str(state.round or ""), state.view, state.about)
    return table


def _conclude(cluster: Cluster, console: Console) -> None:
    """Verify all logs together, print what the clients learned, and say where everything is."""
    from fedrfq.node.ops.child_processes import fedrfq_command

    folders = [cluster.own(party) for party in cluster.children]
    # As a process of its own, so that its tables do not mix with the output of this command.
    verified = subprocess.run(
        fedrfq_command("verify", *folders, *plugins.options()),
        capture_output=True,
        text=True,
        check=False,
    )
    console.print(_accuracy_table(cluster))
    if verified.returncode:
        say(console, verified.stderr.strip())
        raise typer.Exit(_FAILED)
    again = command_line("verify", cluster.folder / "server-0")
    say(console, f"{len(folders)} logs are verified and agree with each other; check one: {again}")
    say(
        console,
        f"keys, logs and models are in {cluster.folder}; "
        "each party's output is in output.log in its folder",
    )


def _accuracy_table(cluster: Cluster) -> Table:
    table = Table("client", "rounds", "accuracy %", "accuracy by prototypes %")
    for party in cluster.children:
        if party >= 0:
            continue
        last = cluster.last_round(party)
        if last is not None:
            table.add_row(
                cluster.own(party).name,
                str(last["round"]),
                f"{last['accuracy']:.2f}",
                f"{last['prototype_accuracy']:.2f}",
            )
    return table
