"""A federation is changed by agreement: who moves what, what the next run starts from, and how anyone follows it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from fedrfq.consensus.events import Outcome, Trained
from fedrfq.consensus.messages import Commit, Upload
from fedrfq.consensus.rules import Rules
from fedrfq.consensus.wire import Refused
from fedrfq.errors import UserError
from fedrfq.federation import codec
from fedrfq.federation.federation_file import Charter
from fedrfq.federation.reconfiguration import Chartered, chartered, inherited, next_of
from fedrfq.node.membership import epochs, identity
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.membership.founding import Keys
from support.cluster import Cluster
from support.committees import mandate, uploads
from support.federations import founded

NEW = Keys.new("client-9")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    founded(tmp_path, clients=3)
    return tmp_path


@pytest.fixture
def charter(folder: Path) -> Charter:
    return identity.load(folder / "server-0").charter


def decided(
    application: Chartered, motions: Sequence[bytes], round_: int = 1, before: Outcome | None = None
) -> Outcome:
    """Of a round in which all clients send, and so many servers move."""
    clients = application.task.clients
    sent = uploads(mandate(clients), round_).encoded(round_)
    said = [Upload(round_, k, content) for k, content in enumerate([*sent, *motions])]
    return application.decide(round_, before or application.start(), said)


def test_a_quorum_of_equal_motions_ends_the_run(charter: Charter) -> None:
    application, text = chartered(charter), changed(charter, [NEW.request]).text.encode()
    other = changed(charter, [], ["client-2"]).text.encode()
    for motions in ([], [text] * 2, [text, text, other], [text, text, other, other]):
        outcome = decided(application, motions)
        assert not application.over(outcome)
        assert outcome == decided(application, [])
    outcome = decided(application, [text] * 3)
    assert application.over(outcome)
    assert codec.successor(outcome.verdicts) == text
    assert codec.decode_verdicts(outcome.verdicts)[0] == (0, 1, 2)
    assert outcome._replace(verdicts=b"") == decided(application, [])._replace(verdicts=b"")


def test_replicas_agree_on_a_motion_and_then_say_nothing_more(charter: Charter) -> None:
    cluster, text = Cluster(), changed(charter, [NEW.request]).text.encode()
    for server in range(4):
        cluster.parties[server].application = _Ending(text)
    for server in range(3):
        cluster.give(server, Trained(1, text))
    for k in range(4):
        cluster.give(~k, Trained(1, b"1"))
    cluster.settle()
    assert all(len(cluster.decided[server]) == 1 for server in range(4))
    cluster.sent.clear()
    for k in range(4):
        cluster.give(~k, Trained(2, b"1"))
    cluster.settle()
    assert not [
        message for sender, _, message in cluster.sent if sender >= 0 and message.author is not None
    ]


class _Ending:
    """Of a run that ends with three motions."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    def start(self) -> Outcome:
        return Outcome(b"", b"", b"")

    def refuses(self, upload: Upload) -> str | None:
        return None

    def decide(self, round_: int, before: Outcome, said: Sequence[Upload]) -> Outcome:
        return Outcome(
            b"", b"over" if [u.content for u in said].count(self.text) == 3 else b"", b""
        )

    def over(self, outcome: Outcome) -> bool:
        return outcome.verdicts == b"over"


@pytest.mark.parametrize("wrong", ["follows", "shape", "noise", "length"])
def test_what_cannot_take_the_place_is_refused(charter: Charter, folder: Path, wrong: str) -> None:
    application, right = chartered(charter), changed(charter, [NEW.request]).text
    shown = {
        "follows": changed(changed(charter, [NEW.request]), [], ["client-9"]).text.encode(),
        "shape": right.replace("values = 4", "values = 5").encode(),
        "noise": b"\xff\xfe",
        "length": b"#" * (1 << 23),
    }[wrong]
    assert application.refuses(Upload(1, 3, right.encode())) is None
    assert application.refuses(Upload(1, 3, shown)) is not None
    assert (
        application.refuses(Upload(1, 0, right.encode())) is not None
    )  # a client's upload is prototypes


def test_successors_are_told_from_verdicts() -> None:
    with pytest.raises(Refused):
        codec.successor(codec.succeeded(b"", b"text")[4:])
    assert codec.successor(b"") == b""
    assert codec.successor(codec.succeeded(b"x" * 13, b"text")) == b"text"


def test_the_next_run_remembers_by_name(charter: Charter) -> None:
    new = changed(charter, [NEW.request], ["client-0"])
    assert [seat.name for seat in new.seats.values()][4:] == ["client-9", "client-1", "client-2"]
    state = {name: np.arange(3) + 10 * n for n, name in enumerate(charter.task.detector.start(3))}
    outcome = inherited(charter, Outcome(b"globals", b"", codec.encode_state(state)), new)
    found, fresh = codec.decode_state(outcome.state), new.task.detector.start(3)
    assert outcome.globals_ == b"globals"
    for name, array in found.items():
        assert array.tolist() == [fresh[name][0], *state[name][1:]]


