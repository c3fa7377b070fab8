"""`fedrfq committee fuzz`, `replay`, `explore`: try to break the committee, look at one schedule, explore a small model."""

from __future__ import annotations

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

from fedrfq.cli.fuzz_tables import exercised, explored, figures, verdicts
from fedrfq.cli.terminal import INTERRUPTED, progress, say, terminated_as_interrupt
from fedrfq.consensus.roster import MOST_SERVERS
from fedrfq.errors import UserError
from fedrfq.files.atomic import write_atomically
from fedrfq.files.strict_json import to_json
from fedrfq.simulator.fuzz.campaign import Breach, Campaign
from fedrfq.simulator.fuzz.coverage import missing
from fedrfq.simulator.fuzz.explorer import explore as search
from fedrfq.simulator.fuzz.mutant_hunt import Hunt
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.simulator.fuzz.trial import SIGNATURES, Settings, transcript
from fedrfq.simulator.fuzz.workers import cores, workers

# exit codes: an invariant broke or a mutant was not caught; something was never exercised
BROKEN = 1
NEVER = 3
_JUDGED = 1_000  # schedules from which on a campaign must have exercised everything
_TAIL = 40  # lines of a transcript that are printed
_WIDTH = 160  # of what is printed to a file

Servers = Annotated[int, typer.Option(min=4, max=MOST_SERVERS, help="Size of the committee.")]
Signatures = Annotated[str, typer.Option(help="ideal (fast), or ed25519.")]
Wire = Annotated[bool, typer.Option("--wire", help="Encode and decode every message on its way.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="End with one JSON object on the last line of standard output."),
]


def fuzz(
    servers: Servers = 4,
    schedules: Annotated[
        int, typer.Option(min=1, help="How many; with --mutants, of each at most.")
    ] = 1_000,
    seed: Annotated[int, typer.Option(help="All schedules follow from it.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; as many as cores unless given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A JSON file to write to, and to go on from.")
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Break the replica on purpose: each must be caught.")
    ] = False,
    wire: Wire = False,
    signatures: Signatures = "ideal",
    json: Json = False,
) -> None:
    """Run random schedules of crashes, losses and lies against the committee, and check every invariant at every step.

    With --out the same command goes on after Ctrl-C, a crash or kill -9. What is found does not depend on --jobs.
    Exit code 1: an invariant broke (the schedule is printed, and how to replay it), or a mutant was not caught.
    Exit code 3: in 1,000 schedules or more, something that must be exercised never was.

    Example: fedrfq committee fuzz --servers 4 --schedules 10000 --seed 1 --out fuzz4.json
    """
    settings = _settings(servers, schedules, seed, signatures, wire)
    (_hunt if mutants else _fuzz)(settings, jobs or cores(), out, json)


def replay(
    schedule_seed: Annotated[int, typer.Option(min=0, help="As printed with a broken invariant.")],
    servers: Servers = 4,
    mutant: Annotated[
        str | None, typer.Option(help="The broken replica to run; the true one unless given.")
    ] = None,
    wire: Wire = False,
    signatures: Signatures = "ideal",
) -> None:
    """Print what happens in one schedule, step by step. Exit code 1: an invariant broke.

    Example: fedrfq committee replay --servers 4 --schedule-seed 1
    """
    text, broken = transcript(_settings(servers, 1, 0, signatures, wire, mutant), schedule_seed)
    sys.stdout.write(text)
    raise typer.Exit(BROKEN if broken else 0)


def explore(
    depth: Annotated[int, typer.Option(min=1, help="How many steps deep.")],
    views: Annotated[int, typer.Option(min=0, help="The highest view.")] = 1,
    json: Json = False,
) -> None:
    """Try every order of events of one round among four servers, one of them faulty. Exit code 1: an invariant broke.

    Example: fedrfq committee explore --depth 6 --views 1
    """
    errors = Console(stderr=True)
    console = _console()
    with _interrupted("stopped; nothing is kept"), errors.status("exploring") as status:
        found = search(depth, views, progress=lambda so_far: status.update(explored(so_far)))
    say(console, explored(found))
    if found.violation:
        say(console, "\n".join([*found.trace, f"broken: {found.violation}"]))
    if json:
        if found.violation:
            broken = str(found.violation)
        else:
            broken = None
        sys.stdout.write(
            to_json({**asdict(replace(found, violation=None)), "violation": broken}) + "\n"
        )
    raise typer.Exit(BROKEN if found.violation else 0)


def _settings(
    servers: int, schedules: int, seed: int, signatures: str, wire: bool, mutant: str | None = None
) -> Settings:
    if signatures not in SIGNATURES:
        raise UserError(f"--signatures is one of {', '.join(SIGNATURES)}, not '{signatures}'")
    if mutant is not None and mutant not in MUTANTS:
        raise UserError(
            f"--mutant is one of {', '.join(MUTANTS) or 'none, as this program is compiled'}, not '{mutant}'"
        )
    SIGNATURES[signatures]()  # refused here, not in the workers, where its library is missing
    return Settings(servers, schedules, seed, mutant, signatures, wire)


def _fuzz(settings: Settings, jobs: int, out: Path | None, json: bool) -> None:
    campaign = Campaign(settings, out)
    before = campaign.tally
    seconds = campaign.seconds
    with _driving(jobs, out) as (pool, show):
        show(completed=before.schedules, total=settings.schedules)
        for tally in campaign.advance(pool, jobs):
            show(
                completed=tally.schedules,
                figures=figures(before, tally, campaign.seconds - seconds),
            )
    console = _console()
    tally = campaign.tally
    console.print(exercised(tally))
    if tally.schedules > before.schedules:
        say(
            console,
            f"schedules: {figures(before, tally, campaign.seconds - seconds)} with {jobs} processes",
        )
    if tally.breach:
        _show_breach(console, settings, tally.breach, out)
    if json:
        sys.stdout.write(to_json(campaign.record()) + "\n")
    if tally.schedules >= _JUDGED:
        never = missing(tally.exercised)
    else:
        never = []
    raise typer.Exit(BROKEN if tally.breach else NEVER if never else 0)


def _hunt(settings: Settings, jobs: int, out: Path | None, json: bool) -> None:
    """With --out, a table in Markdown stands beside the JSON."""
    if not MUTANTS:
        raise UserError(
            "mutants are made of interpreted replicas: install without FEDRFQ_COMPILE=1 to run them"
        )
    hunt = Hunt(settings, out)
    with _driving(jobs, out) as (pool, show):
        for name, survived in hunt.advance(pool, jobs):
            show(
                completed=survived,
                total=settings.schedules,
                description=name,
                figures=f"{len(hunt.verdicts)} caught",
            )
    sheet = verdicts(hunt)
    console = _console()
    console.print(sheet.printed())
    say(console, sheet.note)
    if out:
        write_atomically(out.with_suffix(".md"), sheet.markdown().encode())
    if json:
        sys.stdout.write(to_json(hunt.record()) + "\n")
    raise typer.Exit(0 if all(verdict.caught() for verdict in hunt.verdicts.values()) else BROKEN)


@contextmanager
def _driving(jobs: int, out: Path | None) -> Iterator[tuple[Executor, Callable[..., None]]]:
    """Processes, and a way to show how far they are."""
    if out:
        goes_on = "stopped; the same command goes on"
    else:
        goes_on = "stopped; with --out FILE the same command would go on"
    with (
        _interrupted(goes_on),
        workers(jobs) as pool,
        progress(Console(stderr=True), "schedules") as bar,
    ):
        yield pool, partial(bar.update, bar.add_task("fuzzing", figures=""))


@contextmanager
def _interrupted(message: str) -> Iterator[None]:
    """Ctrl-C and SIGTERM end the command with a word on how to go on."""
    try:
        with terminated_as_interrupt():
            yield
    except KeyboardInterrupt:
        say(Console(stderr=True), message)
        raise typer.Exit(INTERRUPTED) from None


def _show_breach(console: Console, settings: Settings, breach: Breach, out: Path | None) -> None:
    """What broke, the end of the transcript, where the whole one is, and how to see it again."""
    text, _ = transcript(settings, breach.schedule_seed)
    file = (out.parent if out else Path()) / f"violation-{breach.schedule_seed}.txt"
    write_atomically(file, text.encode())
    head, _, story = text.partition("\n\n")
    say(console, "\n".join([head, "", "…", *story.splitlines()[-_TAIL:]]))
    say(console, f"{breach.invariant} broke in schedule {breach.index}: {breach.detail}")
    say(console, f"whole transcript: {file}")
    say(console, f"replay it with: {_replay(settings, breach.schedule_seed)}")


def _replay(settings: Settings, seed: int) -> str:
    more = {
        "--mutant": settings.mutant,
        "--signatures": settings.signatures if settings.signatures != "ideal" else None,
    }
    options = "".join(f" {option} {value}" for option, value in more.items() if value)
    if settings.wire:
        wire = " --wire"
    else:
        wire = ""
    return f"fedrfq committee replay --servers {settings.servers} --schedule-seed {seed}{options}{wire}"


def _console() -> Console:
    console = Console()
    if console.is_terminal:
        return console
    return Console(width=_WIDTH)
