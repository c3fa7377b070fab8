"""A party's audit files hold, survive crashes, and say what the party did not see."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fedrfq.audit import Audit, AuditedRound, AuditFailed, find_gaps
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Received, Timer
from fedrfq.consensus.messages import Cert, Commit, Evidence, Inputs, Message, Part, PartKind
from fedrfq.consensus.rejoin import lost_log_mark
from fedrfq.errors import UserError
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import hash_chain
from fedrfq.node.membership.change import changed
from fedrfq.node.storage.audit_writer import AuditWriter
from fedrfq.node.storage.write_ahead_log import DiskFull, load
from support.command import fedrfq
from support.committees import some_settings, uploads
from support.networked import CLIENTS, Networked

FILES = ("audit.log", "bodies.bin")
ROUNDS = 4
AWAY = 3  # the server that misses the second round


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Networked:
    """Return a federation after four rounds.

    A server hears nothing of the second round and learns of it by its certificate; client 2 lies
    in the third.
    """
    made = Networked(tmp_path_factory.mktemp("audit") / "federation")
    made.round(1)
    made.passes = lambda sender, receiver, message: AWAY not in (sender, receiver)
    made.round(2)
    made.passes = lambda sender, receiver, message: True
    lie = made.upload(2, 3, uploads(some_settings(CLIENTS, seed=9), 3).encoded(3)[2])
    for server in range(4):
        made.give(server, Received(~2, lie))
    for number in (3, ROUNDS):
        made.round(number)
        made.expire(Timer.RESEND)
        made.settle()
    made.close()
    return made


@pytest.fixture
def copy(federation: Networked, tmp_path: Path) -> Callable[[int], Path]:
    """Return a function that copies a party's folder, so that a test can damage it."""

    def copied(party: int) -> Path:
        home = federation.home(party)
        return shutil.copytree(home, tmp_path / home.name)

    return copied


def audited(path: Path) -> list[AuditedRound]:
    return list(Audit(path, recompute=True).rounds())


def entries(path: Path, name: str, run: bytes) -> list[list[Message]]:
    return [
        [placed.message for placed in unpack(entry.payload)]
        for entry in hash_chain.entries(path / name, run)
    ]


def logged(federation: Networked, party: int) -> list[Message]:
    return load(federation.home(party) / "log", federation.rules.run).messages


# What holds


def test_a_server_that_saw_all_has_all_and_it_can_be_computed_anew(federation: Networked) -> None:
    for server in range(4):
        if server != AWAY:
            found = audited(federation.home(server))
            assert [one.round for one in found] == [1, 2, 3, 4]
            assert all(one.traced and one.recomputed for one in found)
            assert [(charge.who, charge.round) for one in found for charge in one.charges] == [
                ("client-2", 3)
            ]


def test_a_round_in_which_no_upload_counts_is_computed_anew_too(tmp_path: Path) -> None:
    """All clients have sent two; the second of the last comes after two servers have closed."""
    made = Networked(tmp_path / "federation")
    for client, content in enumerate(uploads(some_settings(CLIENTS, seed=9), 1).encoded(1)):
        servers = range(2 if client == CLIENTS - 1 else 4)
        for server in servers:
            made.give(server, Received(~client, made.upload(client, 1, content)))
    made.round(1)
    made.round(2)
    made.close()
    found = audited(made.home(0))
    assert found[0].inputs == Inputs()
    assert [one.recomputed for one in found] == [True, True]


def test_a_round_learnt_by_certificate_is_one_and_says_so(federation: Networked) -> None:
    found = audited(federation.home(AWAY))
    assert [one.inputs is None for one in found] == [False, True, False, False]
    # The third is recomputed from what was certified in the second.
    assert [one.recomputed for one in found] == [True, False, True, True]
    done = fedrfq("verify", federation.home(AWAY), "--recompute", "--json", expect=3)
    assert (
        "1 of 4 rounds by certificate alone: this party did not see sets and lists (2)"
        in done.stdout
    )
    assert "3 of 4 rounds recomputed (1, 3–4)" in done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["alone"], report["recomputed"], report["missing"]) == ([2], [1, 3, 4], [])
    assert (report["holds"], report["complete"]) == (True, False)
    assert "not recomputed for want of uploads 2:" in done.stderr
    # Without recomputing, its certificate is enough; and another server has the uploads.
    fedrfq("verify", federation.home(AWAY))
    both = fedrfq(
        "verify", federation.home(AWAY), federation.home(0), "--recompute", "--json"
    ).stdout
    assert json.loads(both.splitlines()[-1])["complete"]


