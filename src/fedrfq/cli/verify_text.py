"""What is said of a log that holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fedrfq.audit import Audit, Audited
from fedrfq.cli.terminal import say

_NAMED = 10  # pieces of evidence that the table names


def summary(audit: Audit, rounds: Sequence[Audited]) -> dict[str, Any]:
    """As a table of plain values."""
    found = {
        "holds": True,
        "run": audit.rules.run.hex(),
        "servers": audit.federation.roster.n,
        "rounds": len(rounds),
        "expected": audit.expected(),
        "recomputed": audit.recompute,
        "view_changes": sum(audited.certificate.view for audited in rounds),
        "evidence": [vars(charge) for audited in rounds for charge in audited.charges],
    }
    if audit.network is None:
        return found
    return found | {
        "path": str(audit.path),
        "alone": [audited.round for audited in rounds if audited.entries is None],
        "untraced": [
            audited.round
            for audited in rounds
            if audited.entries is not None and not audited.traced
        ],
        "missing": sorted(
            set(range(1, rounds[-1].round if rounds else 1)) - {audited.round for audited in rounds}
        ),
        "recomputed": [audited.round for audited in rounds if audited.recomputed],
    }


def show(audit: Audit, rounds: Sequence[Audited]) -> None:
    """As a table to read, and what the log does not have."""
    found = summary(audit, rounds)
    roster = audit.federation.roster
    table = Table("what", Column("found", overflow="fold"), show_header=False)
    table.add_row("run", found["run"])
    table.add_row(
        "committee",
        f"{roster.n} servers, {roster.f} of them may lie; {roster.quorum} signed each round",
    )
    done = audit.recompute and audit.network is None
    table.add_row("rounds", f"{len(rounds)} of {audit.expected()}{', recomputed' if done else ''}")
    table.add_row("view changes", str(found["view_changes"]))
    table.add_row("evidence", _evidence(found["evidence"]))
    console = Console(markup=False)
    console.print(table)
    for line in _unseen(audit, found):
        say(console, line)
    say(console, f"{audit.path} holds")


def _unseen(audit: Audit, found: dict[str, Any]) -> list[str]:
    """What the party whose log it is has not seen, and what could be computed anew of what it has."""
    if audit.network is None:
        return []
    total = f"of {found['rounds']} rounds"
    anew = found["recomputed"]
    said = {
        "alone": f"{total} by certificate alone: sets and lists were not seen by this party",
        "untraced": f"{total} without the lists that their sets follow from",
        "missing": "rounds of which this party has no certificate",
    }
    lines = [
        f"{len(found[key])} {text} ({_ranges(found[key])})"
        for key, text in said.items()
        if found[key]
    ]
    return lines + (
        [f"{len(anew)} {total} recomputed ({_ranges(anew) or 'no uploads are here'})"]
        if audit.recompute
        else []
    )


def _ranges(rounds: Sequence[int]) -> str:
    """Ascending numbers, those in a row as one."""
    found: list[list[int]] = []
    for round_ in rounds:
        if found and found[-1][-1] == round_ - 1:
            found[-1] = [found[-1][0], round_]
        else:
            found.append([round_])
    return ", ".join("–".join(map(str, pair)) for pair in found)


def _evidence(found: list[dict[str, Any]]) -> str:
    """Whom it convicts, by how often; none: nobody was caught."""
    against: dict[str, list[int]] = {}
    for charge in found:
        against.setdefault(f"{charge['who']}, {charge['what']}", []).append(charge["round"])
    lines = [
        f"{who}: {len(rounds)} ×, first in round {rounds[0]}" for who, rounds in against.items()
    ]
    if len(lines) > _NAMED:
        more = [f"… and against {len(lines) - _NAMED} more"]
    else:
        more = []
    return "\n".join(lines[:_NAMED] + more) or "none"
