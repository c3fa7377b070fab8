"""What `fedrfq verify` says about a log that it has verified, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from fedrfq.audit import Audit, AuditedRound, Gaps
from fedrfq.cli.terminal import count, say
from fedrfq.federation import decisions
from fedrfq.privacy.claim import MECHANISM
from fedrfq.privacy.settings import Privacy

# Pieces of evidence that the table names before it only counts the rest.
_MAX_NAMED = 10


def summary(audit: Audit, rounds: Sequence[AuditedRound]) -> dict[str, Any]:
    """Return what was verified as plain values, which `--json` prints."""
    result = {
        "holds": True,
        "run": audit.rules.run.hex(),
        "servers": audit.federation.roster.n,
        "rounds": len(rounds),
        "expected": audit.expected(),
        "recomputed": audit.recompute,
        "view_changes": sum(audited.certificate.view for audited in rounds),
        "evidence": [vars(charge) for audited in rounds for charge in audited.charges],
    }
    if (agreed := _privacy(audit)) is not None:
        result["privacy"] = vars(agreed)
    if audit.recompute:
        result["reduced"] = {a.round: dict(a.reduced) for a in rounds if a.reduced}
        result["taken_back"] = {a.round: dict(a.taken_back) for a in rounds if a.taken_back}
    # A simulated committee sees everything; a party on a network may have missed something.
    if audit.network is not None:
        result |= _party_summary(audit, rounds)
    return result


def _party_summary(audit: Audit, rounds: Sequence[AuditedRound]) -> dict[str, Any]:
    with_entries = [audited for audited in rounds if audited.inputs is not None]
    numbers = [audited.round for audited in rounds]
    last = max(numbers, default=1)
    return {
        "path": str(audit.path),
        "alone": [audited.round for audited in rounds if audited.inputs is None],
        "untraced": [audited.round for audited in with_entries if not audited.traced],
        "missing": sorted(set(range(1, last)) - set(numbers)),
        "recomputed": [audited.round for audited in rounds if audited.recomputed],
    }


def show(audit: Audit, rounds: Sequence[AuditedRound]) -> None:
    """Print what was verified as a table, and name what the log does not contain."""
    result = summary(audit, rounds)
    roster = audit.federation.roster
    committee = f"{roster.n} servers, {roster.f} may lie; {roster.quorum} signed each round"
    progress = f"{len(rounds)} of {audit.expected()}"
    if audit.recompute and audit.network is None:
        progress += ", recomputed"
    table = Table("label", Column("value", overflow="fold"), show_header=False)
    table.add_row("run", result["run"])
    table.add_row("committee", committee)
    table.add_row("rounds", progress)
    table.add_row("view changes", str(result["view_changes"]))
    table.add_row("evidence", _evidence(result["evidence"]))
    is_known = any(audited.recomputed for audited in rounds)
    if (agreed := _privacy(audit)) is not None:
        table.add_row("privacy", _noise(agreed, is_known))
    if audit.recompute:
        table.add_row("less weight", _reduced(result["reduced"], is_known))
        if audit.federation.task.is_revocable:
            table.add_row("taken back", _taken_back(result["taken_back"]))
    console = Console(markup=False)
    console.print(table)
    for line in _gaps(audit, result):
        say(console, line)
    say(console, f"{audit.path} is verified")


def _privacy(audit: Audit) -> Privacy | None:
    """Return the noise that the members agreed on, if they did."""
    public = audit.federation.task.public
    if public is None:
        return None
    return public.privacy


def _noise(agreed: Privacy, are_checked: bool) -> str:
    text = f"{MECHANISM}: agreed on {agreed.noise:g} × what one {agreed.unit} can change"
    if not are_checked:
        return f"{text}. No upload was checked: that takes --recompute, and the log of a server"
    return (
        f"{text}. All uploads here are on the grid, and no mean is longer than that explains; that"
        " a client really drew its noise no log can show"
    )


def _gaps(audit: Audit, result: dict[str, Any]) -> list[str]:
    """Return a line on each thing that this party has not seen, and on what was recomputed."""
    if audit.network is None:
        return []
    total = f"of {result['rounds']} rounds"
    texts = {
        "alone": f"{total} by certificate alone: this party did not see sets and lists",
        "untraced": f"{total} without the lists that their sets follow from",
        "missing": "rounds of which this party has no certificate",
    }
    lines = []
    for key, text in texts.items():
        if result[key]:
            lines.append(f"{len(result[key])} {text} ({_ranges(result[key])})")
    if audit.recompute:
        recomputed = result["recomputed"]
        which = _ranges(recomputed) or "there are no uploads here"
        lines.append(f"{len(recomputed)} {total} recomputed ({which})")
    return lines


def gaps_lines(gaps: Gaps) -> Iterator[str]:
    """Yield lines on what no log has of a run, and on what cannot be computed anew."""
    texts = []
    if gaps.missing:
        texts.append(f"missing {_ranges(gaps.missing)}")
    if gaps.not_recomputed and gaps.decided_by:
        yield (
            f"not recomputed: run {gaps.run[:12]}… is of {decisions.other(gaps.decided_by)}; with"
            " this program its certificates are verified"
        )
    elif gaps.not_recomputed:
        texts.append(f"not recomputed for want of uploads {_ranges(gaps.not_recomputed)}")
    if not texts:
        return
    yield (
        f"incomplete: all that is there holds, but of the rounds of run {gaps.run[:12]}… are"
        f" {', '.join(texts)}: {_remedy(gaps)}"
    )


def _remedy(gaps: Gaps) -> str:
    others = "verify it together with the folders of other servers"
    if not gaps.newest:
        return others
    again = "they were decided while the logs were read, so verify them again"
    if gaps.all_servers:
        return again
    return f"if rounds go on, {again}; otherwise {others}"


def offence_text(who: str, what: str, number: int, logs: int) -> str:
    """Return a line on an offence, and in how many of the logs there is evidence of it."""
    return f"{who} signed {what}: evidence in {number} of {logs} logs"


def _ranges(rounds: Sequence[int]) -> str:
    """Return ascending numbers with consecutive ones joined, such as "1, 3–5"."""
    ranges: list[list[int]] = []
    for round_ in rounds:
        # The next number extends the latest range to [first, last].
        if ranges and ranges[-1][-1] == round_ - 1:
            ranges[-1] = [ranges[-1][0], round_]
        else:
            ranges.append([round_])
    return ", ".join("–".join(map(str, pair)) for pair in ranges)


def _reduced(rounds: dict[int, dict[str, str]], is_known: bool) -> str:
    """Return in how many rounds clients counted for less, and who did in the last and why."""
    if not is_known:
        # A client's log has nobody's uploads: that is not to be read as nobody's fault.
        return "not known without the uploads"
    if not rounds:
        return "nobody"
    last = max(rounds)
    lines = [f"{name}: {why}" for name, why in rounds[last].items()]
    if len(lines) > _MAX_NAMED:
        lines[_MAX_NAMED:] = [f"… and {len(lines) - _MAX_NAMED} more"]
    return "\n".join([f"in {count(len(rounds), 'round')}; in round {last}:", *lines])


def _taken_back(rounds: dict[int, dict[str, str]]) -> str:
    """Return who took back statistics in which round, and that what remains follows without."""
    lines = []
    for number, taken in rounds.items():
        names = [f"{name} ({what})" for name, what in taken.items()]
        lines.append(f"in round {number}: {', '.join(names)}")
    if not lines:
        return "nothing"
    lines.append("what remains was computed anew from the uploads that are left")
    return "\n".join(lines)


def _evidence(charges: list[dict[str, Any]]) -> str:
    """Return a line for each party and offence, with how often it was caught; or "none"."""
    rounds_of: dict[str, list[int]] = {}
    for charge in charges:
        offence = f"{charge['who']} signed {charge['what']}"
        rounds_of.setdefault(offence, []).append(charge["round"])
    lines = []
    for offence, rounds in rounds_of.items():
        lines.append(f"{offence}: {len(rounds)} ×, first in round {rounds[0]}")
    if len(lines) > _MAX_NAMED:
        lines[_MAX_NAMED:] = [f"… and {len(lines) - _MAX_NAMED} more"]
    return "\n".join(lines) or "none"
