"""What must hold of a round's entry in bodies.bin: clients signed the uploads, and what was certified follows from them."""

from __future__ import annotations

from fedrfq.audit.log import Audited
from fedrfq.audit.place import Misplaced, at
from fedrfq.committee.application import Prototypes
from fedrfq.committee.journal import OUTCOME, Placed, outcome, unpacked
from fedrfq.consensus.machine import Outcome
from fedrfq.consensus.messages import Body, Upload, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused


def recomputed(rules: Rules, application: Prototypes, audited: Audited, before: Outcome, payload: bytes) -> Outcome:
    """The round's outcome, made anew from its uploads; Misplaced where that is not what was certified."""
    with at():
        messages = unpacked(payload)
    uploads, parts = messages[: -len(OUTCOME)], messages[-len(OUTCOME) :]
    stored = outcome([one.message for one in parts])
    if stored is None or tuple(_entry(one) for one in uploads) != audited.entries:
        raise Misplaced(None, "the entry does not have the set's uploads and what was decided on them")
    taken = []
    for one in uploads:
        with at(one):
            taken.append(_upload(rules, application, one))
    record = audited.certificate.record
    for one, name in zip(parts, (record.globals_, record.verdicts, record.state), strict=True):
        with at(one):
            _check_part(one, name)
    computed = application.decide(audited.round, before, taken)
    for one, what, new, old in zip(parts, OUTCOME, computed, stored, strict=True):
        if new != old:
            raise Misplaced(one.at, f"computed anew, {what.name} is not what was certified")
    return computed


def _entry(one: Placed) -> tuple[int, bytes] | None:
    body = one.message.body
    return (body.client, one.message.digest) if isinstance(body, Upload) else None


def _upload(rules: Rules, application: Prototypes, one: Placed) -> Upload:
    body = one.message.body
    assert isinstance(body, Upload)
    if not rules.authentic(one.message):
        raise Refused(f"the upload of client {body.client} is not signed by it")
    if (reason := application.refuses(body)) is not None:
        raise Refused(f"the upload of client {body.client} is unfit: {reason}")
    return body


def _check_part(one: Placed, name: bytes) -> None:
    body = one.message.body
    assert isinstance(body, Body)
    if part_digest(body.what, body.content) != name:
        raise Refused(f"{body.what.name} is not the certified one")
