"""`fedrfq doctor` finds what keeps a party from taking part, and says what to do."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import ssl
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from fedrfq.files import locks
from fedrfq.node.membership import identity
from fedrfq.node.membership.founding import NewKeys
from fedrfq.node.ops import doctor
from fedrfq.node.ops.doctor import FAILED, OK, WARNING, Finding
from fedrfq.node.transport import tls
from support.command import fedrfq
from support.parties import NOW, founded

PING = bytes(4)
PATIENCE_S = 20  # more than any answer takes on a busy machine
Usage = namedtuple("Usage", "total used free")


@contextmanager
def listening(
    door: socket.socket, context: ssl.SSLContext | None, word: bytes = PING
) -> Iterator[None]:
    """Run a server that greets whoever it lets in, and hangs up if `word` is empty.

    Without a context it accepts connections and says nothing at all.
    """

    def serve() -> None:
        kept = []
        with suppress(OSError):  # the door is shut
            while True:
                plain, _ = door.accept()
                kept.append(plain)
                if context is not None:
                    with suppress(OSError):
                        line = context.wrap_socket(plain, server_side=True)
                        line.sendall(word)
                        if word:
                            kept.append(line)
                        else:
                            line.close()
        for line in kept:
            line.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        door.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE_S)


@pytest.fixture
def doors() -> Iterator[list[socket.socket]]:
    """Open sockets for servers 1 to 3 to listen on; that of server 0 will be closed."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in range(4)]
    yield found
    for door in found:
        door.close()


@pytest.fixture
def federation(tmp_path: Path, doors: list[socket.socket]) -> Path:
    founded(tmp_path / "it", addresses=["{}:{}".format(*door.getsockname()) for door in doors])
    doors[0].close()
    return tmp_path / "it"


def found(folder: Path, **options: float) -> dict[str, Finding]:
    return {
        finding.what: finding
        for finding in doctor.examine(folder, **{"patience_s": PATIENCE_S, **options})
    }


def grades(folder: Path) -> dict[str, str]:
    return {what: finding.grade for what, finding in found(folder).items()}


@contextmanager
def others(federation: Path, doors: list[socket.socket]) -> Iterator[None]:
    contexts = [tls.server_context(identity.load(federation / f"server-{k}")) for k in (1, 2, 3)]
    with (
        listening(doors[1], contexts[0]),
        listening(doors[2], contexts[1]),
        listening(doors[3], contexts[2]),
    ):
        yield


def test_all_is_well_where_all_is_well(federation: Path, doors: list[socket.socket]) -> None:
    with others(federation, doors):
        said = fedrfq("doctor", federation / "server-0", "--timeout", PATIENCE_S)
        assert set(grades(federation / "server-0").values()) == {OK}
    assert "is free" in said.stdout
    assert "failed" not in said.stdout


def test_servers_that_cannot_be_reached_are_named(
    federation: Path, doors: list[socket.socket]
) -> None:
    for door in doors:
        door.close()
    said = fedrfq("doctor", federation / "client-0", expect=1)
    reports = found(federation / "client-0")
    assert {what for what, finding in reports.items() if finding.grade == FAILED} == {
        "servers",
        *(f"server-{k}" for k in range(4)),
    }
    assert "Connection refused: its operator must start it" in reports["server-2"].note
    assert "4 of 4 do not answer, and a round needs 3" in reports["servers"].note
    assert "failed" in said.stdout


def test_as_many_servers_may_be_away_as_may_fail(
    federation: Path, doors: list[socket.socket]
) -> None:
    contexts = [tls.server_context(identity.load(federation / f"server-{k}")) for k in (1, 2)]
    doors[3].close()
    with listening(doors[1], contexts[0]), listening(doors[2], contexts[1]):
        assert fedrfq("doctor", federation / "server-0", "--timeout", PATIENCE_S).returncode == 0
        reports = found(federation / "server-0")
    assert (reports["server-3"].grade, reports["server-2"].grade) == (WARNING, OK)
    assert "servers" not in reports


def test_who_answers_must_be_who_is_meant(
    federation: Path, doors: list[socket.socket], tmp_path: Path
) -> None:
    founded(tmp_path / "other")
    own, other = (identity.load(path / "server-1") for path in (federation, tmp_path / "other"))
    doors[3].close()
    with (
        listening(doors[1], tls.server_context(other)),
        listening(doors[2], tls.server_context(own)),
    ):
        reports = found(federation / "server-0")
    assert "no certificate of this federation" in reports["server-1"].note
    assert "answers as server-1" in reports["server-2"].note
    assert {reports[f"server-{k}"].grade for k in (1, 2)} == {FAILED}


def test_a_silent_server_is_not_waited_for(federation: Path, doors: list[socket.socket]) -> None:
    with listening(doors[1], None):
        reports = found(federation / "server-0", patience_s=0.5)
    assert reports["server-1"].grade == FAILED
    assert "no answer within 0.5 s" in reports["server-1"].note
    assert "3 of 4 do not answer" in reports["servers"].note


