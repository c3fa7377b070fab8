"""Check a round's entry in bodies.bin: the clients' signatures, and that the outcome follows."""

from __future__ import annotations

from typing import NamedTuple

from fedrfq.audit.location import RefusedAt, located
from fedrfq.audit.log import AuditedRound, Auditor
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import OUTCOME, Entry, Part, PartKind, Upload, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import PlacedMessage, outcome, unpack


class KnownBefore(NamedTuple):
    """What an audit knows of the round before: its outcome, and the public part written last."""

    outcome: Outcome | None
    public: bytes = b""


def recomputed(
    auditor: Auditor,
    application: PrototypeApplication,
    audited: AuditedRound,
    before: KnownBefore,
    payload: bytes,
) -> tuple[KnownBefore, bool]:
    """Return what is known after a round, and whether it was computed anew from the uploads.

    RefusedAt is raised where the outcome is not the certified one. `before` is what was known of
    the previous round. A partial log may lack its outcome or the uploads: the outcome is then the
    certified one as written there, or None.
    """
    with located():
        messages = unpack(payload)
    unchanged = part_digest(PartKind.PUBLIC, before.public) == audited.certificate.record.public
    placed_uploads, parts = _split(auditor, audited, messages, unchanged)
    uploads = []
    # A partial log may lack all uploads, so the lengths may differ.
    for placed, entry in zip(placed_uploads, audited.entries or (), strict=False):
        with located(placed):
            uploads.append(_check_upload(auditor.rules, application, audited.round, placed, entry))
    record = audited.certificate.record
    digests = dict(zip(OUTCOME, record.outcome(), strict=True))
    for placed in parts:
        with located(placed):
            _check_part(auditor.rules, audited.round, placed, digests)
    if before.outcome is None or not uploads:
        return _written(auditor.rules, audited.round, before, parts, unchanged), False
    with located():
        computed = application.decide(audited.round, before.outcome, uploads)
    # The log's own parts are checked above. This compares with the certified digests, because a
    # quorum of liars can certify any outcome, but not make it follow from the uploads.
    for what, content in zip(OUTCOME, computed, strict=True):
        if part_digest(what, content) != digests[what]:
            at = _offset_of(parts, what)
            raise RefusedAt(at, f"computed anew, {what.name} is not what was certified")
    return KnownBefore(computed, computed.public), True


def _written(
    rules: Rules,
    round_: int,
    before: KnownBefore,
    placed_parts: list[PlacedMessage],
    unchanged: bool,
) -> KnownBefore:
    """Return what is known after a round whose parts are as written, and have been checked."""
    messages = [placed.message for placed in placed_parts]
    public = before.public
    if messages and isinstance(last := messages[-1].body, Part) and last.what is PartKind.PUBLIC:
        public = last.content
    elif unchanged:
        messages.append(rules.unsigned(Part(round_, PartKind.PUBLIC, public)))
    return KnownBefore(outcome(messages), public)


def _split(
    auditor: Auditor, audited: AuditedRound, messages: list[PlacedMessage], unchanged: bool
) -> tuple[list[PlacedMessage], list[PlacedMessage]]:
    """Return the set's uploads and the parts of the outcome, which must come in this order.

    A public part that is `unchanged` is not written again. A partial log has all uploads or none,
    and some of the parts.
    """
    uploads = [placed for placed in messages if isinstance(placed.message.body, Upload)]
    parts = messages[len(uploads) :]
    kinds = [p.message.body.what for p in parts if isinstance(p.message.body, Part)]
    expected_kinds = [what for what in OUTCOME if what != PartKind.PUBLIC or not unchanged]
    allowed_uploads = [len(audited.entries or ())]
    if auditor.partial:
        expected_kinds = [what for what in OUTCOME if what in kinds]
        allowed_uploads.append(0)
    # In one fixed order, so that a round has a single valid entry.
    if (
        messages[: len(uploads)] != uploads
        or len(kinds) != len(parts)
        or kinds != expected_kinds
        or len(uploads) not in allowed_uploads
    ):
        raise RefusedAt(
            None, "the entry does not have the set's uploads and what was decided on them"
        )
    return uploads, parts


def _offset_of(parts: list[PlacedMessage], what: PartKind) -> int | None:
    for at, message in parts:
        if isinstance(message.body, Part) and message.body.what == what:
            return at
    return None


def _check_upload(
    rules: Rules,
    application: PrototypeApplication,
    round_: int,
    placed: PlacedMessage,
    entry: Entry,
) -> Upload:
    """Check that an upload is the one of a set's entry, signed and admissible."""
    message = placed.message
    body = message.body
    if not isinstance(body, Upload) or (body.client, message.digest) != entry:
        raise Refused(f"this is not the upload of client {entry[0]} that is in the set")
    if body.round != round_ or not rules.authentic(message):
        raise Refused(
            f"the upload of client {body.client} is not one that it signed for this round"
        )
    if (reason := application.refuses(body)) is not None:
        raise Refused(f"the upload of client {body.client} is not admissible: {reason}")
    return body


def _check_part(
    rules: Rules, round_: int, placed: PlacedMessage, digests: dict[PartKind, bytes]
) -> None:
    body = placed.message.body
    assert isinstance(body, Part)
    is_of_round = (placed.message.run, body.round) == (rules.run, round_)
    if not is_of_round or part_digest(body.what, body.content) != digests[body.what]:
        raise Refused(f"{body.what.name} is not the certified one")
