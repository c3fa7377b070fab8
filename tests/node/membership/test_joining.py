"""A party joins by a folder that nobody trusts: the id that it was told decides."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation, Timings
from fedrfq.node.membership import founding, identity, joining
from support.command import fedrfq
from support.parties import purpose

ADDRESS = "127.0.0.1:7400"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_LOOK_EVERY_S", 0.01)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir(0o777)
    return folder


@pytest.fixture
def asked(tmp_path: Path, shared: Path) -> Iterator[Path]:
    """Let a server and a client ask; return the client's folder."""
    joining.ask(tmp_path / "hospital", shared, ADDRESS)
    joining.ask(tmp_path / "ward", shared)
    return tmp_path / "ward"


def found(shared: Path) -> Federation:
    federation = founding.federation(purpose(1), founding.requests(shared), Timings())
    founding.found(shared, federation, [])
    return federation


def test_who_types_the_id_is_in_the_federation_and_shared_no_secret(
    asked: Path, shared: Path
) -> None:
    federation = found(shared)
    me = joining.await_federation(asked, shared)
    assert not (asked / "federation.toml").exists()
    joining.agree(me, joining.spoken(federation).upper(), shared)
    assert identity.load(asked).member.name == "ward"
    assert {(asked / key).stat().st_mode & 0o777 for key in ("vote.key", "tls.key")} == {0o600}
    names = {str(path.relative_to(shared)) for path in shared.rglob("*")}
    assert names == {"federation.toml", "requests", "requests/hospital.toml", "requests/ward.toml"}


@pytest.mark.parametrize("told", ["", "0" * 64, "short", "changed", "too much"])
def test_another_id_is_refused(asked: Path, shared: Path, told: str) -> None:
    run = found(shared).roster.run.hex()
    wrong = {
        "short": run[: joining.LEAST_DIGITS - 1],
        "changed": run[:-1] + ("1" if run[-1] == "0" else "0"),
        "too much": run + "0",
    }
    me = joining.await_federation(asked, shared)
    with pytest.raises(UserError, match="not the id"):
        joining.agree(me, wrong.get(told, told), shared)
    assert not (asked / "federation.toml").exists()


def test_who_waited_while_it_was_founded_anew_is_told_to_start_again(
    asked: Path, shared: Path
) -> None:
    found(shared)
    me = joining.await_federation(asked, shared)
    with pytest.raises(UserError, match="before its first round, remove the file and"):
        found(shared)
    (shared / "federation.toml").unlink()
    joining.ask(asked.with_name("hospital"), shared, "127.0.0.1:7500")
    new = found(shared)
    with pytest.raises(UserError, match="replaced since it was shown here: start again"):
        joining.agree(me, joining.spoken(new), shared)
    assert not (asked / "federation.toml").exists()


def test_asking_again_changes_nothing(asked: Path, shared: Path) -> None:
    before = (asked / "vote.key").read_bytes()
    joining.ask(asked, shared)
    assert (asked / "vote.key").read_bytes() == before
    assert len(founding.requests(shared)) == 2
    with pytest.raises(UserError, match="has the keys of a client: use `fedrfq client`"):
        joining.ask(asked, shared, ADDRESS)


def test_a_server_that_mistyped_its_address_asks_again_with_the_same_keys(
    asked: Path, shared: Path
) -> None:
    hospital = asked.with_name("hospital")
    before, _ = founding.requests(shared)
    joining.ask(hospital, shared, "127.0.0.1:7500")
    after, _ = founding.requests(shared)
    assert (before.member.address, after.member.address) == (ADDRESS, "127.0.0.1:7500")
    assert after.key == before.key
    assert founding.read_request(hospital / "request.toml") == after


def test_a_full_disk_leaves_no_half_of_a_key(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(UserError, match="No space left"):
            joining.ask(tmp_path / "ward", shared)
    joining.ask(tmp_path / "ward", shared)
    assert [request.member.name for request in founding.requests(shared)] == ["ward"]


def test_two_parties_cannot_ask_under_one_name(asked: Path, shared: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="another party, which has the same name"):
        joining.ask(tmp_path / "elsewhere" / "ward", shared)


def test_a_request_is_not_written_through_a_link(tmp_path: Path, shared: Path) -> None:
    (shared / "requests").mkdir()
    (shared / "requests" / "ward.toml").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="will not be overwritten"):
        joining.ask(tmp_path / "ward", shared)
    assert not (tmp_path / "mine").exists()


def test_a_request_is_not_written_to_a_linked_folder(tmp_path: Path, shared: Path) -> None:
    (tmp_path / "mine").mkdir()
    (shared / "requests").symlink_to(tmp_path / "mine")
    with pytest.raises(UserError, match="link to another folder"):
        joining.ask(tmp_path / "ward", shared)
    assert not list((tmp_path / "mine").iterdir())


@pytest.mark.parametrize("kind", ["pipe", "hole", "device"])
def test_a_hostile_file_in_the_shared_folder_is_refused(
    asked: Path, shared: Path, kind: str
) -> None:
    path = shared / "federation.toml"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with pytest.raises(UserError, match="cannot be read"):
        joining.await_federation(asked, shared)


def test_whoever_may_write_to_the_shared_folder_may_ask(asked: Path, shared: Path) -> None:
    modes = {path.stat().st_mode for path in (shared, shared / "requests")}
    assert len(modes) == 1


def test_a_federation_without_this_party_is_refused(
    asked: Path, shared: Path, tmp_path: Path
) -> None:
    found(shared)
    joining.ask(tmp_path / "late", shared)
    with pytest.raises(UserError, match="founded without the keys of"):
        joining.await_federation(tmp_path / "late", shared)


def test_a_file_on_its_way_is_waited_for(
    asked: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = found(shared).text
    path = shared / "federation.toml"
    path.unlink()
    # A piece arrives between one look and the next.
    pieces = iter([text[:0], text[:100], text[:2000], text])

    def sleep(seconds: float) -> None:
        piece = next(pieces, None)
        if piece is not None:
            path.write_text(piece)

    monkeypatch.setattr(time, "sleep", sleep)
    assert joining.await_federation(asked, shared).federation.text == text


def test_the_command_shows_the_terms_but_not_the_id(
    asked: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = found(shared)
    hospital = asked.with_name("hospital")
    join = ("server", hospital, "--join", shared, "--address", ADDRESS)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    ended = fedrfq(*join, expect=2)
    assert "nobody typed the id" in ended.stderr
    assert "servers: hospital" in ended.stdout
    assert "detector: adaptive" in ended.stdout
    assert federation.roster.run.hex()[:8] not in ended.stdout + ended.stderr
    monkeypatch.setattr("sys.stdin", io.StringIO("0" * 64 + "\n"))
    assert "do not go on" in fedrfq(*join, expect=2).stderr


def test_a_client_is_told_at_once_that_its_data_are_not_there(
    asked: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the data must be is known only later, when somebody founds the federation."""
    found(shared)
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    said = fedrfq("client", asked, "--data", asked / "scan", "--join", shared, expect=2).stdout
    assert said.index("scan here, and no dataset of that name") < said.index("waiting for")
    said = fedrfq("client", asked, "--data", "mnist5k", "--join", shared, expect=2).stdout
    assert "warning" not in said


def test_a_server_that_joins_needs_an_address(tmp_path: Path, shared: Path) -> None:
    ended = fedrfq("server", tmp_path / "hospital", "--join", shared, expect=2)
    assert "--address" in ended.stderr
    assert not (tmp_path / "hospital").exists()