def test_a_round_that_came_while_the_logs_were_read_is_no_reason_to_ask_for_other_logs(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    """The client's log is read last, and has a round that the servers' had not yet."""
    root = federation.rules.run
    servers = [copy(server) for server in range(4)]
    for path in servers:
        for name in FILES:
            hash_chain.cut(path / name, root, 3)
    client = federation.home(~0)
    said = fedrfq("verify", *servers, client, "--recompute", expect=3).stderr
    assert "uploads 4: they were decided while the logs were read, so verify them again\n" in said
    said = fedrfq("verify", *servers[:2], client, "--recompute", expect=3).stderr
    assert "uploads 4: if rounds go on, they were decided" in said
    assert "otherwise verify it together with the folders of other servers" in said
    # Of a run that has ended, what is missing at the end was cut off.
    logs = [(Audit(path, recompute=True), audited(path)) for path in servers]
    ended = find_gaps(root, logs, recompute=True, last=4)
    assert ended is not None
    assert (ended.missing, ended.newest) == ((4,), False)
    # What a server was away for is not new.
    said = fedrfq("verify", servers[AWAY], "--recompute", expect=3).stderr
    assert "uploads 2: verify it together with the folders of other servers" in said


def test_a_client_has_certificates_globals_and_verdicts(federation: Networked) -> None:
    path = federation.home(~0)
    assert all(one.inputs is None and not one.recomputed for one in audited(path))
    for messages in entries(path, "bodies.bin", federation.rules.run):
        assert [message.body.what for message in messages] == [PartKind.GLOBALS, PartKind.VERDICTS]
    assert "4 of 4 rounds by certificate alone" in fedrfq("verify", path).stdout


def test_all_logs_agree(federation: Networked) -> None:
    done = fedrfq("verify", *map(federation.home, federation.parties), "--json")
    assert "7 logs agree; 4 rounds are in all of them" in done.stdout
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["holds"], report["common"], len(report["logs"])) == (True, 4, 7)


