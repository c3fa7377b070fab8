"""`fedrfq verify` finds messages that are forged, left out or certified by liars, and where."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.audit import Audit
from fedrfq.committee import Simulated
from fedrfq.consensus.messages import (
    Cert,
    Certificate,
    Commit,
    Evidence,
    Inputs,
    Message,
    Part,
    PartKind,
    Upload,
    UploadList,
    encode,
    part_digest,
    unsigned,
)
from fedrfq.federation import signatures
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import hash_chain
from support.audited import ROUNDS, SEED, equivocated, failure, rules
from support.committees import written

Change = Callable[[list[Message]], list[Message]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return equivocated(tmp_path_factory.mktemp("audit") / "run")


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run, tmp_path / "copy")
    return tmp_path / "copy"


def changed(path: Path, name: str, number: int, change: Change) -> None:
    """Replace one round's messages and redo all hashes, as a forger who cannot sign can do."""
    root = rules(path).run
    payloads = [entry.payload for entry in hash_chain.entries(path / name, root)]
    payloads[number - 1] = pack(change([placed.message for placed in unpack(payloads[number - 1])]))
    (path / name).write_bytes(b"")
    for payload in payloads:
        hash_chain.append(path / name, root, payload)


def signed(path: Path, body: Commit | UploadList | Upload, role: str, number: int) -> Message:
    return rules(path).signed(body, signatures.simulated(SEED, role, number))


# Forgers who cannot sign


def test_a_log_or_bodies_of_another_run_are_recognised(copy: Path, tmp_path: Path) -> None:
    other = written(tmp_path / "other", Simulated(), ROUNDS, clients=3, seed=5)
    for name in ("audit.log", "bodies.bin"):
        mine = (copy / name).read_bytes()
        shutil.copy(other / name, copy / name)
        found = failure(copy, recompute=True)
        assert (found.file, found.offset, found.round) == (name, 0, 1)
        assert "of another run" in found.why
        (copy / name).write_bytes(mine)
    theirs = [entry.payload for entry in hash_chain.entries(other / "audit.log", rules(other).run)]
    (copy / "audit.log").write_bytes(b"")
    for payload in theirs:
        hash_chain.append(copy / "audit.log", rules(copy).run, payload)
    assert "a CERT of this run is expected" in failure(copy).why


def test_rounds_out_of_order_or_twice_are_found(copy: Path) -> None:
    root = rules(copy).run
    one, two, three = (entry.payload for entry in hash_chain.entries(copy / "audit.log", root))
    for order, number, reason in (
        ((one, three), 2, "of round 3"),
        ((one, two, two), 3, "of round 2"),
        ((two,), 1, "of round 2"),
    ):
        (copy / "audit.log").write_bytes(b"")
        for payload in order:
            hash_chain.append(copy / "audit.log", root, payload)
        found = failure(copy)
        assert found.round == number
        assert reason in found.why


def _certificate(messages: list[Message]) -> Certificate:
    body = messages[0].body
    assert isinstance(body, Cert)
    return body.certificate


def _certified(messages: list[Message], certificate: Certificate) -> list[Message]:
    return [unsigned(messages[0].run, Cert(messages[0].body.round, certificate)), *messages[1:]]


def fewer_votes(messages: list[Message]) -> list[Message]:
    found = _certificate(messages)
    return _certified(messages, replace(found, signatures=found.signatures[1:]))


def another_view(messages: list[Message]) -> list[Message]:
    found = _certificate(messages)
    return _certified(messages, replace(found, view=found.view + 1))


def another_value(messages: list[Message]) -> list[Message]:
    found = _certificate(messages)
    return _certified(messages, replace(found, record=replace(found.record, globals_=bytes(32))))


def another_previous(messages: list[Message]) -> list[Message]:
    found = _certificate(messages)
    return _certified(messages, replace(found, record=replace(found.record, previous=bytes(32))))


def another_set(messages: list[Message]) -> list[Message]:
    return [
        *messages[:4],
        unsigned(messages[0].run, Part(2, PartKind.SET, bytes(4))),
        *messages[5:],
    ]


