"""What `fedrfq committee fuzz`, `replay` and `explore` do, and what they print."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import typer
from rich.console import Console

from fedrfq.cli.fuzz_tables import coverage_table, explored_text, mutant_sheet, speed_text
from fedrfq.cli.terminal import command_line, interruptible, progress, say, wide_console
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
# Lines that are printed of the transcript of a broken schedule.
_TAIL_LINES = 40


def settings(
    servers: int,
    schedules: int,
    seed: int,
    *,
    signatures: str,
    wire: bool,
    mutant: str | None = None,
) -> Settings:
    """Return the settings of a campaign, or say which one is not known."""
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


def replay(settings: Settings, schedule_seed: int) -> None:
    """Print what happens in one schedule; exit with BROKEN if an invariant broke."""
    text, broken = transcript(settings, schedule_seed)
    sys.stdout.write(text)
    if broken:
        raise typer.Exit(BROKEN)


def explore(depth: int, views: int, json: bool) -> None:
    """Try every order of events; exit with BROKEN if an invariant broke."""
    errors = Console(stderr=True)
    console = wide_console()
    with interruptible(lambda: "stopped; nothing is kept"), errors.status("exploring") as status:
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


def run(settings: Settings, jobs: int | None, out: Path | None, json: bool) -> None:
    """Run the schedules, and say what they exercised and what broke."""
    jobs = jobs or cores()
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


def hunt_mutants(settings: Settings, jobs: int | None, out: Path | None, json: bool) -> None:
    """Run all mutants; with --out, also write the table as Markdown beside the JSON."""
    jobs = jobs or cores()
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
        interruptible(lambda: message),
        workers(jobs) as pool,
        progress(Console(stderr=True), unit) as bar,
    ):
        yield pool, partial(bar.update, bar.add_task("fuzzing", figures=""))


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
