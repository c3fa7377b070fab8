"""Check a round's entry in bodies.bin: the clients' signatures, and that the outcome follows."""

from __future__ import annotations

from typing import NamedTuple

from fedrfq.audit.location import RefusedAt, located
from fedrfq.audit.log import AuditedRound, Auditor
from fedrfq.consensus.events import Outcome
from fedrfq.consensus.messages import (
    OUTCOME,
    ChangeProposal,
    Entry,
    Inputs,
    Message,
    Part,
    PartKind,
    Upload,
    part_digest,
)
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.federation.application import PrototypeApplication
from fedrfq.federation.round_log import PlacedMessage, outcome, unpack


class KnownBefore(NamedTuple):
    """What an audit knows of the round before: its outcome, and the public part written last."""

    outcome: Outcome | None
    public: bytes = b""


class Recomputed(NamedTuple):
    """What an audit knows after a round, whether it was computed anew, and from which uploads."""

    known: KnownBefore
    anew: bool
    uploads: list[Upload]


def recomputed(
    auditor: Auditor,
    application: PrototypeApplication,
    audited: AuditedRound,
    before: KnownBefore,
    payload: bytes,
) -> Recomputed:
    """Return what is known after a round, and whether it was computed anew from the uploads.

    RefusedAt is raised where the outcome is not the certified one. `before` is what was known of
    the previous round. A partial log may lack its outcome or the uploads: the outcome is then the
    certified one as written there, or None.
    """
    with located():
        messages = unpack(payload)
    unchanged = part_digest(PartKind.PUBLIC, before.public) == audited.certificate.record.public
    placed_inputs, parts = _split(auditor, audited, messages, unchanged)
    listed = audited.inputs or Inputs()
    placed_uploads = placed_inputs[: len(listed.uploads)]
    placed_proposals = placed_inputs[len(listed.uploads) :]
    uploads = []
    proposals = []
    # A partial log may lack all of them, so the lengths may differ.
    for placed, entry in zip(placed_uploads, listed.uploads, strict=False):
        with located(placed):
            uploads.append(_check_upload(auditor.rules, application, audited.round, placed, entry))
    for placed, entry in zip(placed_proposals, listed.proposals, strict=False):
        with located(placed):
            proposals.append(
                _check_proposal(auditor.rules, application, audited.round, placed, entry)
            )
    record = audited.certificate.record
    digests = dict(zip(OUTCOME, record.outcome(), strict=True))
    for placed in parts:
        with located(placed):
            _check_part(auditor.rules, audited.round, placed, digests)
    # In a round in which no upload counts, all of them are there.
    has_inputs = audited.inputs is not None and len(uploads) == len(listed.uploads)
    if before.outcome is None or not has_inputs:
        known = _written(auditor.rules, audited.round, before, parts, unchanged)
        return Recomputed(known, False, uploads)
    with located():
        computed = application.decide(audited.round, before.outcome, uploads)
        computed = computed._replace(successor=auditor.rules.successor(proposals))
    # The log's own parts are checked above. This compares with the certified digests, because a
    # quorum of liars can certify any outcome, but not make it follow from the uploads.
    for what, content in zip(OUTCOME, computed, strict=True):
        if part_digest(what, content) != digests[what]:
            at = _offset_of(parts, what)
            raise RefusedAt(at, f"computed anew, {what.name} is not what was certified")
    return Recomputed(KnownBefore(computed, computed.public), True, uploads)


def _written(
    rules: Rules,
    round_: int,
    before: KnownBefore,
    placed_parts: list[PlacedMessage],
    unchanged: bool,
) -> KnownBefore:
    """Return what is known after a round whose parts are as written, and have been checked."""
    bodies = [placed.message.body for placed in placed_parts]
    parts = {body.what: body for body in bodies if isinstance(body, Part)}
    if unchanged:
        parts.setdefault(PartKind.PUBLIC, Part(round_, PartKind.PUBLIC, before.public))
    public = before.public
    if PartKind.PUBLIC in parts:
        public = parts[PartKind.PUBLIC].content
    ordered = [rules.unsigned(parts[what]) for what in OUTCOME if what in parts]
    return KnownBefore(outcome(ordered), public)


def _split(
    auditor: Auditor, audited: AuditedRound, messages: list[PlacedMessage], unchanged: bool
) -> tuple[list[PlacedMessage], list[PlacedMessage]]:
    """Return the set's uploads and proposals, and the parts of the outcome, which must follow them.

    A public part that is `unchanged` is not written again, and a successor only if there is one. A
    partial log has all uploads and proposals or none, and some of the parts.
    """
    inputs = [p for p in messages if isinstance(p.message.body, Upload | ChangeProposal)]
    parts = messages[len(inputs) :]
    kinds = [p.message.body.what for p in parts if isinstance(p.message.body, Part)]
    listed = audited.inputs or Inputs()
    allowed_inputs = [len(listed.uploads) + len(listed.proposals)]
    left_out = set()
    if unchanged:
        left_out.add(PartKind.PUBLIC)
    if not audited.certificate.record.ends_run():
        left_out.add(PartKind.SUCCESSOR)
    expected_kinds = [what for what in OUTCOME if what not in left_out]
    if auditor.partial:
        expected_kinds = [what for what in OUTCOME if what in kinds]
        allowed_inputs.append(0)
    # In one fixed order, so that a round has a single valid entry.
    if (
        messages[: len(inputs)] != inputs
        or len(kinds) != len(parts)
        or kinds != expected_kinds
        or len(inputs) not in allowed_inputs
    ):
        raise RefusedAt(
            None, "the entry does not have the set's uploads and what was decided on them"
        )
    return inputs, parts


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
    body = placed.message.body
    name = f"upload of client {entry[0]}"
    if not isinstance(body, Upload) or (body.client, placed.message.digest) != entry:
        raise Refused(f"this is not the {name} that is in the set")
    _check_signed(rules, round_, placed.message, name)
    if (reason := application.refuses(body)) is not None:
        raise Refused(f"the {name} is not admissible: {reason}")
    return body


def _check_proposal(
    rules: Rules,
    application: PrototypeApplication,
    round_: int,
    placed: PlacedMessage,
    entry: Entry,
) -> ChangeProposal:
    """Check that a change proposal is the one of a set's entry, signed and admissible."""
    body = placed.message.body
    name = f"proposal of server {entry[0]}"
    if not isinstance(body, ChangeProposal) or (body.server, placed.message.digest) != entry:
        raise Refused(f"this is not the {name} that is in the set")
    _check_signed(rules, round_, placed.message, name)
    if (reason := application.refuses_successor(body.content)) is not None:
        raise Refused(f"the {name} is not admissible: {reason}")
    return body


def _check_signed(rules: Rules, round_: int, message: Message, name: str) -> None:
    """Check that a message's author signed it for this round."""
    if message.body.round != round_ or not rules.authentic(message):
        raise Refused(f"the {name} is not one that it signed for this round")


def _check_part(
    rules: Rules, round_: int, placed: PlacedMessage, digests: dict[PartKind, bytes]
) -> None:
    body = placed.message.body
    assert isinstance(body, Part)
    is_of_round = rules.of_run(placed.message) and body.round == round_
    if not is_of_round or part_digest(body.what, body.content) != digests[body.what]:
        raise Refused(f"{body.what.name} is not the certified one")
