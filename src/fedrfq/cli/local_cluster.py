"""`fedrfq local-cluster`: a whole federation on this machine, every party a process of its own, by one command."""

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

from fedrfq.cli.terminal import INTERRUPTED, say, terminated_as_interrupt
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from fedrfq.node.ops.chaos import Chaos
    from fedrfq.node.ops.local_cluster import Cluster

_FAILED = 1  # the exit code when a party fell, or what they wrote does not hold
_LOOK_S = 0.5  # how often the parties are asked
_STRIKE_S = 0.1  # how often chaos may strike
_SETTLING_S = 60.0  # for servers to learn how the last round ended
_TAIL = 5  # lines of a party that fell


def local_cluster(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="The federation's folder; founded if it is not there."),
    ],
    servers: Annotated[
        int | None, typer.Option(min=1, help="1, or 4 and more; 4 unless given.")
    ] = None,
    clients: Annotated[
        int | None, typer.Option(min=1, help="6 unless given; each loads PyTorch.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="3 unless given.")] = None,
    experiment: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.toml", help="What is computed; as in the quickstart unless given."
        ),
    ] = None,
    chaos: Annotated[
        bool,
        typer.Option(
            "--chaos", help="Kill and restart parties at random, at most f servers at a time."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Of a new federation's experiment, and of chaos.")] = 0,
) -> None:
    """Run servers and clients of one federation as processes on this machine; none outlives this command.

    The same command goes on after Ctrl-C, a crash or kill -9. In the end all logs are verified against each other.
    Exit code 1: a party ended before its time, or a log does not hold.

    Example: fedrfq local-cluster demo --servers 4 --clients 6 --rounds 3 --chaos
    """
    from fedrfq.node.ops.chaos import Chaos
    from fedrfq.node.ops.local_cluster import Cluster, opened

    federation = opened(
        folder, {"servers": servers, "clients": clients, "rounds": rounds}, experiment, seed
    )
    cluster = Cluster(folder)
    console = Console()
    if chaos:
        storm = Chaos(cluster.children, federation.roster.f, Random(seed), cluster.answers)
    else:
        storm = None
    try:
        with terminated_as_interrupt(), _running(cluster):
            _watch(cluster, storm, console)
    except KeyboardInterrupt:
        say(console, f"stopped; go on with: fedrfq local-cluster {folder}")
        raise typer.Exit(INTERRUPTED) from None
    if storm is not None:
        say(console, f"{storm.cycles} times a party was killed and restarted")
    _conclude(cluster, console)


@contextmanager
def _running(cluster: Cluster) -> Iterator[None]:
    """All parties, stopped in the end whatever happens."""
    try:
        cluster.start()
        yield
    finally:
        cluster.stop()


def _watch(cluster: Cluster, storm: Chaos | None, console: Console) -> None:
    """Until every client has done its rounds; a party that falls ends it."""
    looked = 0.0
    reached = 0
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while not cluster.finished():
            time.sleep(_STRIKE_S)
            now = time.monotonic()
            for line in storm.step(now) if storm is not None else []:
                say(live.console, line)
            _check(cluster, () if storm is None else storm.down)
            if now - looked > _LOOK_S:
                looked = now
                _relay(cluster, live.console)
                states = {party: _state(cluster, party) for party in cluster.children}
                reached = _tell(reached, states, live)
    if storm is not None:
        storm.end()
    _settle(cluster)


def _settle(cluster: Cluster) -> None:
    """Let slow servers learn how the last round ended."""
    until = time.monotonic() + _SETTLING_S
    while not cluster.settled():
        _check(cluster, ())
        if time.monotonic() > until:
            raise UserError(
                f"not all servers have the last round: look at output.log in their folders in {cluster.folder}"
            )
        time.sleep(_STRIKE_S)


def _tell(reached: int, states: Mapping[int, PartyState], live: Live) -> int:
    """The parties as a table; where nobody could see it move, a line for each round. Returns the furthest round."""
    furthest = max(state.round for state in states.values())
    if live.console.is_terminal:
        live.update(_table(states), refresh=True)
    elif furthest > reached:
        say(live.console, f"round {furthest}")
    return furthest


def _check(cluster: Cluster, expected: Collection[int]) -> None:
    for child in cluster.fallen(expected):
        said = "\n".join(
            child.output.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]
        )
        raise UserError(
            f"{child.name} has ended with exit code {child.code}; its last lines are:\n{said}"
        )


def _relay(cluster: Cluster, console: Console) -> None:
    """What parties warn of."""
    for child in cluster.children.values():
        for line in child.said():
            if any(word in line.split()[1:2] for word in ("warning", "error")):
                say(console, f"{child.name}: {line}")


class PartyState(NamedTuple):
    """Of a party, in words; round 0: nothing is known."""

    name: str
    process: str
    round: int = 0
    view: str = ""
    about: str = ""


def _state(cluster: Cluster, party: int) -> PartyState:
    child = cluster.children[party]
    known = PartyState(
        child.name,
        f"process {child.pid}" if child.running else "done" if child.code == 0 else "down",
    )
    if party < 0:
        last = cluster.diary(party)
        if last:
            return known._replace(round=last["round"], about=f"accuracy {last['accuracy']:.2f} %")
        return known
    status = cluster.status(party)
    if status is None:
        return known
    here = sum(peer["connected"] for peer in status["peers"])
    about = f"{status['phase']}; {here} servers and {status['connected_clients']} clients connected"
    return known._replace(
        round=min(status["round"], status["rounds"]), view=str(status["view"]), about=about
    )


def _table(states: Mapping[int, PartyState]) -> Table:
    table = Table("party", "", "round", "view", "")
    for state in states.values():
        table.add_row(state.name, state.process, str(state.round or ""), state.view, state.about)
    return table


def _conclude(cluster: Cluster, console: Console) -> None:
    """Verify everything, and say what was learned and where it is."""
    from fedrfq.node.ops.child_processes import fedrfq_command

    folders = [cluster.own(party) for party in cluster.children]
    done = subprocess.run(
        fedrfq_command("verify", *folders), capture_output=True, text=True, check=False
    )
    table = Table("client", "rounds", "accuracy %", "by prototypes %")
    for party in cluster.children:
        if party < 0:
            last = cluster.diary(party)
        else:
            last = None
        if last is not None:
            own = f"{last['accuracy']:.2f}"
            prototypes = f"{last['prototype_accuracy']:.2f}"
            table.add_row(cluster.own(party).name, str(last["round"]), own, prototypes)
    console.print(table)
    if done.returncode:
        say(console, done.stderr.strip())
        raise typer.Exit(_FAILED)
    say(
        console,
        f"{len(folders)} logs hold, and agree with each other: fedrfq verify {cluster.folder}/server-0",
    )
    say(
        console,
        f"keys, logs and models are in {cluster.folder}, what each party said in output.log of its folder",
    )
