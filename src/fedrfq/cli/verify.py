"""`fedrfq verify`: whether a run's decisions hold, by the public keys alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedrfq.audit import Audit, Audited, Failed, fork
from fedrfq.cli.terminal import progress, say
from fedrfq.cli.verify_text import show, summary
from fedrfq.errors import UserError
from fedrfq.files.strict_json import to_json

_FAILED = 1  # the exit code when something does not hold
Log = tuple[Audit, list[Audited]]


def verify(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…", help="A run's directory, or the folders of servers and clients."
        ),
    ],
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Check the clients' signatures, detect and aggregate anew, and compare.",
        ),
    ] = False,
    json: Annotated[
        bool,
        typer.Option(
            "--json", help="End with one JSON object on the last line of standard output."
        ),
    ] = False,
) -> None:
    """Check every decision of a committee with the public keys alone; point at the first byte that does not hold.

    Of a federation that was changed, all runs from the first on. Several folders are checked each by itself, and then
    against each other: no two may have different values of a round.

    Example: fedrfq verify runs/quickstart/20260101-120000-seed0-1a2b3c --recompute
    """
    folders = [
        [(audit, _verified(audit, json)) for audit in _audits(path, recompute)] for path in paths
    ]
    for log in (log for logs in folders for log in logs):
        show(*log)
    if len(folders) > 1:
        _compare(folders, json)
    elif json:
        _write(_answer(folders[0]))


def _audits(path: Path, recompute: bool) -> list[Audit]:
    """Of the runs whose end led to the present one, which is found to hold here, and of that one."""
    from fedrfq.federation.reconfiguration import inherited_by
    from fedrfq.node.membership import epochs

    audits = []
    present = Audit(path, recompute)
    before: epochs.EndedEpoch | None = None
    for number, run in enumerate(epochs.ended_epochs(path), start=1):
        past = path / epochs.PAST / str(number)
        if (
            past / "audit.log"
        ).exists():  # else it is a newcomer's, who has how it ended, and no more
            if before is not None:
                left = inherited_by(before.federation, before.outcome, run.federation)
            else:
                left = None
            audits.append(Audit(past, recompute, left))
        before = run
    heritage = epochs.inherited_outcome(path, present.federation)
    return [*audits, present if heritage is None else Audit(path, recompute, heritage)]


def _verified(audit: Audit, json: bool) -> list[Audited]:
    """The rounds of a log that holds by itself; else the command ends here."""
    errors = Console(stderr=True)
    rounds = list[Audited]()
    try:
        with progress(errors) as bar:
            task = bar.add_task("verifying", total=audit.expected(), figures="")
            for audited in audit.rounds():
                rounds.append(audited)
                bar.update(task, completed=audited.round)
    except Failed as error:
        say(
            errors,
            f"does not hold: {audit.path / error.file}, byte {error.offset}, round {error.round}: {error.why}",
        )
        if json:
            _write({"holds": False, **vars(error)})
        raise typer.Exit(_FAILED) from None
    return rounds


def _compare(folders: Sequence[list[Log]], json: bool) -> None:
    """Run by run: a party may have come later, or left."""
    runs: dict[bytes, list[Log]] = {}
    for log in (log for logs in folders for log in logs):
        runs.setdefault(log[0].rules.run, []).append(log)
    shared = [logs for logs in runs.values() if len(logs) > 1]
    answer = {"logs": [_answer(logs) for logs in folders]}
    if not shared:
        raise UserError("these logs are of different runs: there is nothing to compare")
    for logs in shared:
        if (found := fork(logs)) is not None:
            say(Console(stderr=True), f"does not hold: {found.why()}")
            if json:
                _write(
                    {
                        "holds": False,
                        "round": found.one[1].round,
                        "why": found.why(),
                        "both": found.both,
                        **answer,
                    }
                )
            raise typer.Exit(_FAILED)
    whole = [logs for logs in shared if len(logs) == len(folders)]
    common = sum(
        len(set.intersection(*({audited.round for audited in rounds} for _, rounds in logs)))
        for logs in whole
    )
    say(Console(), f"{len(folders)} logs agree; {common} rounds are in all of them")
    if json:
        _write({"holds": True, "common": common, **answer})


def _answer(logs: Sequence[Log]) -> dict[str, Any]:
    """Of one folder: of its present run, and of those before."""
    *before, present = [summary(*log) for log in logs]
    return present | ({"before": before} if before else {})


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(to_json(answer) + "\n")
