"""`fedrfq evidence`: who provably misbehaved, and the two messages that show it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedrfq.audit import Audit, Audited, Failed, fork
from fedrfq.audit.log import Auditor
from fedrfq.cli.terminal import say
from fedrfq.consensus.messages import Evidence, Message
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation
from fedrfq.federation.round_log import accusation, pack, unpack
from fedrfq.files.atomic import write_atomically
from fedrfq.simulator.message_text import shown

_LONGEST = 1 << 28  # bytes of a file that is read as a whole


def evidence(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR…",
            help="A run's directory or parties' folders; FEDERATION.toml with --check.",
        ),
    ],
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the proofs to this file, for others.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Check proofs that somebody else has written."),
    ] = None,
) -> None:
    """Print provable misbehaviour: the party, the round, and two messages it signed that nobody honest signs both.

    What is exported proves itself: anyone who has the federation's file can check it, and needs to trust nobody.

    Example: fedrfq evidence server-0 --export proofs.bin, and then: fedrfq evidence --check proofs.bin federation.toml
    """
    if check is not None:
        auditor, found = _checked(check, paths[0])
    else:
        auditor, found = _collected(paths)
    console = Console()
    for message in found:
        _show(console, auditor, message)
    say(console, f"{len(found)} pieces of evidence" if found else "no evidence: nobody was caught")
    if export is not None:
        write_atomically(export, pack(found))
        say(console, f"wrote {export}")


def _collected(paths: list[Path]) -> tuple[Auditor, list[Message]]:
    """From the logs of all, and from what two of them certify differently."""
    audits = [Audit(path) for path in paths]
    if len({audit.rules.run for audit in audits}) > 1:
        raise UserError("these folders are of different runs: name them one by one")
    found = [message for audit in audits for message in [*audit.evidence(), *_logged(audit)]]
    if (
        len(audits) > 1
        and (split := fork([(audit, _holding(audit)) for audit in audits])) is not None
    ):
        found += split.evidence
    return audits[0].auditor, _once(found)


def _holding(audit: Audit) -> list[Audited]:
    """The rounds up to where a log holds."""
    rounds: list[Audited] = []
    with suppress(Failed, UserError):
        rounds.extend(audit.rounds())
    return rounds


def _logged(audit: Audit) -> list[Message]:
    """What is in a server's durable log, and not yet written down with a round."""
    from fedrfq.node.storage.log_reader import FOLDER, load

    with suppress(UserError, OSError):  # it may be damaged, or just be rewritten
        messages = load(audit.path / FOLDER, audit.rules.run).messages
        return [m for m in messages if isinstance(m.body, Evidence) and audit.rules.proves(m.body)]
    return []


def _once(found: Iterable[Message]) -> list[Message]:
    """One of each charge, by round and party."""
    first: dict[tuple[int, ...], Message] = {}
    for message in found:
        assert isinstance(message.body, Evidence)
        party, one, other, round_ = accusation(message.body)
        first.setdefault((round_, party, one, other), message)
    return [message for _, message in sorted(first.items())]


def _checked(proofs: Path, file: Path) -> tuple[Auditor, list[Message]]:
    federation = Federation.read(_bytes(file).decode(errors="replace"), str(file))
    rules = Rules(federation.roster)
    try:
        found = unpack(_bytes(proofs))
    except Refused as error:
        raise UserError(f"{proofs} is not what --export writes: {error}") from error
    for at, message in found:
        if not isinstance(message.body, Evidence) or not rules.proves(message.body):
            raise UserError(f"{proofs}, byte {at}: this proves nothing against a party of {file}")
    return Auditor(federation, rules, partial=True), [message for _, message in found]


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > _LONGEST:
            raise UserError(f"{path} is not such a file")
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def _show(console: Console, auditor: Auditor, message: Message) -> None:
    body = message.body
    assert isinstance(body, Evidence)
    party, one, other, round_ = accusation(body)
    say(console, f"round {round_}: {auditor.name(party)} signed {one.name} and {other.name}")
    for signed in (body.first, body.second):
        say(
            console,
            f"    {shown(signed)}  digest {signed.digest.hex()[:16]}  signature {signed.signature.hex()[:16]}",
        )
