"""A node believes only what its own committee certified, and has only its own clients' keys."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fedrfq.committee import Direct
from fedrfq.consensus.messages import Cert, Message, Part, PartKind, decode, unsigned
from fedrfq.consensus.wire import sized
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation import signatures
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import toml
from fedrfq.flower import trust
from fedrfq.flower.messages import RoundOrder
from fedrfq.learning.round_loop import committee_settings
from fedrfq.node.membership import founding
from fedrfq.node.membership.identity import read_signer
from fedrfq.prototypes.fixed_point import Globals
from support.flowered import NOTHING, certified, experiment, node_of, order, rounds, run_of, sent_to

CLIENTS = 2


@pytest.fixture(scope="module")
def e() -> Experiment:
    return experiment(clients=CLIENTS)


@pytest.fixture(scope="module")
def lasts(e: Experiment, mnist: Dataset) -> list[bytes]:
    """Return the results of rounds 0 to 2."""
    return [b"", *(done.last for done in rounds(e, mnist, 2))]


def messages(last: bytes) -> list[Message]:
    return [placed.message for placed in unpack(last)]


def signature_altered(last: bytes) -> bytes:
    cert, *rest = messages(last)
    raw = bytearray(cert.wire)
    raw[-1] ^= 1
    return pack([decode(bytes(raw)), *rest])


def other_globals(last: bytes) -> bytes:
    """Change one value of the certified prototypes."""
    cert, globals_, verdicts = messages(last)
    content = bytearray(globals_.body.content)
    content[-4] ^= 1
    changed = Part(globals_.body.round, PartKind.GLOBALS, bytes(content))
    return pack([cert, unsigned(cert.run, changed), verdicts])


def other_verdicts(last: bytes) -> bytes:
    cert, globals_, verdicts = messages(last)
    empty = Part(verdicts.body.round, PartKind.VERDICTS, b"")
    return pack([cert, globals_, unsigned(cert.run, empty)])


def public_part(cert: Message) -> Message:
    return unsigned(cert.run, Part(cert.body.round, PartKind.PUBLIC, b"made up"))


def fewer_signatures(last: bytes) -> bytes:
    cert, *rest = messages(last)
    few = replace(cert.body.certificate, signatures=cert.body.certificate.signatures[:-1])
    return pack([unsigned(cert.run, Cert(cert.body.round, few)), *rest])


def a_server_twice(last: bytes) -> bytes:
    cert, *rest = messages(last)
    certificate = cert.body.certificate
    repeated = replace(certificate, signatures=certificate.signatures[:1] * 3)
    return pack([unsigned(cert.run, Cert(cert.body.round, repeated)), *rest])


FORGED: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a signature altered": (signature_altered, "does not have enough servers' signatures"),
    "a signature missing": (fewer_signatures, "does not have enough servers' signatures"),
    "one server for three": (a_server_twice, "not in ascending order"),
    "other globals": (other_globals, "not what was certified"),
    "other verdicts": (other_verdicts, "not what was certified"),
    "public statistics of nobody": (
        lambda last: pack([*messages(last), public_part(messages(last)[0])]),
        "not what was certified",
    ),
    "no certificate": (
        lambda last: pack(messages(last)[1:]),
        "does not begin with a certificate",
    ),
    "no globals": (
        lambda last: pack([messages(last)[0], messages(last)[2]]),
        "it has VERDICTS in 1 ",
    ),
    "globals for verdicts": (
        lambda last: pack([*messages(last)[:2], messages(last)[1]]),
        "it has GLOBALS, GLOBALS in 2 ",
    ),
    "globals twice": (
        lambda last: pack([*messages(last)[:2], *messages(last)[1:]]),
        "it has GLOBALS, GLOBALS, VERDICTS in 3 ",
    ),
    "more than that": (
        lambda last: pack([*messages(last), messages(last)[0]]),
        "VERDICTS in 3 messages",
    ),
    "nothing": (lambda last: b"", "does not begin with a certificate"),
    "cut short": (lambda last: last[:-1], "refused"),
    "some bytes": (lambda last: sized(b"bytes"), "too few for a message"),
}


@pytest.mark.parametrize(("forge", "why"), FORGED.values(), ids=FORGED)
def test_a_forged_result_is_refused_and_nothing_changes(
    forge: Callable[[bytes], bytes], why: str, e: Experiment, lasts: list[bytes], tmp_path: Path
) -> None:
    right = sent_to(0, 1, order(e, 0, b"", True, tmp_path))
    assert right.uploads
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    answer = sent_to(0, 1, order(e, 1, forge(lasts[1]), True, tmp_path))
    assert "the result of round 1 is refused" in answer.error
    assert why in answer.error
    assert not answer.uploads
    assert answer.figures is None
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before
    assert sent_to(0, 1, order(e, 1, lasts[1], True, tmp_path)).uploads


def test_a_result_of_another_round_is_refused(
    e: Experiment, lasts: list[bytes], tmp_path: Path
) -> None:
    for number, certified_round in ((2, 1), (1, 2)):
        answer = sent_to(0, 1, order(e, number, lasts[certified_round], True, tmp_path))
        assert f"its certificate is of round {certified_round}" in answer.error


def test_a_result_of_another_run_is_refused(e: Experiment, mnist: Dataset, tmp_path: Path) -> None:
    other = rounds(replace(e, seed=1), mnist, 1)[0].last
    assert "it belongs to another run" in sent_to(0, 1, order(e, 1, other, True, tmp_path)).error
    cert, *rest = messages(other)
    run = bytes.fromhex(run_of(e))
    renamed = pack([unsigned(run, message.body) for message in (cert, *rest)])
    answer = sent_to(0, 1, order(e, 1, renamed, True, tmp_path))
    assert "does not have enough servers' signatures" in answer.error


def test_what_was_prepared_is_not_decided(
    e: Experiment, lasts: list[bytes], tmp_path: Path
) -> None:
    cert, *rest = messages(lasts[1])
    prepared = replace(cert.body.certificate, phase=5)
    forged = pack([unsigned(cert.run, Cert(1, prepared)), *rest])
    answer = sent_to(0, 1, order(e, 1, forged, True, tmp_path))
    assert "does not have enough servers' signatures" in answer.error


def test_an_order_of_another_federation_is_refused(e: Experiment, tmp_path: Path) -> None:
    sent = replace(order(e, 0, b"", True, tmp_path), run="ab" * 32)
    for hello in (False, True):
        answer = sent_to(0, 1, replace(sent, hello=hello))
        assert "another federation (abababababababab)" in answer.error


def test_a_result_where_nothing_is_exchanged_is_refused(lasts: list[bytes], tmp_path: Path) -> None:
    local = experiment(clients=CLIENTS, **NOTHING)
    node = node_of(0, 1, order(local, 1, b"", True, tmp_path))
    with pytest.raises(UserError, match="that round has no result"):
        node.answer(RoundOrder("", toml.dump(local.table()), 1, lasts[1], True))
    assert not (tmp_path / "clients-0-1" / "kept.safetensors").exists()


def test_certified_prototypes_of_another_shape_are_refused(e: Experiment, tmp_path: Path) -> None:
    """Even a quorum cannot certify something that has no meaning here."""
    federation = e.committee.federation(committee_settings(e, 10))
    assert federation is not None
    servers = [signatures.simulated(e.seed, "server", k) for k in range(3)]
    wrong = certified(federation, servers, 1, Globals.none(3, 7), [0])
    assert "are not 10 prototypes" in sent_to(0, 1, order(e, 1, wrong, True, tmp_path)).error
    right = certified(federation, servers, 1, Globals.none(10, e.prototype_size()), [0])
    assert not sent_to(0, 1, order(e, 1, right, True, tmp_path)).error


def test_who_needs_a_committee_must_have_one(e: Experiment) -> None:
    with pytest.raises(UserError, match=r'set committee\.name = "simulated"'):
        trust.simulated(replace(e, committee=Direct()), range(2), 10)


def test_models_that_are_averaged_are_refused() -> None:
    e = replace(experiment(alone=False, **{**NOTHING, "method": {"name": "fedavg"}}))
    with pytest.raises(UserError, match="'fedavg' averages models"):
        trust.simulated(e, range(2), 10)


def test_with_a_public_map_there_is_something_to_certify() -> None:
    public = {"name": "random", "second": 2}
    local = experiment(clients=2, method={"name": "local"}, public=public)
    assert trust.simulated(local, range(2), 10).federation is not None
    with pytest.raises(UserError, match=r'set committee\.name = "simulated"'):
        trust.simulated(replace(local, committee=Direct()), range(2), 10)
    averaging = experiment(alone=False, **{**NOTHING, "method": {"name": "fedavg"}}, public=public)
    with pytest.raises(UserError, match="'fedavg' averages models"):
        trust.simulated(averaging, range(2), 10)


STRANGE = [
    "\n\n",
    "rounds = [",
    "rounds = 0\n",
    "name = 3\n",
    "\n[data]\nname = 7\n",
    f"\n[train]\nlr = {10**400}\n",
    "x = 1\n",
    "clients = 1048577\n",
]


@pytest.mark.parametrize("text", STRANGE, ids=range(len(STRANGE)))
def test_a_strange_experiment_is_refused(text: str) -> None:
    with pytest.raises(UserError):
        trust.experiment_of(text)


# Real federations


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("founded")
    sets = [
        "rounds=2",
        "partition.ways=3",
        "partition.spread=1",
        "partition.shots=7",
        "partition.test_shots=5",
    ]
    founding.init(folder, [f"127.0.0.1:{7400 + k}" for k in range(4)], 3, sets=sets, couriers=1)
    return folder


@pytest.fixture
def parties(founded: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may spoil."""
    return Path(shutil.copytree(founded, tmp_path / "parties"))


