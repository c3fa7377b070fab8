"""The client app: which clients a node hosts, and what it says when something is wrong."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, MessageType, Metadata, RecordDict

from fedrfq.consensus.messages import Upload, decode
from fedrfq.consensus.rules import Rules
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation import signatures
from fedrfq.flower import clientapp
from fedrfq.flower.clientapp import answered, node
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.shard import ShardData
from fedrfq.learning.round_loop import committee_settings
from fedrfq.node import local_dataset
from fedrfq.node.client import attend
from fedrfq.node.membership import founding
from fedrfq.node.membership.identity import read_federation, read_signer
from fedrfq.node.participant import Participant
from fedrfq.node.storage.write_ahead_log import WriteAheadLog
from fedrfq.prototypes.fixed_point import Globals
from support.flowered import certified, experiment, order, rounds, sent_to
from support.small import CPU

OWN = {"partition-id": 0, "num-partitions": 1, "device": "cpu"}
SETS = [
    "rounds=2",
    "partition.ways=3",
    "partition.spread=1",
    "partition.shots=7",
    "partition.test_shots=5",
    "train.alone=true",
]


@pytest.fixture(scope="module")
def e() -> Experiment:
    return experiment(clients=3)


def test_the_app_answers_a_message(
    e: Experiment, mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = list[bool]()
    monkeypatch.setattr(clientapp, "keep_freed", lambda: kept.append(True))
    about = Metadata(1, "message", 1, 7, "", "", time.time(), 3600.0, MessageType.TRAIN)
    sent = Message(order(e, 0, b"", True, tmp_path).record(), metadata=about)
    reply = clientapp.app(sent, Context(1, 7, OWN, RecordDict(), {}))
    assert NodeAnswer.read(reply.content).uploads == rounds(e, mnist, 1)[0].uploads
    assert kept


def test_it_says_whom_it_hosts_and_does_nothing(e: Experiment, tmp_path: Path) -> None:
    sent = replace(order(e, 0, b"", True, tmp_path), hello=True)
    assert [sent_to(place, 2, sent).clients for place in (0, 1)] == [(0,), (1, 2)]
    assert vars(sent_to(1, 2, sent)) == vars(NodeAnswer((1, 2)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("clients", "nodes"), [(7, 3), (6, 6), (1, 1), (10, 4)])
def test_every_client_has_one_node(clients: int, nodes: int, tmp_path: Path) -> None:
    sent = replace(order(experiment(clients=clients), 0, b"", True, tmp_path), hello=True)
    hosted = [sent_to(place, nodes, sent).clients for place in range(nodes)]
    assert [client for own in hosted for client in own] == list(range(clients))
    assert max(map(len, hosted)) - min(map(len, hosted)) <= 1


CONFIGURED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "this node has no clients"),
    "half": ({"partition-id": 0}, "this node has no clients"),
    "no number": (
        {"partition-id": "0", "num-partitions": 1},
        "partition-id must be a whole number",
    ),
    "true": ({"partition-id": 0, "num-partitions": True}, "num-partitions must be a whole number"),
    "beyond": ({"partition-id": 2, "num-partitions": 2}, "partition-id must be from 0 to 1, not 2"),
    "no nodes": ({"partition-id": 0, "num-partitions": 0}, "partition-id must be from 0 to -1"),
    "more nodes than clients": (
        {"partition-id": 0, "num-partitions": 4},
        "there are 4 nodes for 3 clients",
    ),
    "a strange device": ({**OWN, "device": "abacus"}, "found 'abacus'"),
    "no folder": ({"folders": "/nowhere/at/all"}, "/nowhere/at/all has no keys of a client"),
}


@pytest.mark.parametrize(("own", "why"), CONFIGURED.values(), ids=CONFIGURED)
def test_a_node_that_is_not_set_up_says_so(
    own: dict[str, Any], why: str, e: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "flwr"):
        answer = answered(order(e, 0, b"", True, tmp_path).record(), own, {})
    assert why in answer.error
    assert vars(replace(answer, error="")) == vars(NodeAnswer())
    assert why in caplog.text


def test_models_need_a_folder(e: Experiment, tmp_path: Path) -> None:
    sent = order(e, 0, b"", True)
    assert "this node has no folder for its models" in answered(sent.record(), OWN, {}).error
    for own, run, told in (
        ({**OWN, "state": str(tmp_path / "own")}, {"state": str(tmp_path / "b")}, "c"),
        (OWN, {"state": str(tmp_path / "run")}, str(tmp_path / "c")),
        (OWN, {"state": ""}, str(tmp_path / "told")),
    ):
        assert not answered(replace(sent, state=told).record(), own, run).error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "run", "told"]


def test_a_hostile_message_is_answered_in_a_line(caplog: pytest.LogCaptureFixture) -> None:
    assert "another app" in answered(RecordDict(), OWN, {}).error
    assert "another app" in caplog.text


def result(e: Experiment, round_: int, judged: list[int]) -> bytes:
    """Return a certified result with verdicts on these clients' uploads."""
    federation = e.committee.federation(committee_settings(e, 10))
    assert federation is not None
    servers = [signatures.simulated(e.seed, "server", k) for k in range(3)]
    return certified(federation, servers, round_, Globals.none(10, e.prototype_size()), judged)


