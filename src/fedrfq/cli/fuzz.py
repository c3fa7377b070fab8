"""`fedrfq committee fuzz`, `replay` and `explore`: try to break a simulated committee.

Here are the options; what the commands do is in `fuzz_campaign`, which imports the simulator.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedrfq.cli.completion import complete, mutant_names
from fedrfq.cli.options import Json
from fedrfq.consensus.roster import MAX_SERVERS

# How many schedules to run by default.
_SCHEDULES = 1_000
# How many at most for each mutant. A caught one needs no more: hardly any takes a few hundred.
_MUTANT_SCHEDULES = 20_000

Servers = Annotated[
    int, typer.Option(min=4, max=MAX_SERVERS, help="How many servers the committee has.")
]
Signatures = Annotated[
    str,
    typer.Option(
        help="The signatures to use: ideal (fast) or ed25519.",
        autocompletion=complete(lambda: ("ideal", "ed25519")),
    ),
]
Wire = Annotated[
    bool, typer.Option("--wire", help="Encode and decode every message, as on a network.")
]


def fuzz(
    servers: Servers = 4,
    schedules: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many schedules to run; with --mutants, at most for each mutant. "
            f"Default: {_SCHEDULES:,}, and {_MUTANT_SCHEDULES:,} with --mutants.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="The seed that decides all schedules.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="How many processes. Default: one for each core.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Write results to this file, and continue from it."),
    ] = None,
    mutants: Annotated[
        bool,
        typer.Option(
            "--mutants", help="Run deliberately broken replicas; each of them must be caught."
        ),
    ] = False,
    wire: Wire = False,
    signatures: Signatures = "ideal",
    json: Json = False,
) -> None:
    """Try to break a simulated committee with random schedules of crashes, losses and lies.

    Every invariant is checked at every step. With --out, the same command continues after Ctrl-C, a
    crash or kill -9. The result does not depend on --jobs.

    Exit code 1: an invariant broke (the schedule is printed, and how to replay it), or a mutant was
    not caught. Exit code 3: after 1,000 schedules or more, something was never exercised.

    Example: fedrfq committee fuzz --servers 4 --schedules 10000 --seed 1 --out fuzz4.json
    """
    from fedrfq.cli import fuzz_campaign

    start = fuzz_campaign.run
    default = _SCHEDULES
    if mutants:
        start = fuzz_campaign.hunt_mutants
        default = _MUTANT_SCHEDULES
    settings = fuzz_campaign.settings(
        servers, schedules or default, seed, signatures=signatures, wire=wire
    )
    start(settings, jobs, out, json)


def replay(
    schedule_seed: Annotated[
        int, typer.Option(min=0, help="The seed that was printed with the broken invariant.")
    ],
    servers: Servers = 4,
    mutant: Annotated[
        str | None,
        typer.Option(
            help="The broken replica to run. Default: the real one.",
            autocompletion=complete(mutant_names),
        ),
    ] = None,
    wire: Wire = False,
    signatures: Signatures = "ideal",
) -> None:
    """Print what happens in one schedule, step by step.

    Exit code 1: an invariant broke.

    Example: fedrfq committee replay --servers 4 --schedule-seed 1
    """
    from fedrfq.cli import fuzz_campaign

    settings = fuzz_campaign.settings(
        servers, 1, 0, signatures=signatures, wire=wire, mutant=mutant
    )
    fuzz_campaign.replay(settings, schedule_seed)


def explore(
    depth: Annotated[int, typer.Option(min=1, help="How many steps to explore.")],
    views: Annotated[int, typer.Option(min=0, help="The highest view to explore.")] = 1,
    json: Json = False,
) -> None:
    """Try every order of events in one round among four servers, one of them faulty.

    Exit code 1: an invariant broke.

    Example: fedrfq committee explore --depth 6 --views 1
    """
    from fedrfq.cli import fuzz_campaign

    fuzz_campaign.explore(depth, views, json)