def test_evidence_that_was_stripped_off_one_log_is_in_the_others(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    """Whoever keeps a log can also chain it anew, so by itself it holds."""
    path = copy(0)
    root = federation.rules.run
    rounds = entries(path, "audit.log", root)
    (path / "audit.log").write_bytes(b"")
    for messages in rounds:
        kept = [message for message in messages if not isinstance(message.body, Evidence)]
        hash_chain.append(path / "audit.log", root, pack(kept))
    assert not any(one.charges for one in audited(path))
    done = fedrfq("verify", path, federation.home(1), federation.home(2), "--json")
    assert "client-2 signed two different UPLOAD messages: evidence in 2 of 3 logs" in done.stdout
    (found,) = json.loads(done.stdout.splitlines()[-1])["evidence"]
    assert found["logs"] == [str(federation.home(server)) for server in (1, 2)]


def test_a_client_that_was_away_has_no_certificates_in_between(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(~0)
    for name in FILES:
        (path / name).unlink()
    messages = [m for m in logged(federation, ~0) if m.body.round in (1, 4)]
    AuditWriter(path, federation.federation).recover(messages)
    assert [one.round for one in audited(path)] == [1, 4]
    done = fedrfq("verify", path, expect=3)
    assert "2 rounds of which this party has no certificate (2–3)" in done.stdout
    assert "are missing 2–3:" in done.stderr
    assert (
        "7 logs agree; 2 rounds"
        in fedrfq("verify", path, *map(federation.home, [0, 1, 2, 3, ~1, ~2])).stdout
    )


def test_an_outcome_is_waited_for_until_the_next_round(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(~0)
    for name in FILES:
        (path / name).unlink()
    writer = AuditWriter(path, federation.federation)
    for number, effect in enumerate(federation.decided[~0]):
        # The first round's outcome never arrives.
        if number != 1:
            writer.decided(effect)
            assert writer.last == number // 2 + number % 2
    bodies = [len(messages) for messages in entries(path, "bodies.bin", federation.rules.run)]
    assert bodies == [0, 2, 2, 2]
    assert len(audited(path)) == ROUNDS


def test_evidence_is_written_down_once_whoever_shows_it_again(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(0)
    messages = logged(federation, 0)
    for name in FILES:
        (path / name).unlink()
    AuditWriter(path, federation.federation).recover(
        [*messages, *(m for m in messages if isinstance(m.body, Evidence))]
    )
    assert [charge.who for one in audited(path) for charge in one.charges] == ["client-2"]


def test_nothing_is_kept_of_a_round_that_is_written_down(federation: Networked) -> None:
    for writer in federation.audit_writers.values():
        held = (
            writer._inputs,
            writer._parts,
            writer._lists,
            writer._evidence,
            writer._open,
        )
        assert not any(held)


# Crashes


@pytest.mark.parametrize("party", [0, AWAY, ~1])
def test_files_cut_anywhere_are_completed_from_the_log(
    federation: Networked, copy: Callable[[int], Path], party: int
) -> None:
    path = copy(party)
    messages = logged(federation, party)
    whole = {name: (path / name).read_bytes() for name in FILES}
    sizes = [
        (size, len(whole["bodies.bin"])) for size in range(0, len(whole["audit.log"]) + 1, 197)
    ]
    sizes += [
        (len(whole["audit.log"]), size) for size in range(0, len(whole["bodies.bin"]) + 1, 197)
    ]
    for pair in sizes:
        for name, size in zip(FILES, pair, strict=True):
            (path / name).write_bytes(whole[name][:size])
        for _ in range(2):  # the second time changes nothing
            writer = AuditWriter(path, federation.federation)
            writer.recover(messages)
            assert writer.last == ROUNDS
            found = audited(path)
            assert [one.round for one in found] == [1, 2, 3, 4]
            assert [charge.who for one in found for charge in one.charges] == (
                ["client-2"] if party >= 0 else []
            )
        if party >= 0:
            # Other servers' lists are in no log: of a round that this server did not lead, only the
            # set is left.
            assert all(one.inputs is not None for one in found if (party, one.round) != (AWAY, 2))
            led = [
                one
                for one in found
                if federation.roster.leader(one.round, one.certificate.view) == party
            ]
            assert led
            assert all(one.traced for one in led)


def test_what_is_cut_off_is_kept_aside(federation: Networked, copy: Callable[[int], Path]) -> None:
    path = copy(0)
    whole = (path / "audit.log").read_bytes()
    (path / "audit.log").write_bytes(whole + b"torn")
    AuditWriter(path, federation.federation)
    assert (path / "audit.log").read_bytes() == whole
    assert (path / "audit.log.cut-1").read_bytes() == b"torn"


def test_damage_before_the_end_is_not_cut_off_but_refused(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    for name in FILES:
        path = copy(0)
        whole = (path / name).read_bytes()
        (path / name).write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
        with pytest.raises(UserError, match=f"{name}, byte 0: .*rebuilt"):
            AuditWriter(path, federation.federation)
        shutil.rmtree(path)


def test_files_begun_anew_follow_from_a_compacted_log(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(0)
    for name in FILES:
        (path / name).unlink()
    AuditWriter(path, federation.federation).recover(compacted(logged(federation, 0)))
    found = audited(path)
    assert [one.inputs is None for one in found] == [True, True, True, False]
    assert (
        "7 logs agree"
        in fedrfq("verify", path, *map(federation.home, [1, 2, 3, ~0, ~1, ~2])).stdout
    )


def test_a_full_disk_leaves_no_part_of_an_entry(
    federation: Networked, copy: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(0)
    messages = logged(federation, 0)
    for name in FILES:
        (path / name).write_bytes(b"")
    writer = AuditWriter(path, federation.federation)
    real = os.write

    def torn(handle: int, data: bytes) -> int:
        if os.fstat(handle).st_size:
            raise OSError(28, os.strerror(28))
        return real(handle, data[:10])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", torn)
        with pytest.raises(DiskFull, match="No space left"):
            writer.recover(messages)
    assert not any((path / name).read_bytes() for name in FILES)
    AuditWriter(path, federation.federation).recover(messages)
    assert len(audited(path)) == ROUNDS


def test_a_chain_that_is_closed_writes_into_no_other_file(tmp_path: Path) -> None:
    """The system reuses the number of a closed file for the next one that is opened."""
    path = tmp_path / "chain"
    path.touch()
    closed = hash_chain.HashChain(path, bytes(32))
    closed.close()
    with (tmp_path / "another").open("w+b", buffering=0) as another:
        assert another.fileno() == closed._file
        for act in (lambda: closed.append(b"entry"), closed.sync):
            with pytest.raises(ValueError, match="closed"):
                act()
        assert another.read() == b""


def test_syncing_syncs_both_files_and_their_folder(
    federation: Networked, copy: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copy(0)
    real = os.fsync
    synced = []

    def fsync(handle: int) -> None:
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())
        real(handle)

    writer = AuditWriter(path, federation.federation)
    monkeypatch.setattr(os, "fsync", fsync)
    writer.sync()
    assert synced == [path / "bodies.bin", path / "audit.log", path]


# An old copy of the log, and a log begun anew


def test_a_log_behind_the_audit_log_is_an_old_copy(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    messages = logged(federation, 0)
    third = max(
        number
        for number, message in enumerate(messages)
        if isinstance(message.body, Cert) and message.body.round == 3
    )
    for part in ([], messages[:5], messages[: third + 1]):
        with pytest.raises(UserError, match=r"an old copy; .*server-0 --rejoin"):
            AuditWriter(federation.home(0), federation.federation).recover(part)


def test_a_server_that_rejoins_goes_on_with_the_files_it_has(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(0)
    before = (federation.home(0) / "audit.log").read_bytes()
    certs = [m for m in logged(federation, 0) if isinstance(m.body, Cert)]
    writer = AuditWriter(path, federation.federation)
    writer.recover([lost_log_mark(federation.rules, bytes(32)), *certs[:4]])
    writer.recover([lost_log_mark(federation.rules, bytes(32)), *certs])
    assert (path / "audit.log").read_bytes() == before


# Two values of a round


def forged(
    federation: Networked,
    path: Path,
    number: int,
    view: int = 0,
    liars: tuple[int, ...] = (0, 1, 2),
) -> None:
    """Have more than f servers certify another value of a round, and cut off all later rounds."""
    rules = federation.rules
    root = federation.rules.run
    rounds = entries(path, "audit.log", root)[:number]
    cert = rounds[-1][0].body
    assert isinstance(cert, Cert)
    record = replace(cert.certificate.record, globals_=bytes(32))
    votes = [
        rules.signed(Commit(number, view, record.value(root), k), federation.signers[k])
        for k in liars
    ]
    rounds[-1] = [rules.unsigned(Cert(number, rules.certificate(votes, record)))]
    (path / "audit.log").write_bytes(b"")
    for messages in rounds:
        hash_chain.append(path / "audit.log", root, pack(messages))


@pytest.mark.parametrize(
    ("view", "proof"), [(0, "in one view, which is proof against each"), (1, "in two views")]
)
def test_two_values_of_a_round_are_named_with_who_signed_both(
    federation: Networked, copy: Callable[[int], Path], tmp_path: Path, view: int, proof: str
) -> None:
    other = copy(1)
    forged(federation, other, 2, view)
    fedrfq("verify", other)  # it holds, by itself
    done = fedrfq("verify", federation.home(0), other, "--json", expect=1)
    report = json.loads(done.stdout.splitlines()[-1])
    honest_offset = audited(federation.home(0))[1].offset
    forged_offset = list(Audit(other).rounds())[1].offset
    honest_log = federation.home(0) / "audit.log"
    honest_place = f"{honest_log}, byte {honest_offset}"
    forged_place = f"{other / 'audit.log'}, byte {forged_offset}"
    assert f"round 2 is certified with two values: {honest_place}" in report["why"]
    assert f"{forged_place}. MORE THAN 1 SERVERS HAVE LIED" in report["why"]
    assert proof in report["why"]
    cert = audited(federation.home(0))[1].certificate
    both = sorted({server for server, _ in cert.signatures} & {0, 1, 2})
    assert (report["holds"], report["round"], report["both"]) == (False, 2, both)
    assert all(f"server-{server}" in report["why"] for server in both)
    shown = fedrfq("evidence", federation.home(0), other).stdout
    for server in both:
        assert (f"server-{server} signed two different COMMIT messages" in shown) == (view == 0)


def test_logs_of_two_runs_are_not_compared(federation: Networked, tmp_path: Path) -> None:
    other = Networked(tmp_path / "other")
    other.round(1)
    other.close()
    done = fedrfq("verify", federation.home(0), other.home(0), expect=2)
    assert "are of different runs" in done.stderr
    assert (
        "of different runs"
        in fedrfq("evidence", federation.home(0), other.home(0), expect=2).stderr
    )


def test_a_certificate_against_what_is_written_down_is_said(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(1)
    forged(federation, path, 2)
    hash_chain.cut(path / "bodies.bin", federation.rules.run, 2)
    with pytest.raises(
        UserError, match=r"round 2 is certified with another value .* more than 1 servers have lied"
    ):
        AuditWriter(path, federation.federation).recover(logged(federation, 1))


# A federation that was changed


def test_a_changed_federation_is_followed_from_its_first_round_to_its_last(tmp_path: Path) -> None:
    made = Networked(tmp_path / "federation")
    made.round(1)
    made.succeed(2, changed(made.federation, [], ["client-2"]))
    assert "0 of 0" in fedrfq("verify", made.home(0)).stdout  # the new run has no round yet
    made.round(1)
    made.close()
    for party in (0, 3):
        report = json.loads(
            fedrfq("verify", made.home(party), "--recompute", "--json").stdout.splitlines()[-1]
        )
        assert (report["recomputed"], [before["recomputed"] for before in report["before"]]) == (
            [1],
            [[1, 2]],
        )
        assert report["run"] == made.rules.run.hex() != report["before"][0]["run"]
    shown = fedrfq("verify", made.home(~0), "--recompute", expect=3).stdout
    assert "not known without the uploads" in shown, "a client cannot tell who counted for less"
    assert "not known" not in fedrfq("verify", made.home(0), "--recompute").stdout
    done = fedrfq("verify", made.home(~0), "--recompute", "--json", expect=3)
    report = json.loads(done.stdout.splitlines()[-1])
    assert (report["rounds"], report["recomputed"]) == (1, [])
    assert (
        "3 logs agree; 3 rounds"
        in fedrfq("verify", made.home(0), made.home(1), made.home(~0)).stdout
    )
    shutil.rmtree(made.home(1) / "past" / "1" / "log")
    (made.home(1) / "past" / "1" / "audit.log").unlink()  # as of a newcomer
    assert "2 logs agree; 1 rounds" in fedrfq("verify", made.home(0), made.home(1)).stdout
    (made.home(0) / "past" / "1" / "last.bin").write_bytes(b"")
    assert "last.bin does not hold" in fedrfq("verify", made.home(0), expect=2).stderr


# Forgers who cannot sign


def without_lists(messages: list[Message]) -> list[Message]:
    return [messages[0], *messages[4:]]


def one_list(messages: list[Message]) -> list[Message]:
    return messages[:2] + messages[4:]


def set_of_nothing(messages: list[Message]) -> list[Message]:
    return [
        messages[0],
        Message(messages[0].run, Part(messages[0].body.round, PartKind.SET, bytes(4))),
    ]


def proof_of_nothing(messages: list[Message]) -> list[Message]:
    return [messages[0], Message(messages[0].run, Evidence(1, messages[1], messages[1]))]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (one_list, "a LIST of this run is expected"),
        (set_of_nothing, "not the certified one"),
        (proof_of_nothing, "the evidence proves nothing"),
        (lambda messages: messages[1:], "a CERT of this run is expected"),
        (lambda messages: [], "the entry has 0 messages"),
    ],
)
def test_forged_entries_of_a_party_are_found(
    federation: Networked,
    copy: Callable[[int], Path],
    change: Callable[[list[Message]], list[Message]],
    why: str,
) -> None:
    path = copy(0)
    root = federation.rules.run
    first, *rest = entries(path, "audit.log", root)
    (path / "audit.log").write_bytes(b"")
    for messages in (change(first), *rest):
        hash_chain.append(path / "audit.log", root, pack(messages))
    with pytest.raises(AuditFailed, match=why):
        audited(path)


def test_what_a_party_did_not_see_is_no_forgery(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(0)
    root = federation.rules.run
    rounds = entries(path, "audit.log", root)
    (path / "audit.log").write_bytes(b"")
    for messages in map(without_lists, rounds):
        hash_chain.append(path / "audit.log", root, pack(messages))
    assert all(one.inputs and one.recomputed and not one.traced for one in audited(path))
    assert (
        "4 of 4 rounds without the lists that their sets follow from (1–4)"
        in fedrfq("verify", path).stdout
    )


@pytest.mark.parametrize("drop", [0, 3])
def test_forged_bodies_of_a_party_are_found(
    federation: Networked, copy: Callable[[int], Path], drop: int
) -> None:
    """Leave out one upload of the set; or the globals, which changes nothing."""
    path = copy(0)
    root = federation.rules.run
    rounds = entries(path, "bodies.bin", root)
    (path / "bodies.bin").write_bytes(b"")
    for messages in rounds:
        hash_chain.append(path / "bodies.bin", root, pack(messages[:drop] + messages[drop + 1 :]))
    if drop:
        assert [one.recomputed for one in audited(path)] == [True] * ROUNDS
    else:
        with pytest.raises(AuditFailed, match="does not have the set's uploads"):
            audited(path)


def test_a_party_s_parts_are_those_certified(
    federation: Networked, copy: Callable[[int], Path]
) -> None:
    path = copy(~0)
    root = federation.rules.run
    first, *rest = entries(path, "bodies.bin", root)
    (path / "bodies.bin").write_bytes(b"")
    for messages in ([Message(root, Part(1, PartKind.GLOBALS, bytes(51))), first[1]], *rest):
        hash_chain.append(path / "bodies.bin", root, pack(messages))
    with pytest.raises(AuditFailed, match="GLOBALS is not the certified one"):
        audited(path)
