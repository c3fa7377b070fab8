"""What must hold of a round's entry in bodies.bin: clients signed the uploads, and what was certified follows from them."""

from __future__ import annotations

from fedrfq.audit.location import Misplaced, at
from fedrfq.audit.log import Audited, Auditor
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import Entry, Part, PartKind, Upload, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import OUTCOME, PlacedMessage, outcome, unpack


def recomputed(
    auditor: Auditor,
    application: PrototypeApplication,
    audited: Audited,
    before: Outcome | None,
    payload: bytes,
) -> tuple[Outcome | None, bool]:
    """The round's outcome, and whether it was made anew from its uploads; Misplaced where that is not what was certified. Of
    a partial log, it may be the certified one, or none, for want of uploads or of what was before."""
    with at():
        messages = unpack(payload)
    uploads, parts = _shape(auditor, audited, messages)
    taken = []
    for one, named in zip(uploads, audited.entries or (), strict=False):
        with at(one):
            taken.append(_upload(auditor.rules, application, audited.round, one, named))
    record = audited.certificate.record
    due = dict(zip(OUTCOME, (record.globals_, record.verdicts, record.state), strict=True))
    for one in parts:
        with at(one):
            _check_part(auditor.rules, audited.round, one, due)
    if before is None or not taken:
        return outcome([one.message for one in parts]), False
    with at():
        computed = application.decide(audited.round, before, taken)
    for what, content in zip(OUTCOME, computed, strict=True):
        if part_digest(what, content) != due[what]:
            raise Misplaced(
                _place(parts, what), f"computed anew, {what.name} is not what was certified"
            )
    return computed, True


def _shape(
    auditor: Auditor, audited: Audited, messages: list[PlacedMessage]
) -> tuple[list[PlacedMessage], list[PlacedMessage]]:
    """The set's uploads, and what was decided on them; in a partial log, all uploads or none, and some of the parts."""
    uploads = [one for one in messages if isinstance(one.message.body, Upload)]
    parts = messages[len(uploads) :]
    found = [one.message.body.what for one in parts if isinstance(one.message.body, Part)]
    due = list(OUTCOME)
    numbers = [len(audited.entries or ())]
    if auditor.partial:
        due = [what for what in OUTCOME if what in found]
        numbers.append(0)
    if (
        messages[: len(uploads)] != uploads
        or len(found) != len(parts)
        or found != due
        or len(uploads) not in numbers
    ):
        raise Misplaced(
            None, "the entry does not have the set's uploads and what was decided on them"
        )
    return uploads, parts


def _place(parts: list[PlacedMessage], what: PartKind) -> int | None:
    return next(
        (
            at
            for at, message in parts
            if isinstance(message.body, Part) and message.body.what == what
        ),
        None,
    )


def _upload(
    rules: Rules, application: PrototypeApplication, round_: int, one: PlacedMessage, named: Entry
) -> Upload:
    body = one.message.body
    if not isinstance(body, Upload) or (body.client, one.message.digest) != named:
        raise Refused(f"this is not the upload of client {named[0]} that is in the set")
    if body.round != round_ or not rules.authentic(one.message):
        raise Refused(
            f"the upload of client {body.client} is not one that it signed for this round"
        )
    if (reason := application.refuses(body)) is not None:
        raise Refused(f"the upload of client {body.client} is unfit: {reason}")
    return body


def _check_part(rules: Rules, round_: int, one: PlacedMessage, due: dict[PartKind, bytes]) -> None:
    body = one.message.body
    assert isinstance(body, Part)
    if (one.message.run, body.round) != (rules.run, round_) or part_digest(
        body.what, body.content
    ) != due[body.what]:
        raise Refused(f"{body.what.name} is not the certified one")