def test_a_server_that_does_not_know_this_party_is_named(
    federation: Path, doors: list[socket.socket]
) -> None:
    ignorant = tls.server_context(identity.load(federation / "server-1"))
    ignorant.verify_mode = ssl.CERT_NONE
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        federation / "server-2" / "tls.crt", federation / "server-2" / "tls.key"
    )
    context.verify_mode = ssl.CERT_REQUIRED  # and it trusts nobody
    doors[3].close()
    with listening(doors[1], ignorant, b""), listening(doors[2], context):
        reports = found(federation / "client-0")
        assert "hangs up" in reports["server-1"].note
        assert "refuses this party" in reports["server-2"].note
        assert {reports[f"server-{k}"].grade for k in (1, 2)} == {FAILED}
        # a server of a higher number dials a lower one, and not the other way round
        assert found(federation / "server-0")["server-1"].grade == OK


def test_a_port_in_use_is_found(federation: Path, doors: list[socket.socket]) -> None:
    with others(federation, doors):
        report = found(federation / "server-3")["port"]
    assert report.grade == FAILED
    assert "in use" in report.note


def test_an_address_of_another_machine_is_a_warning(tmp_path: Path) -> None:
    founded(tmp_path, addresses=[f"192.0.2.1:{7400 + k}" for k in range(4)])  # RFC 5737: nobody's
    report = found(tmp_path / "server-0", patience_s=0.1)["port"]
    assert report.grade == WARNING
    assert "--listen" in report.note


def test_a_party_that_runs_is_left_alone(federation: Path) -> None:
    held = os.open(federation / "server-1", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        reports = found(federation / "server-1")
    finally:
        os.close(held)
    assert f"see `fedrfq committee status {federation / 'server-1'}`" in reports["process"].note
    assert not {"port", "server-0"} & set(reports)
    assert not locks.is_locked(federation / "server-1")


def damaged_permissions(folder: Path) -> None:
    (folder / "vote.key").chmod(0o644)


def damaged_federation(folder: Path) -> None:
    with (folder / "federation.toml").open("a") as file:
        file.write("\n")


def damaged_certificate(folder: Path) -> None:
    (folder / "tls.crt").write_text("none")


def damaged_key(folder: Path) -> None:
    (folder / "tls.key").unlink()


def exchanged_certificate(folder: Path) -> None:
    shutil.copy(folder.parent / "server-2" / "tls.crt", folder / "tls.crt")


def exchanged_key(folder: Path) -> None:
    shutil.copy(folder.parent / "server-2" / "tls.key", folder / "tls.key")


@pytest.mark.parametrize(
    ("harm", "what"),
    [
        (damaged_permissions, "vote.key"),
        (damaged_federation, "federation.toml"),
        (damaged_certificate, "tls.crt"),
        (damaged_key, "tls.key"),
        (exchanged_certificate, "party"),
        (exchanged_key, "party"),
    ],
)
def test_what_is_wrong_in_the_folder_is_found_alone(
    federation: Path, harm: Callable[[Path], None], what: str
) -> None:
    harm(federation / "server-1")
    assert [name for name, grade in grades(federation / "server-1").items() if grade == FAILED] == [
        what
    ]


def test_it_says_until_when_certificates_are_valid_and_that_they_renew_themselves(
    federation: Path,
) -> None:
    def at(days: int) -> dict[str, Finding]:
        steps = doctor.examine(federation / "server-1", NOW + timedelta(days=days), 0.1)
        return {finding.what: finding for finding in steps}

    assert at(690)["certificate"].grade == OK
    assert "renewed by itself from" in at(710)["certificate"].note
    late = at(740)
    assert {late["certificate"].grade, late["servers"].grade} == {WARNING}
    assert "start this party" in late["certificate"].note
    assert "server-0" not in late


def test_a_clock_that_is_behind_is_found(federation: Path) -> None:
    party = identity.load(federation / "server-1")
    assert doctor._clock(party, NOW + timedelta(hours=1)).grade == OK
    # First federation.toml would be from the future, and then the certificates, too.
    assert doctor._clock(party, NOW - timedelta(minutes=30)).grade == WARNING
    assert doctor._clock(party, NOW - timedelta(days=1)).grade == FAILED


@pytest.mark.parametrize(("free", "grade"), [(1 << 20, FAILED), (1 << 28, WARNING), (1 << 40, OK)])
def test_a_full_disk_is_found(
    federation: Path, monkeypatch: pytest.MonkeyPatch, free: int, grade: str
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 41, 0, free))
    (disk,) = [
        found
        for found in doctor.examine(federation / "server-1", patience_s=0.2)
        if found.what == "disk"
    ]
    assert disk.grade == grade


def test_a_party_that_waits_for_the_founding_is_told_so(tmp_path: Path) -> None:
    ward = tmp_path / "ward"
    NewKeys.new("ward").write(ward)
    found = {one.what: one for one in doctor.examine(ward)}
    assert found["federation.toml"].grade == FAILED
    assert found["federation.toml"].note.startswith("not founded yet: ")
    said = fedrfq("doctor", ward, "--data", tmp_path, expect=1).stdout
    assert "not founded yet" in said
    assert said.count("failed") == 1
    for folder in (ward, tmp_path):
        assert "not founded yet" in fedrfq("committee", "status", folder, expect=2).stderr


def test_no_folder_at_all_is_found(tmp_path: Path) -> None:
    assert "failed" in fedrfq("doctor", tmp_path / "nowhere", expect=1).stdout