def test_one_folder_is_one_client(parties: Path) -> None:
    assert trust.of_folders(parties / "client-1").clients == (1,)


def test_a_folder_of_folders_is_all_clients_in_it(parties: Path) -> None:
    found = trust.of_folders(parties)
    assert found.clients == (0, 1, 2)
    assert [found.signers[k].public for k in range(3)] == list(found.federation.clients)
    shutil.rmtree(parties / "client-1")
    assert trust.of_folders(parties).clients == (0, 2)


def test_uploads_are_signed_by_their_client(parties: Path) -> None:
    found = trust.of_folders(parties)
    message = decode(found.signed(2, 5, b"content"))
    assert found._rules.authentic(message)
    assert (message.body.client, message.body.round, message.body.content) == (2, 5, b"content")


SPOILT: dict[str, tuple[Callable[[Path], object], str]] = {
    "no keys": (lambda own: (own / "vote.key").unlink(), "has no keys of a client"),
    "no folder": (lambda own: shutil.rmtree(own), "has no keys of a client"),
    "no federation": (
        lambda own: (own / "federation.toml").unlink(),
        "federation.toml cannot be read",
    ),
    "another file": (
        lambda own: (own / "federation.toml").write_text("[[servers]]\n"),
        "cannot be read as a federation.toml",
    ),
    "a file changed": (
        lambda own: (own / "federation.toml").write_text(
            (own / "federation.toml").read_text() + "\n"
        ),
        "not as this program writes it",
    ),
    "keys of a stranger": (
        lambda own: (own / "vote.key").write_text("ab" * 32 + "\n"),
        "is not in federation.toml",
    ),
    "half a key": (lambda own: (own / "vote.key").write_text("ab" * 16), "is not a key"),
    "keys for all to read": (lambda own: (own / "vote.key").chmod(0o644), "can be read by others"),
    "signed for elsewhere": (
        lambda own: (own / "log").mkdir(),
        "has taken part with `fedrfq client`",
    ),
}


