"""What a campaign against the committee came to, as tables."""

from __future__ import annotations

from rich.table import Table

from fedrfq.simulator.fuzz.campaign import Tally
from fedrfq.simulator.fuzz.coverage import by_group
from fedrfq.simulator.fuzz.explorer import Explored
from fedrfq.simulator.fuzz.mutant_hunt import Hunt
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.studies.sheets import NOTHING, Sheet


def exercised(tally: Tally) -> Table:
    """How often each thing happened; what never did stands out."""
    table = Table(
        "exercised",
        "",
        "times",
        "a schedule",
        title=f"{tally.schedules:,} schedules, {tally.events:,} events",
    )
    table.title_justify = "left"
    for group, counts in by_group(tally.exercised).items():
        for i, (name, count) in enumerate(counts.items()):
            if count:
                times = (f"{count:,}", f"{count / max(1, tally.schedules):.3f}")
            else:
                times = ("[red]never[/red]", "")
            table.add_row("" if i else group, name, *times)
        table.add_section()
    return table


def figures(before: Tally, after: Tally, seconds: float) -> str:
    """The speed of this call."""
    schedules = after.schedules - before.schedules
    events = after.events - before.events
    return f"{schedules / max(seconds, 1e-9):,.0f}/s, {events / max(seconds, 1e-9):,.0f} events/s"


def explored(found: Explored) -> str:
    """How far an exploration came."""
    if found.complete:
        end = "all there is"
    else:
        end = "more lies deeper"
    counts = f"{found.states:,} states, {found.transitions:,} transitions, {found.decided:,} states with a decision"
    return f"depth {found.depth}, views 0 to {found.view}: {counts}; {end}; {found.seconds:,.1f} s"


def verdicts(hunt: Hunt) -> Sheet:
    """A line a mutant."""
    rows = []
    for verdict in hunt.verdicts.values():
        fate = verdict.invariant or "nothing: it survived"
        if verdict.invariant and not verdict.caught():
            fate += (
                f" (the true replica breaks {verdict.true_breaks})"
                if verdict.true_breaks
                else " (not expected)"
            )
        about = MUTANTS[verdict.mutant].about
        survived = f"{verdict.survived:,}"
        rows.append(
            (
                verdict.mutant,
                about,
                fate,
                str(verdict.servers),
                survived,
                str(verdict.schedule_seed or NOTHING),
            )
        )
    header = (
        "mutant",
        "what is broken",
        "caught by",
        "servers",
        "schedules survived",
        "schedule seed",
    )
    caught = sum(verdict.caught() for verdict in hunt.verdicts.values())
    if caught == len(rows):
        passed = "the true replica passes every schedule that caught one"
    else:
        passed = "not all is well"
    limit = f"seed {hunt.settings.seed}, at most {hunt.settings.schedules:,} schedules each"
    note = f"{caught} of {len(MUTANTS)} mutants caught ({limit}); {passed}."
    return Sheet("mutants", header, tuple(rows), note, labels=3)
