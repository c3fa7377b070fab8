"""`fedrfq committee fuzz`, `replay` and `explore`: try to break a simulated committee."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.cli.completion import complete, mutant_names
from fedrfq.cli.fuzz_tables import coverage_table, explored_text, mutant_sheet, speed_text
from fedrfq.cli.options import Json
from fedrfq.cli.terminal import (
    INTERRUPTED,
    command_line,
    progress,
    say,
    terminated_as_interrupt,
    wide_console,
)
from fedrfq.consensus.roster import MAX_SERVERS
from fedrfq.errors import UserError, did_you_mean
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.simulator.fuzz.campaign import Breach, Campaign
from fedrfq.simulator.fuzz.coverage import missing
from fedrfq.simulator.fuzz.explorer import explore as search
from fedrfq.simulator.fuzz.mutant_hunt import Hunt
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import SIGNATURES, Settings, transcript
from fedrfq.simulator.fuzz.workers import cores, workers

# The exit code when an invariant broke, or a mutant was not caught.
BROKEN = 1
# The exit code when something that must be exercised never was.
NOT_EXERCISED = 3
# A shorter campaign is not expected to have exercised everything.
_MIN_SCHEDULES_JUDGED = 1_000
# How many schedules to run by default.
_SCHEDULES = 1_000
# How many at most for each mutant. A caught one needs no more: hardly any takes a few hundred.
_MUTANT_SCHEDULES = 20_000
# Lines that are printed of the transcript of a broken schedule.
_TAIL_LINES = 40

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
    start = _fuzz
    default = _SCHEDULES
    if mutants:
        start = _hunt_mutants
        default = _MUTANT_SCHEDULES
    settings = _settings(servers, schedules or default, seed, signatures=signatures, wire=wire)
    start(settings, jobs or cores(), out, json)


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
    settings = _settings(servers, 1, 0, signatures=signatures, wire=wire, mutant=mutant)
    text, broken = transcript(settings, schedule_seed)
    sys.stdout.write(text)
    if broken:
        raise typer.Exit(BROKEN)


def explore(
    depth: Annotated[int, typer.Option(min=1, help="How many steps to explore.")],
    views: Annotated[int, typer.Option(min=0, help="The highest view to explore.")] = 1,
    json: Json = False,
) -> None:
    """Try every order of events in one round among four servers, one of them faulty.

    Exit code 1: an invariant broke.

    Example: fedrfq committee explore --depth 6 --views 1
    """
    errors = Console(stderr=True)
    console = wide_console()
    with _interruptible("stopped; nothing is kept"), errors.status("exploring") as status:
        found = search(depth, views, progress=lambda so_far: status.update(explored_text(so_far)))
    say(console, explored_text(found))
    violation = None
    if found.violation:
        violation = str(found.violation)
        say(console, "\n".join([*found.trace, f"broken: {violation}"]))
    if json:
        # The violation is an exception, for which JSON has no form.
        result = asdict(replace(found, violation=None))
        sys.stdout.write(to_json({**result, "violation": violation}) + "\n")
    if violation is not None:
        raise typer.Exit(BROKEN)


def _settings(
    servers: int,
    schedules: int,
    seed: int,
    *,
    signatures: str,
    wire: bool,
    mutant: str | None = None,
) -> Settings:
    if signatures not in SIGNATURES:
        raise UserError(f"--signatures is one of {', '.join(SIGNATURES)}, not '{signatures}'")
    if mutant is not None and mutant not in MUTANTS:
        raise UserError(
            f"--mutant is one of {', '.join(MUTANTS)}, not '{mutant}'"
            f"{did_you_mean(mutant, MUTANTS)}"
        )
    # A missing signature library is an error here rather than in every worker.
    SIGNATURES[signatures]()
    return Settings(servers, schedules, seed, mutant, signatures, wire)


def _fuzz(settings: Settings, jobs: int, out: Path | None, json: bool) -> None:
    campaign = Campaign(settings, out)
    # What an earlier call has left in --out does not count for the speed of this one.
    before = campaign.tally
    seconds_before = campaign.seconds
    with _workers(jobs, out, "schedules") as (pool, update):
        update(completed=before.schedules, total=settings.schedules)
        for tally in campaign.advance(pool, jobs):
            speed = speed_text(before, tally, campaign.seconds - seconds_before)
            update(completed=tally.schedules, figures=speed)
    console = wide_console()
    tally = campaign.tally
    console.print(coverage_table(tally))
    if tally.schedules > before.schedules:
        speed = speed_text(before, tally, campaign.seconds - seconds_before)
        say(console, f"schedules: {speed} with {jobs} processes")
    if tally.breach:
        _show_breach(console, settings, tally.breach, out)
    if json:
        sys.stdout.write(to_json(campaign.record()) + "\n")
    if tally.breach:
        raise typer.Exit(BROKEN)
    if tally.schedules >= _MIN_SCHEDULES_JUDGED and missing(tally.exercised):
        raise typer.Exit(NOT_EXERCISED)


def _hunt_mutants(settings: Settings, jobs: int, out: Path | None, json: bool) -> None:
    """Run all mutants; with --out, also write the table as Markdown beside the JSON."""
    hunt = Hunt(settings, out)
    seconds_before = hunt.seconds
    cpu_before = _cpu_seconds()
    with _workers(jobs, out, "mutants") as (pool, update):
        for name, schedules in hunt.advance(pool, jobs):
            update(
                completed=len(hunt.verdicts),
                total=len(MUTANTS),
                description=name,
                figures=f"{schedules:,} schedules",
            )
        update(completed=len(hunt.verdicts), description="all mutants", figures="")
    sheet = mutant_sheet(hunt)
    console = wide_console()
    console.print(sheet.printed())
    say(console, sheet.note)
    seconds = hunt.seconds - seconds_before
    cpu_seconds = _cpu_seconds() - cpu_before
    say(console, f"{seconds:,.0f} s, {cpu_seconds:,.0f} s of CPU time, with {jobs} processes")
    if out:
        write_atomically(out.with_suffix(".md"), sheet.markdown().encode())
    if json:
        sys.stdout.write(to_json(hunt.record()) + "\n")
    if not all(verdict.caught() for verdict in hunt.verdicts.values()):
        raise typer.Exit(BROKEN)


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its child processes that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def _workers(
    jobs: int, out: Path | None, unit: str
) -> Iterator[tuple[Executor, Callable[..., None]]]:
    """Start worker processes, and yield them with a function that updates the progress bar."""
    message = "stopped; give --out FILE.json so that the same command can continue"
    if out:
        message = "stopped; the same command continues"
    with (
        _interruptible(message),
        workers(jobs) as pool,
        progress(Console(stderr=True), unit) as bar,
    ):
        yield pool, partial(bar.update, bar.add_task("fuzzing", figures=""))


@contextmanager
def _interruptible(message: str) -> Iterator[None]:
    """Print a message and exit on Ctrl-C or SIGTERM."""
    try:
        with terminated_as_interrupt():
            yield
    except KeyboardInterrupt:
        say(Console(stderr=True), message)
        raise typer.Exit(INTERRUPTED) from None


def _show_breach(console: Console, settings: Settings, breach: Breach, out: Path | None) -> None:
    """Print what broke and the end of the transcript, write all of it, and say how to replay it."""
    text, _ = transcript(settings, breach.schedule_seed)
    folder = Path()
    if out:
        folder = out.parent
    file = folder / f"violation-{breach.schedule_seed}.txt"
    write_atomically(file, text.encode())
    head, _, steps = text.partition("\n\n")
    say(console, "\n".join([head, "", "…", *steps.splitlines()[-_TAIL_LINES:]]))
    say(console, f"{breach.invariant} broke in schedule {breach.index}: {breach.detail}")
    say(console, f"full transcript: {file}")
    say(console, f"replay it with: {_replay_command(settings, breach.schedule_seed)}")


def _replay_command(settings: Settings, seed: int) -> str:
    arguments = ["--servers", str(settings.servers), "--schedule-seed", str(seed)]
    if settings.mutant:
        arguments += ["--mutant", settings.mutant]
    if settings.signatures != "ideal":
        arguments += ["--signatures", settings.signatures]
    if settings.wire:
        arguments.append("--wire")
    return command_line("committee", "replay", *arguments)