def test_who_was_left_out_says_so(
    e: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server app drops an upload: it is missing in the certified verdicts."""
    sent_to(0, 1, order(e, 0, b"", True, tmp_path))
    for _ in range(2):
        assert sent_to(0, 1, order(e, 1, result(e, 1, [0, 2]), True, tmp_path)).left_out == (1,)
    assert "round 1 was decided without the uploads that clients 1 had sent" in caplog.text
    caplog.clear()
    assert sent_to(0, 1, order(e, 2, result(e, 2, [0, 1, 2]), True, tmp_path)).left_out == ()
    assert not caplog.text


def test_who_sent_nothing_was_not_left_out(e: Experiment, tmp_path: Path) -> None:
    """Uploads of the first round, and a result of the second."""
    assert sent_to(0, 1, order(e, 0, b"", True, tmp_path)).uploads
    assert sent_to(0, 1, order(e, 2, result(e, 2, [0]), True, tmp_path)).left_out == ()


def test_a_message_does_not_deal_anew(
    e: Experiment, mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dealt: list[Any] = []
    deal = ShardData.dealt
    monkeypatch.setattr(
        ShardData, "dealt", lambda *args, **named: dealt.append(1) or deal(*args, **named)
    )
    done = rounds(e, mnist, 1)[0]
    for number, last in ((0, b""), (1, done.last)):
        assert not sent_to(0, 1, order(e, number, last, True, tmp_path)).error
    assert len(dealt) == 1


# Real federations


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("founded")
    founding.init(folder, [f"127.0.0.1:{7400 + k}" for k in range(4)], 3, sets=SETS)
    return folder


@pytest.fixture
def parties(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "parties"))


def real(parties: Path, round_: int = 0, last: bytes = b"", train: bool = True) -> RoundOrder:
    federation = read_federation(parties / "federation.toml")
    assert federation.network is not None
    return RoundOrder(
        federation.roster.run.hex(), federation.network.experiment, round_, last, train
    )


def decided(parties: Path, round_: int, clients: list[int]) -> tuple[Globals, bytes]:
    federation = read_federation(parties / "federation.toml")
    task = federation.task
    known = Globals(np.ones(task.classes, np.bool_), np.full((task.classes, task.values), 1 << 13))
    servers = [read_signer(parties / f"server-{k}") for k in range(3)]
    return known, certified(federation, servers, round_, known, clients)


@pytest.mark.parametrize("hosted", ["", "client-1"])
def test_clients_of_a_real_federation_are_those_of_fedrfq_client(
    hosted: str, parties: Path, mnist: Dataset, tmp_path: Path
) -> None:
    """They upload the same bytes, signed with their own keys; the state is kept beside these."""
    own = {"folders": str(parties / hosted), "device": "cpu"}
    federation = read_federation(parties / "federation.toml")
    e = node(real(parties), own, {}).trust.experiment
    rules = Rules(federation.roster)
    known, last = decided(parties, 1, [0, 1, 2])
    for sent, globals_ in (
        (real(parties), Globals.none(federation.task.classes, federation.task.values)),
        (real(parties, 1, last), known),
    ):
        answer = NodeAnswer.read(answered(sent.record(), own, {}).record())
        assert answer.clients == ((1,) if hosted else (0, 1, 2)), answer.error
        for client, wire in zip(answer.clients, answer.uploads, strict=True):
            message = decode(wire)
            participant = Participant(
                e,
                client,
                local_dataset.share(e, client, mnist),
                CPU,
                tmp_path / f"model-{client}",
                run="run",
            )
            assert rules.authentic(message)
            assert message.body == Upload(
                sent.round + 1, client, participant.train(sent.round + 1, globals_)
            )
    assert (parties / hosted / "flower" / "kept.safetensors").exists()


def test_its_experiment_is_that_of_its_file(parties: Path, tmp_path: Path) -> None:
    """Not what the server app says it is."""
    sent = replace(real(parties), experiment="nonsense", state=str(tmp_path / "elsewhere"))
    own = {"folders": str(parties / "client-0"), "device": "cpu"}
    assert answered(sent.record(), own, {"state": str(tmp_path / "elsewhere")}).uploads
    assert not (tmp_path / "elsewhere").exists()


def test_it_takes_nothing_from_a_simulated_federation(e: Experiment, parties: Path) -> None:
    own = {"folders": str(parties), "device": "cpu"}
    assert "another federation" in answered(order(e, 0, b"").record(), own, {}).error


def test_a_clients_own_samples(parties: Path, tmp_path: Path, mnist: Dataset) -> None:
    path = tmp_path / "own.npz"
    rows = np.concatenate([np.flatnonzero(mnist.train_y == j)[:6] for j in (3, 5)])
    tests = np.concatenate([np.flatnonzero(mnist.test_y == j)[:4] for j in (3, 5)])
    np.savez(
        path,
        train_x=mnist.train_x[rows],
        train_y=mnist.train_y[rows],
        test_x=mnist.test_x[tests],
        test_y=mnist.test_y[tests],
    )
    own = {
        "folders": str(parties / "client-0"),
        "device": "cpu",
        "data": str(path),
        "state": str(tmp_path / "kept"),
    }
    found = node(real(parties), own, {})
    assert [sorted(set(index.tolist())) for index in found.shard.dataset.train_y[None]] == [[3, 5]]
    assert found.answer(real(parties)).uploads
    assert (tmp_path / "kept" / "kept.safetensors").exists()
    with pytest.raises(UserError, match="samples of their own need a node each"):
        node(real(parties), {**own, "folders": str(parties)}, {})


def test_another_dataset_is_refused(parties: Path) -> None:
    for folders in (parties, parties / "client-0"):
        with pytest.raises(UserError, match="mnist5k"):
            node(real(parties), {"folders": str(folders), "device": "cpu", "data": "mnist"}, {})


def test_a_hosted_client_signs_nowhere_else(
    parties: Path, mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in its own process nor at a node with another state, alone or among others."""
    assert answered(real(parties).record(), {"folders": str(parties), "device": "cpu"}, {}).uploads
    # Its log is not begun either.
    monkeypatch.setattr(WriteAheadLog, "open", None)
    with pytest.raises(UserError, match="client-1 is hosted by a Flower node: go on there"):
        attend(parties / "client-1", "mnist5k", CPU)
    alone = {"folders": str(parties / "client-1"), "device": "cpu"}
    error = answered(real(parties).record(), alone, {}).error
    assert "client-1 is hosted with its state in" in error
    error = answered(real(parties).record(), {**alone, "state": "elsewhere"}, {}).error
    assert "name that as state" in error


def test_a_hosted_client_may_move_with_its_state(parties: Path, mnist: Dataset) -> None:
    before = answered(real(parties).record(), {"folders": str(parties), "device": "cpu"}, {})
    moved = parties.rename(parties.with_name("moved"))
    after = answered(real(moved).record(), {"folders": str(moved), "device": "cpu"}, {})
    assert after.uploads == before.uploads != ()


def test_a_node_that_lost_its_state_does_not_sign_anew(parties: Path, mnist: Dataset) -> None:
    own = {"folders": str(parties), "device": "cpu"}
    before = answered(real(parties).record(), own, {}).uploads
    clientapp._real.cache_clear()
    # It continues with the state that it has.
    assert answered(real(parties).record(), own, {}).uploads == before
    clientapp._real.cache_clear()
    shutil.rmtree(parties / "flower")
    answer = answered(real(parties).record(), own, {})
    assert "has lost what its clients signed: restore it" in answer.error
    assert not answer.uploads


def test_a_state_of_others_hosts_nobody(parties: Path, mnist: Dataset, tmp_path: Path) -> None:
    """Another is to be named, and can be."""
    own = {"folders": str(parties / "client-0"), "device": "cpu", "state": str(tmp_path / "one")}
    assert answered(real(parties).record(), own, {}).uploads
    other = {**own, "folders": str(parties / "client-1")}
    assert "name another folder as state" in answered(real(parties).record(), other, {}).error
    assert answered(real(parties).record(), {**other, "state": str(tmp_path / "two")}, {}).uploads


def test_two_folders_of_one_client_are_one(parties: Path) -> None:
    shutil.copytree(parties / "client-0", parties / "copy")
    hosting = node(real(parties), {"folders": str(parties), "device": "cpu"}, {})
    assert hosting.trust.clients == (0, 1, 2)