def set_of_another_round(messages: list[Message]) -> list[Message]:
    return [
        *messages[:4],
        unsigned(messages[0].run, replace(messages[4].body, round=3)),
        *messages[5:],
    ]


def altered_list(messages: list[Message]) -> list[Message]:
    body = messages[2].body
    assert isinstance(body, UploadList)
    other = UploadList(body.round, body.server, body.entries[1:])
    forged = Message(messages[0].run, other, encode(messages[0].run, other), messages[2].signature)
    return [*messages[:2], forged, *messages[3:]]


def one_list_twice(messages: list[Message]) -> list[Message]:
    return [*messages[:2], messages[1], *messages[3:]]


def list_missing(messages: list[Message]) -> list[Message]:
    return messages[:1] + messages[2:]


def evidence_of_nothing(messages: list[Message]) -> list[Message]:
    same = Evidence(messages[1].body.round, messages[1], messages[1])
    return [*messages[:5], unsigned(messages[0].run, same)]


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (fewer_votes, 0, "3 servers must have signed"),
        (another_view, 0, "certificate does not hold"),
        (another_value, 0, "certificate does not hold"),
        (another_previous, 0, "does not follow from the value"),
        (another_set, 4, "not the certified one"),
        (set_of_another_round, 4, "not the certified one"),
        (altered_list, 2, "not one that server"),
        (one_list_twice, 4, "two lists are of one server"),
        (list_missing, 3, "a LIST of this run is expected here"),
        (evidence_of_nothing, 5, "proves nothing"),
    ],
)
def test_forged_entries_are_found_at_their_message(
    copy: Path, change: Change, place: int, reason: str
) -> None:
    changed(copy, "audit.log", 2, change)
    found = failure(copy)
    assert reason in found.why
    assert (found.file, found.round) == ("audit.log", 2)
    entry = list(hash_chain.entries(copy / "audit.log", rules(copy).run))[1]
    assert found.offset == entry.at(unpack(entry.payload)[place].at)


@pytest.mark.parametrize("keep", [[0], [0, 4]])
def test_a_run_has_all_of_every_round(copy: Path, keep: list[int]) -> None:
    """Only a party on a network may not have seen the lists, or the set."""
    changed(copy, "audit.log", 2, lambda messages: [messages[number] for number in keep])
    assert "expected" in failure(copy).why


def test_a_signed_list_that_makes_another_union_is_found(copy: Path) -> None:
    """A faulty server signs a longer list afterwards: the set no longer follows from the lists."""

    def longer(messages: list[Message]) -> list[Message]:
        body = messages[3].body
        assert isinstance(body, UploadList)
        entries = tuple(sorted([*body.entries[:2], (2, bytes(32))]))
        return [
            *messages[:3],
            signed(copy, UploadList(body.round, body.server, entries), "server", body.server),
            *messages[4:],
        ]

    changed(copy, "audit.log", 1, longer)
    assert "not the union of the lists" in failure(copy).why


# What only the bodies show


def tampered_upload(messages: list[Message]) -> list[Message]:
    first = messages[0]
    return [Message(first.run, first.body, first.raw, bytes(64)), *messages[1:]]


def second_upload(messages: list[Message]) -> list[Message]:
    """Put in another upload that the client signed for the same round."""
    upload = messages[0].body
    assert isinstance(upload, Upload)
    other = Upload(
        upload.round, upload.client, upload.content[:-1] + bytes([upload.content[-1] ^ 1])
    )
    raw = encode(messages[0].run, other)
    return [
        Message(messages[0].run, other, raw, signatures.simulated(SEED, "client", 0)(raw)),
        *messages[1:],
    ]


def part_of_another_round(messages: list[Message]) -> list[Message]:
    return [*messages[:5], unsigned(messages[0].run, replace(messages[5].body, round=3))]


def part_of_another_run(messages: list[Message]) -> list[Message]:
    return [*messages[:4], unsigned(bytes(32), messages[4].body), messages[5]]


