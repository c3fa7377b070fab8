"""`fedrfq verify`: whether a run's decisions hold, by the public keys alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from fedrfq.audit import Audit, Audited, Failed
from fedrfq.records import to_json
from fedrfq.terminal import progress, say

_FAILED = 1  # the exit code when something does not hold
_NAMED = 10  # pieces of evidence that the table names


def verify(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A run's directory, as printed at its end.")],
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Check the clients' signatures, detect and aggregate anew, and compare.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Check every decision of a run's committee with the public keys alone; point at the first byte that does not hold.

    Example: fedrfq verify runs/quickstart/20260101-120000-seed0-1a2b3c --recompute
    """
    audit, errors = Audit(path, recompute), Console(stderr=True)
    rounds: list[Audited] = []
    try:
        with progress(errors) as bar:
            task = bar.add_task("verifying", total=audit.expected(), figures="")
            for audited in audit.rounds():
                rounds.append(audited)
                bar.update(task, completed=audited.round)
    except Failed as error:
        say(errors, f"does not hold: {path / error.file}, byte {error.offset}, round {error.round}: {error.why}")
        if json:
            _write({"holds": False, **vars(error)})
        raise typer.Exit(_FAILED) from None
    _show(audit, rounds)
    if json:
        _write(_summary(audit, rounds))


def _summary(audit: Audit, rounds: list[Audited]) -> dict[str, Any]:
    return {
        "holds": True,
        "run": audit.rules.run.hex(),
        "servers": audit.charter.roster.n,
        "rounds": len(rounds),
        "expected": audit.expected(),
        "recomputed": audit.recompute,
        "view_changes": sum(audited.certificate.view for audited in rounds),
        "evidence": [vars(charge) for audited in rounds for charge in audited.charges],
    }


def _show(audit: Audit, rounds: list[Audited]) -> None:
    found, roster = _summary(audit, rounds), audit.charter.roster
    table = Table("what", Column("found", overflow="fold"), show_header=False)
    table.add_row("run", found["run"])
    table.add_row("committee", f"{roster.n} servers, {roster.f} of them may lie; {roster.quorum} signed each round")
    table.add_row("rounds", f"{len(rounds)} of {audit.expected()}{', recomputed' if audit.recompute else ''}")
    table.add_row("view changes", str(found["view_changes"]))
    table.add_row("evidence", _evidence(found["evidence"]))
    console = Console(markup=False)
    console.print(table)
    say(console, f"{audit.path} holds")


def _evidence(found: list[dict[str, Any]]) -> str:
    """Whom it convicts, by how often; none: nobody was caught."""
    against: dict[str, list[int]] = {}
    for charge in found:
        against.setdefault(f"{charge['who']}, {charge['what']}", []).append(charge["round"])
    lines = [f"{who}: {len(rounds)} ×, first in round {rounds[0]}" for who, rounds in against.items()]
    more = [f"… and against {len(lines) - _NAMED} more"] if len(lines) > _NAMED else []
    return "\n".join(lines[:_NAMED] + more) or "none"


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(to_json(answer) + "\n")
