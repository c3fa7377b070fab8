"""What must hold of a round's entry in bodies.bin: clients signed the uploads, and what was certified follows from them."""

from __future__ import annotations

from fedrfq.audit.log import Audited
from fedrfq.audit.place import Misplaced, at
from fedrfq.committee.application import Prototypes
from fedrfq.committee.journal import OUTCOME, Placed, outcome, unpacked
from fedrfq.consensus.machine import Outcome
from fedrfq.consensus.messages import Body, Entry, Upload, part_digest
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused


def recomputed(rules: Rules, application: Prototypes, audited: Audited, before: Outcome, payload: bytes) -> Outcome:
    """The round's outcome, made anew from its uploads; Misplaced where that is not what was certified."""
    with at():
        messages = unpacked(payload)
    uploads, parts = messages[: -len(OUTCOME)], messages[-len(OUTCOME) :]
    stored = outcome([one.message for one in parts])
    if stored is None or len(uploads) != len(audited.entries):
        raise Misplaced(None, "the entry does not have the set's uploads and what was decided on them")
    taken = []
    for one, named in zip(uploads, audited.entries, strict=True):
        with at(one):
            taken.append(_upload(rules, application, audited.round, one, named))
    record = audited.certificate.record
    for one, digest in zip(parts, (record.globals_, record.verdicts, record.state), strict=True):
        with at(one):
            _check_part(rules, audited.round, one, digest)
    computed = application.decide(audited.round, before, taken)
    for one, what, new, old in zip(parts, OUTCOME, computed, stored, strict=True):
        if new != old:
            raise Misplaced(one.at, f"computed anew, {what.name} is not what was certified")
    return computed


def _upload(rules: Rules, application: Prototypes, round_: int, one: Placed, named: Entry) -> Upload:
    body = one.message.body
    if not isinstance(body, Upload) or (body.client, one.message.digest) != named:
        raise Refused(f"this is not the upload of client {named[0]} that is in the set")
    if body.round != round_ or not rules.authentic(one.message):
        raise Refused(f"the upload of client {body.client} is not one that it signed for this round")
    if (reason := application.refuses(body)) is not None:
        raise Refused(f"the upload of client {body.client} is unfit: {reason}")
    return body


def _check_part(rules: Rules, round_: int, one: Placed, digest: bytes) -> None:
    body = one.message.body
    assert isinstance(body, Body)
    if (one.message.run, body.round) != (rules.run, round_) or part_digest(body.what, body.content) != digest:
        raise Refused(f"{body.what.name} is not the certified one")