@pytest.mark.parametrize(("spoil", "why"), SPOILT.values(), ids=SPOILT)
def test_a_folder_that_is_not_right_is_named_in_a_line(
    spoil: Callable[[Path], object], why: str, parties: Path
) -> None:
    spoil(parties / "client-1")
    with pytest.raises(UserError, match="client-1") as caught:
        trust.of_folders(parties / "client-1")
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_servers_and_couriers_are_not_hosted(parties: Path) -> None:
    for other in ("server-0", "courier-0"):
        with pytest.raises(UserError, match="holds no client's keys"):
            trust.of_folders(parties / other)


def test_clients_of_two_federations_are_refused(parties: Path, tmp_path: Path) -> None:
    founding.init(tmp_path / "other", [f"127.0.0.1:{7500 + k}" for k in range(4)], 3)
    shutil.copytree(tmp_path / "other" / "client-0", parties / "client-9")
    with pytest.raises(UserError, match="belong to two federations"):
        trust.of_folders(parties)


def test_a_federation_that_follows_another_is_refused(parties: Path) -> None:
    path = parties / "client-0" / "federation.toml"
    path.write_text(path.read_text().replace('follows = ""', f'follows = "{"ab" * 32}"'))
    with pytest.raises(UserError, match="run its clients with `fedrfq client`"):
        trust.of_folders(parties / "client-0")


def test_a_federation_with_another_public_map_than_its_experiment_is_refused(
    tmp_path: Path,
) -> None:
    sets = ["public.name=random", "public.second=2"]
    addresses = [f"127.0.0.1:{7600 + k}" for k in range(4)]
    founding.init(tmp_path, addresses, 1, sets=sets)
    assert trust.of_folders(tmp_path / "client-0").experiment.public.used
    path = tmp_path / "client-0" / "federation.toml"
    text = path.read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("map = ")]
    path.write_text(text.replace(line, 'map = "random:another"'))
    with pytest.raises(UserError, match="states public statistics of the map random:another"):
        trust.of_folders(tmp_path / "client-0")


def test_the_end_of_a_federation_is_said(parties: Path) -> None:
    found = trust.of_folders(parties)
    servers = [read_signer(parties / f"server-{k}") for k in range(3)]
    task = found.federation.task
    known = Globals(np.ones(task.classes, np.bool_), np.ones((task.classes, task.values), np.int64))
    last = certified(found.federation, servers, 1, known, [0, 2])
    assert found.verified(1, last).judged == {0, 2}
    assert np.array_equal(found.verified(1, last).globals_.values_JV, known.values_JV)
    over = certified(found.federation, servers, 1, known, [0, 2], successor=b"the next")
    with pytest.raises(UserError, match="the federation was changed in round 1"):
        found.verified(1, over)
