"""`fedrfq evidence`: which parties provably misbehaved, and the two messages that prove it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.audit import Audit, AuditedRound, AuditFailed, find_fork
from fedrfq.audit.log import Auditor
from fedrfq.cli.terminal import count, say
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import accusation, contradiction, pack, unpack
from fedrfq.files import regular
from fedrfq.files.atomic import write_atomically
from fedrfq.simulator.message_text import readable

# Proofs are read as a whole, so a file of somebody else's must not exhaust the memory.
_MAX_FILE_BYTES = 1 << 28
_HEX_SHOWN = 16


def evidence(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="A run directory, or the folders of parties. With --check: FEDERATION.toml.",
        ),
    ],
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the proofs to this file, to give to others."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check proofs that somebody else has exported."),
    ] = None,
) -> None:
    """Show which parties provably misbehaved.

    Prints the party, the round, and two messages signed by the party of which an honest one signs
    at most one. Exported proofs stand for themselves: whoever has the federation.toml can check
    them with `fedrfq evidence --check proofs.bin federation.toml` and needs to trust nobody.

    Example: fedrfq evidence server-0 --export proofs.bin
    """
    if check is not None:
        auditor, messages = _check(check, paths[0])
    else:
        auditor, messages = _collect(paths)
    console = Console()
    for message in messages:
        _show(console, auditor, message)
    if messages:
        say(console, count(len(messages), "piece of evidence", "pieces of evidence"))
    else:
        say(console, "no evidence: nobody was caught")
    if export is not None:
        write_atomically(export, pack(messages))
        say(console, f"wrote {export}")


def _collect(paths: list[Path]) -> tuple[Auditor, list[Message]]:
    """Return the evidence in these logs, and that of two logs which certify different values."""
    audits = [Audit(path) for path in paths]
    if len({audit.rules.run for audit in audits}) > 1:
        raise UserError("these folders are of different runs: give those of one run at a time")
    messages = []
    for audit in audits:
        messages += [*audit.evidence(), *_evidence_in_server_log(audit)]
    if len(audits) > 1:
        split = find_fork([(audit, _verifiable_rounds(audit)) for audit in audits])
        if split is not None:
            messages += split.evidence
    return audits[0].auditor, _without_repeats(messages)


def _verifiable_rounds(audit: Audit) -> list[AuditedRound]:
    """Return the rounds up to the first that cannot be verified."""
    rounds: list[AuditedRound] = []
    with suppress(AuditFailed, UserError):
        rounds.extend(audit.rounds())
    return rounds


def _evidence_in_server_log(audit: Audit) -> list[Message]:
    """Return evidence in a server's write-ahead log that is not in the audit log yet."""
    from fedrfq.node.storage.log_reader import FOLDER, load

    # The log may be damaged, or a running server may be rewriting it; the audit log still counts.
    with suppress(UserError, OSError):
        messages = load(audit.path / FOLDER, audit.rules.run).messages
        return [m for m in messages if isinstance(m.body, Evidence) and audit.rules.proves(m.body)]
    return []


def _without_repeats(messages: Iterable[Message]) -> list[Message]:
    """Return the first proof of each offence, ordered by round and party."""
    first: dict[tuple[int, ...], Message] = {}
    for message in messages:
        assert isinstance(message.body, Evidence)
        party, one, other, round_ = accusation(message.body)
        # Several parties may hold proofs of the same lie, with different messages.
        first.setdefault((round_, party, one, other), message)
    return [message for _, message in sorted(first.items())]


def _check(proofs: Path, file: Path) -> tuple[Auditor, list[Message]]:
    """Return the proofs in a file, all of which must convict a party of the federation."""
    federation = Federation.read(_read(file).decode(errors="replace"), str(file))
    rules = Rules(federation.roster)
    try:
        placed = unpack(_read(proofs))
    except Refused as error:
        raise UserError(
            f"{proofs} is not what --export writes ({error}): ask for the file again"
        ) from error
    for offset, message in placed:
        if not isinstance(message.body, Evidence) or not rules.proves(message.body):
            raise UserError(
                f"{proofs}, byte {offset}: this proves nothing against a party of {file}"
            )
    return Auditor(federation, rules, partial=True), [message for _, message in placed]


def _read(path: Path) -> bytes:
    try:
        return regular.read_bytes(path, _MAX_FILE_BYTES, links=True)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path") from error


def _show(console: Console, auditor: Auditor, message: Message) -> None:
    body = message.body
    assert isinstance(body, Evidence)
    party, one, other, round_ = accusation(body)
    say(console, f"round {round_}: {auditor.name(party)} signed {contradiction(one, other)}")
    for signed in (body.first, body.second):
        digest = signed.digest.hex()[:_HEX_SHOWN]
        signature = signed.signature.hex()[:_HEX_SHOWN]
        say(console, f"    {readable(signed)}  digest {digest}  signature {signature}")
