"""`fedrfq verify`: check a committee's decisions with nothing but the public keys."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedrfq.audit import (
    Audit,
    AuditedRound,
    AuditFailed,
    Gaps,
    charged_in,
    find_fork,
    find_gaps,
)
from fedrfq.cli.options import Json, run_paths
from fedrfq.cli.terminal import progress, say
from fedrfq.cli.verify_text import gaps_lines, offence_text, show, summary
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

# The exit code when something is not as it was certified, and when all holds but not all is there.
_FAILED = 1
_INCOMPLETE = 3

# The log of one run, and its rounds that were verified.
Log = tuple[Audit, list[AuditedRound]]


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="A run directory, or latest; or the folders of servers and clients.",
            callback=run_paths,
        ),
    ],
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Also check the clients' signatures, and detect and aggregate again.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Check every decision of a committee with nothing but the public keys.

    If a federation was changed, all its runs are checked, from the first. Several folders are
    checked one by one and then against each other: no two may have different results for a round.
    The exit code is 0 only if every round from the first to the last is there and holds, and with
    --recompute was computed anew. It is 1 if a check fails; the message then names the file, byte
    and round. It is 3 if all that is there holds, but no folder has some rounds, or what it takes
    to recompute them.

    Example: fedrfq verify runs/quickstart/20260101-120000-seed0-1a2b3c --recompute
    """
    # All are verified before anything is printed: a failure must be the last word.
    folders: list[list[Log]] = []
    for path in paths:
        folders.append([(audit, _verify(audit, json)) for audit in _audits(path, recompute)])
    for logs in folders:
        for audit, rounds in logs:
            show(audit, rounds)
    gaps = _find_gaps(folders, _last_rounds(paths), recompute)
    if len(folders) > 1:
        _compare(folders, gaps, json)
    elif json:
        _write({**_answer(folders[0]), "complete": not gaps})
    for found in gaps:
        for line in gaps_lines(found):
            say(Console(stderr=True), line)
    if gaps:
        raise typer.Exit(_INCOMPLETE)


def _find_gaps(
    folders: Sequence[list[Log]], last_rounds: dict[bytes, int], recompute: bool
) -> list[Gaps]:
    """Return what is missing of each run in all folders together."""
    logs = _logs_by_run(folders)
    # Of a run that has ended, all logs may be missing.
    found = [
        find_gaps(run, logs.get(run, []), recompute, last_rounds.get(run, 0))
        for run in dict.fromkeys([*last_rounds, *logs])
    ]
    return [gaps for gaps in found if gaps is not None]


def _last_rounds(paths: Sequence[Path]) -> dict[bytes, int]:
    """Return the last round of each run that has ended: its successor was certified in it."""
    from fedrfq.node.membership import epochs

    return {
        epoch.federation.roster.run: epoch.certificate.record.round
        for path in paths
        for epoch in epochs.ended_epochs(path)
    }


def _audits(path: Path, recompute: bool) -> list[Audit]:
    """Return the audits of a folder: the ended runs of the federation, then the present one.

    Each ended run is checked here to have led to the next.
    """
    from fedrfq.federation.reconfiguration import inherited_by
    from fedrfq.node.membership import epochs

    audits = []
    present = Audit(path, recompute)
    previous: epochs.EndedEpoch | None = None
    rounds_before = 0
    for number, epoch in enumerate(epochs.ended_epochs(path), start=1):
        past = path / epochs.PAST / str(number)
        # A party that joined later knows how earlier runs ended, and has no log of them.
        if (past / "audit.log").exists():
            inherited = None
            if previous is not None:
                inherited = inherited_by(previous.federation, previous.outcome, epoch.federation)
            audits.append(Audit(past, recompute, inherited, rounds_before))
        previous = epoch
        rounds_before += epoch.certificate.record.round
    inherited = epochs.inherited_outcome(path, present.federation)
    if inherited is not None:
        present = Audit(path, recompute, inherited, rounds_before)
    return [*audits, present]


def _verify(audit: Audit, json: bool) -> list[AuditedRound]:
    """Return the rounds of a log that can be verified on its own; exit if it cannot."""
    errors = Console(stderr=True)
    rounds = list[AuditedRound]()
    try:
        with progress(errors) as bar:
            task = bar.add_task("verifying", total=audit.expected(), figures="")
            for audited in audit.rounds():
                rounds.append(audited)
                bar.update(task, completed=audited.round)
    except AuditFailed as error:
        place = f"{audit.path / error.file}, byte {error.offset}, round {error.round}"
        say(errors, f"verification failed: {place}: {error.why}")
        if json:
            _write({"holds": False, **vars(error)})
        raise typer.Exit(_FAILED) from None
    return rounds


def _compare(folders: Sequence[list[Log]], gaps: list[Gaps], json: bool) -> None:
    """Compare the logs of several parties, run by run; a party may have come later, or left."""
    answer: dict[str, Any] = {"logs": [_answer(logs) for logs in folders]}
    shared = [logs for logs in _logs_by_run(folders).values() if len(logs) > 1]
    if not shared:
        raise UserError(
            "these logs are of different runs, so there is nothing to compare: "
            "verify them one by one"
        )
    for logs in shared:
        _check_fork(logs, answer, json)
    # A run that only some of the parties have seen has no round in common to all.
    in_all = [logs for logs in shared if len(logs) == len(folders)]
    common = sum(len(_common_rounds(logs)) for logs in in_all)
    say(Console(), f"{len(folders)} logs agree; {common} rounds are in all of them")
    evidence = []
    for logs in shared:
        for (who, what), paths in charged_in(logs).items():
            say(Console(), offence_text(who, what, len(paths), len(logs)))
            evidence.append({"who": who, "what": what, "logs": paths})
    if json:
        _write(
            {
                "holds": True,
                "complete": not gaps,
                "common": common,
                "evidence": evidence,
                **answer,
            }
        )


def _logs_by_run(folders: Sequence[list[Log]]) -> dict[bytes, list[Log]]:
    """Return the logs of each run."""
    runs: dict[bytes, list[Log]] = {}
    for logs in folders:
        for log in logs:
            runs.setdefault(log[0].rules.run, []).append(log)
    return runs


def _check_fork(logs: list[Log], answer: dict[str, Any], json: bool) -> None:
    """Exit if two logs of one run have different results for the same round."""
    found = find_fork(logs)
    if found is None:
        return
    say(Console(stderr=True), f"verification failed: {found.why()}")
    if json:
        failure = {
            "holds": False,
            "round": found.one[1].round,
            "why": found.why(),
            "both": found.both,
        }
        _write({**failure, **answer})
    raise typer.Exit(_FAILED)


def _common_rounds(logs: Sequence[Log]) -> set[int]:
    return set.intersection(*({audited.round for audited in rounds} for _, rounds in logs))


def _answer(logs: Sequence[Log]) -> dict[str, Any]:
    """Return one folder as plain values: its present run, and the earlier ones under "before"."""
    *before, present = [summary(*log) for log in logs]
    if before:
        present["before"] = before
    return present


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(to_json(answer) + "\n")
