"""The tables and lines that the fuzzing commands print."""

from __future__ import annotations

from rich.table import Table

from fedrfq.simulator.fuzz.campaign import Tally
from fedrfq.simulator.fuzz.coverage import by_group
from fedrfq.simulator.fuzz.explorer import Explored
from fedrfq.simulator.fuzz.mutant_hunt import Hunt, MutantVerdict
from fedrfq.simulator.fuzz.mutants import MUTANTS
from fedrfq.studies.sheets import NOTHING, Sheet


def coverage_table(tally: Tally) -> Table:
    """Return how often each thing was exercised; what never was stands out in red."""
    table = Table(
        "group",
        "exercised",
        "times",
        "per schedule",
        title=f"{tally.schedules:,} schedules, {tally.events:,} events",
    )
    table.title_justify = "left"
    for group, counts in by_group(tally.exercised).items():
        label = group
        for name, count in counts.items():
            if count:
                per_schedule = f"{count / max(1, tally.schedules):.3f}"
                table.add_row(label, name, f"{count:,}", per_schedule)
            else:
                table.add_row(label, name, "[red]never[/red]", "")
            # Only the first row of a group names it.
            label = ""
        table.add_section()
    return table


def speed_text(before: Tally, after: Tally, seconds: float) -> str:
    """Return how many schedules and events ran per second since `before`."""
    # Right after the start no time has passed yet.
    seconds = max(seconds, 1e-9)
    schedules = (after.schedules - before.schedules) / seconds
    events = (after.events - before.events) / seconds
    return f"{schedules:,.0f}/s, {events:,.0f} events/s"


def explored_text(found: Explored) -> str:
    """Return how far an exploration has come."""
    end = "more states lie deeper"
    if found.complete:
        end = "there are no more states"
    counts = ", ".join(
        (
            f"{found.states:,} states",
            f"{found.transitions:,} transitions",
            f"{found.decided:,} states with a decision",
        )
    )
    return f"depth {found.depth}, views 0 to {found.view}: {counts}; {end}; {found.seconds:,.1f} s"


def mutant_sheet(hunt: Hunt) -> Sheet:
    """Return a table with a line for each mutant: what caught it, and after how many schedules."""
    rows = [_mutant_row(verdict) for verdict in hunt.verdicts.values()]
    caught = sum(verdict.caught() for verdict in hunt.verdicts.values())
    conclusion = 'see the column "caught by" for what is wrong'
    if caught == len(rows):
        conclusion = "the real replica passes every schedule that caught one"
    schedules = sum(verdict.schedules for verdict in hunt.verdicts.values())
    limit = (
        f"seed {hunt.settings.seed}, {schedules:,} schedules in all, "
        f"at most {hunt.settings.schedules:,} each"
    )
    return Sheet(
        title="mutants",
        header=(
            "mutant",
            "what is broken",
            "caught by",
            "servers",
            "schedules",
            "schedule seed",
        ),
        rows=tuple(rows),
        note=f"{caught} of {len(MUTANTS)} mutants caught ({limit}); {conclusion}.",
        labels=3,
    )


def _mutant_row(verdict: MutantVerdict) -> tuple[str, ...]:
    return (
        verdict.mutant,
        MUTANTS[verdict.mutant].about,
        _caught_by(verdict),
        str(verdict.servers),
        f"{verdict.schedules:,}",
        str(verdict.schedule_seed or NOTHING),
    )


def _caught_by(verdict: MutantVerdict) -> str:
    """Return the invariant that a mutant broke, and why that does not count if it does not."""
    if verdict.true_breaks:
        return f"{verdict.invariant} (the real replica breaks {verdict.true_breaks})"
    if verdict.invariant:
        return verdict.invariant
    if verdict.unexpected:
        return f"nothing expected; another invariant broke {verdict.unexpected:,} times"
    return "nothing: it survived"