def another_part(messages: list[Message]) -> list[Message]:
    return [
        *messages[:3],
        unsigned(messages[0].run, Part(2, PartKind.GLOBALS, bytes(51))),
        *messages[4:],
    ]


def fewer_uploads(messages: list[Message]) -> list[Message]:
    return messages[1:]


@pytest.mark.parametrize(
    ("change", "place", "reason"),
    [
        (tampered_upload, 0, "client 0 is not one that it signed"),
        (second_upload, 0, "not the upload of client 0 that is in the set"),
        (another_part, 3, "GLOBALS is not the certified one"),
        (part_of_another_round, 5, "STATE is not the certified one"),
        (part_of_another_run, 4, "VERDICTS is not the certified one"),
        (fewer_uploads, None, "does not have the set's uploads"),
        (lambda messages: [], None, "does not have the set's uploads"),
    ],
)
def test_forged_bodies_are_found(
    copy: Path, change: Change, place: int | None, reason: str
) -> None:
    changed(copy, "bodies.bin", 2, change)
    found = failure(copy, recompute=True)
    assert reason in found.why
    assert (found.file, found.round) == ("bodies.bin", 2)
    entry = list(hash_chain.entries(copy / "bodies.bin", rules(copy).run))[1]
    assert found.offset == (
        entry.offset if place is None else entry.at(unpack(entry.payload)[place].at)
    )
    list(Audit(copy).rounds())


def test_a_quorum_that_lies_together_is_found_by_computing_anew(copy: Path) -> None:
    """More than f servers certify wrong prototypes: only computing them anew shows it."""
    run_rules = rules(copy)
    false = bytes(3) + bytes(48)

    def certify(messages: list[Message]) -> list[Message]:
        record = replace(
            _certificate(messages).record, globals_=part_digest(PartKind.GLOBALS, false)
        )
        votes = [
            signed(copy, Commit(3, 0, record.value(run_rules.run), k), "server", k)
            for k in range(3)
        ]
        return _certified(messages, run_rules.certificate(votes, record))

    def replaced(messages: list[Message]) -> list[Message]:
        return [*messages[:3], run_rules.unsigned(Part(3, PartKind.GLOBALS, false)), *messages[4:]]

    changed(copy, "audit.log", 3, certify)
    changed(copy, "bodies.bin", 3, replaced)
    assert len(list(Audit(copy).rounds())) == ROUNDS
    found = failure(copy, recompute=True)
    assert "computed anew, GLOBALS is not what was certified" in found.why
    assert (found.file, found.round) == ("bodies.bin", 3)


def test_a_quorum_that_takes_an_upload_of_another_round_is_found(copy: Path) -> None:
    run_rules = rules(copy)
    (_, old), *_ = unpack(next(hash_chain.entries(copy / "bodies.bin", run_rules.run)).payload)

    def certify(messages: list[Message]) -> list[Message]:
        listed = messages[4].body
        assert isinstance(listed, Part)
        entries = ((0, old.digest), *Inputs.decode(listed.content).uploads[1:])
        content = Inputs(entries).write()
        servers = [message.server for message in messages[1:4]]
        lists = [
            signed(copy, UploadList(2, server, entries), "server", server) for server in servers
        ]
        record = replace(_certificate(messages).record, set_=part_digest(PartKind.SET, content))
        votes = [
            signed(copy, Commit(2, 0, record.value(run_rules.run), k), "server", k)
            for k in range(3)
        ]
        cert = run_rules.unsigned(Cert(2, run_rules.certificate(votes, record)))
        return [cert, *lists, run_rules.unsigned(Part(2, PartKind.SET, content))]

    changed(copy, "audit.log", 2, certify)
    changed(copy, "bodies.bin", 2, lambda messages: [old, *messages[1:]])
    found = failure(copy, recompute=True)
    assert "client 0 is not one that it signed for this round" in found.why
    assert (found.file, found.round) == ("bodies.bin", 2)