def test_seats(charter: Charter) -> None:
    server, rotated = Keys.new("server-x", "127.0.0.1:9"), Keys.new("client-1")
    new = changed(charter, [server.request, rotated.request, NEW.request], ["server-2"], minimum=2)
    assert [seat.name for seat in new.seats.values()] == [
        *("server-0", "server-1", "server-x", "server-3"),
        *("client-0", "client-1", "client-2", "client-9"),
    ]
    assert new.clients[1] == rotated.request.key != charter.clients[1]
    assert next_of(charter, new.text.encode()) == new
    assert differences(charter, new) == [
        "server-2: out",
        "server-x: in, as a server",
        "client-9: in, as a client",
        "client-1: a new key, seat",
        "minimum: 1 -> 2",
    ]
    with pytest.raises(UserError, match=r"no party 'client-7'"):
        changed(charter, [], ["client-7"])
    with pytest.raises(UserError, match="nothing would change"):
        changed(charter)


def ended_run(charter: Charter, folder: Path, text: bytes) -> bytes:
    """What the last round of a run leaves, signed by a quorum."""
    rules, application = Rules(charter.roster), chartered(charter)
    outcome = decided(application, [text] * 3)
    record = rules.record(1, rules.run, ((0, bytes(32)),), outcome)
    signers = [identity.load(folder / f"server-{k}").signer for k in range(3)]
    value = record.value(rules.run)
    votes = [rules.signed(Commit(1, 0, value, k), signer) for k, signer in enumerate(signers)]
    return epochs.last_of(rules, rules.certificate(votes, record), outcome)


def turned(
    folder: Path, crash: int, monkeypatch: pytest.MonkeyPatch, last: bytes, text: bytes
) -> bool:
    """Turn a server's folder; crash at a rename. Whether it came to the end."""
    done, rename = 0, Path.rename

    def crashing(path: Path, target: Path) -> Path:
        nonlocal done
        if done == crash:
            raise KeyboardInterrupt
        done += 1
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", crashing)
        try:
            epochs.turn(folder, last, text)
        except KeyboardInterrupt:
            return False
    return True


def test_a_turn_that_a_crash_interrupts_is_completed(
    charter: Charter,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    rotated = Keys.new("server-0", charter.seats[0].address)
    text = changed(charter, [rotated.request]).text.encode()
    last = ended_run(charter, folder, text)
    for crash in range(20):
        home = tmp_path_factory.mktemp("home")
        for path in (folder / "server-0").iterdir():
            (home / path.name).write_bytes(path.read_bytes())
            (home / path.name).chmod(path.stat().st_mode)
        (home / "log").mkdir()
        for name in ("audit.log", "bodies.bin", "log/1"):
            (home / name).write_bytes(b"old")
        rotated.write(home / epochs.ROTATION)
        whole = turned(home, crash, monkeypatch, last, text)
        epochs.complete(home)
        assert (home / "federation.toml").read_bytes() == text
        assert identity.load(home).party == 0  # with the new keys
        assert sorted(path.name for path in (home / "past").iterdir()) == ["1"]
        assert (home / "past/1/log/1").read_bytes() == b"old"
        assert (home / "past/1/federation.toml").read_text() == charter.text
        assert not [
            name
            for name in ("log", "audit.log", epochs.NEXT, epochs.ROTATION)
            if (home / name).exists()
        ]
        if whole:
            return
    raise AssertionError("it never came to an end")


def test_whoever_trusts_the_first_file_can_follow(charter: Charter, folder: Path) -> None:
    home, new = folder / "server-0", changed(charter, [NEW.request])
    last = ended_run(charter, folder, new.text.encode())
    assert epochs.heritage(home, charter) is None
    with pytest.raises(UserError, match="copy the folder past"):
        epochs.heritage(home, new)
    epochs.turn(home, last, new.text.encode())
    (run,) = epochs.ended(home)
    assert (run.charter, epochs.rounds_before(home)) == (charter, 1)
    found = epochs.heritage(home, new)
    assert found == inherited(charter, run.outcome, new)
    again = changed(new, [], ["client-9"])  # a second time
    for flipped in range(0, len(last), 97):
        damaged = bytearray(last)
        damaged[flipped] ^= 1
        (home / "past/1/last.bin").write_bytes(damaged)
        with pytest.raises(UserError):
            list(epochs.ended(home))
    (home / "past/1/last.bin").write_bytes(last)
    (home / "federation.toml").write_text(again.text)
    with pytest.raises(UserError, match="is not what"):
        list(epochs.ended(home))


def test_a_client_follows_without_the_servers_memory(charter: Charter, folder: Path) -> None:
    new = changed(charter, [NEW.request])
    home, last = folder / "client-0", ended_run(charter, folder, new.text.encode())
    epochs.turn(home, last, new.text.encode())
    (run,) = epochs.ended(home)
    own = epochs.last_of(Rules(charter.roster), run.certificate, run.outcome._replace(state=b""))
    (home / "past/1/last.bin").write_bytes(own)
    found = epochs.heritage(home, new)
    assert found is not None
    assert (found.globals_, found.state) == (run.outcome.globals_, b"")
