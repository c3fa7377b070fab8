"""A client as a process: late, stopped, killed, out of disk space, or on its own samples."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from fedrfq.consensus.events import Decided, LeftOut, Outcome, Submit
from fedrfq.consensus.messages import Cert, Certificate, Kind, Part, Record, Upload
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table
from fedrfq.files import tensors, toml
from fedrfq.learning.public.classifier_file import load_classifier
from fedrfq.learning.round_loop import LoopState, RoundLoop
from fedrfq.models.public_maps import RandomMap
from fedrfq.node import logs
from fedrfq.node.client import ClientEnded, ClientProcess, attend
from fedrfq.node.client_learning import MODEL, participant
from fedrfq.node.learner import Learner
from fedrfq.node.membership import founding, identity
from fedrfq.node.news import News
from fedrfq.node.ops.local_cluster import Cluster, free_ports
from fedrfq.node.participant import ClientAccuracies, Interrupted, Losses, Participant
from fedrfq.node.server import ServerOptions, serve
from fedrfq.node.storage.client_history import NAME, ClientHistory, HistoryLine
from fedrfq.node.storage.write_ahead_log import DamagedLog, DiskFull, WriteAheadLog
from fedrfq.prototypes.fixed_point import Globals
from support.command import fedrfq
from support.federations import page
from support.small import CPU

LIMIT_S = 60.0
SETS = ["partition.ways=3", "partition.spread=1", "partition.shots=7", "partition.test_shots=5"]
WAITS = {"minimum": 1, "deadline_ms": 60_000, "resend_ms": 100}


def new_federation(folder: Path, clients: int, rounds: int, *sets: str, **waits: int) -> Path:
    """Found a federation of one server; clients do not depend on how many there are."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    founding.init(
        folder, [address], clients, WAITS | waits, sets=[*SETS, f"rounds={rounds}", *sets]
    )
    return folder


def experiment(folder: Path) -> Experiment:
    network = identity.load(folder / "client-0").federation.network
    assert network is not None
    return from_table(toml.strict(network.experiment))


def run_alone(found: Experiment, dataset: Dataset) -> LoopState:
    """Return how the experiment ends in one process."""
    runs = RoundLoop([replace(found, train=replace(found.train, alone=True))], dataset, CPU)
    state = runs.start()
    for _ in range(found.rounds):
        state, _ = runs.advance(state)
    return state


def same_model(folder: Path, state: LoopState, client: int) -> bool:
    found, about = tensors.load(folder / MODEL / "model.safetensors")
    assert about["round"] == str(state.round)
    return all(torch.equal(p[0], found[name]) for name, p in state.params[client].items())


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / NAME
    if path.exists():
        return [json.loads(line) for line in path.read_text().splitlines()]
    return []


def process(folder: Path, data: str = "mnist5k") -> ClientProcess:
    own = identity.load(folder)
    return ClientProcess(own, participant(own, data, CPU), lambda line, rounds: None)


async def attended(folder: Path, data: str = "mnist5k", once: bool = False) -> ClientEnded:
    return await asyncio.wait_for(process(folder, data).run(once), LIMIT_S)


def together(folder: Path, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Do the work with the server in the same loop."""

    async def main() -> Any:
        server = asyncio.create_task(serve(identity.load(folder / "server-0"), ServerOptions()))
        try:
            return await asyncio.wait_for(work(), LIMIT_S)
        finally:
            server.cancel()
            await asyncio.gather(server, return_exceptions=True)

    return asyncio.run(main())


async def until(done: Callable[[], bool]) -> None:
    while not done():
        await asyncio.sleep(0.01)


def test_servers_believe_clients_that_train_with_noise(tmp_path: Path) -> None:
    """Both kinds of upload have noise: statistics in round 1, and prototypes in round 2."""
    noisy = ["train.dp_noise=1.5", "train.dp_rate=0.5", "privacy.noise=2.0"]
    noisy += ["privacy.prototype_norm=4.0", "public.name=random", "public.first=8"]
    noisy += ["public.second=4", "method.name=fedproto", "detector.name=sampling"]
    folder = new_federation(tmp_path / "f", 2, 2, *noisy, minimum=2)

    async def work() -> None:
        both = [process(folder / f"client-{k}") for k in range(2)]
        await asyncio.gather(*(one.run(once=False) for one in both))

    together(folder, work)
    for k in range(2):
        own = folder / f"client-{k}"
        assert [line["verdict"] for line in lines(own)] == ["kept"] * 2
        made = cast(Any, participant(identity.load(own), "mnist5k", CPU).privacy).claim()
        assert made.uploads == 2
        # A result may interrupt training that has begun, which then counts twice.
        assert made.steps >= 4
        assert made.epsilon is not None
    fedrfq("verify", folder / "server-0", "--recompute")


def test_clients_learn_what_they_learn_in_one_process(tmp_path: Path, mnist: Dataset) -> None:
    folder = new_federation(tmp_path / "f", 2, 3, minimum=2)

    async def work() -> list[ClientEnded]:
        return await asyncio.gather(
            *(process(folder / f"client-{k}").run(once=False) for k in range(2))
        )

    ended = together(folder, work)
    state = run_alone(experiment(folder), mnist)
    assert [(one.round, one.finished, one.successor) for one in ended] == [(3, True, b"")] * 2
    for k in range(2):
        own = folder / f"client-{k}"
        assert same_model(own, state, k)
        assert [line["round"] for line in lines(own)] == [1, 2, 3]
        assert {line["verdict"] for line in lines(own)} == {"kept"}
        assert all(line["loss"] > 0 for line in lines(own))
        assert ended[k].accuracies.head == lines(own)[-1]["accuracy"]
        assert "3 of 3" in fedrfq("verify", own).stdout
        # The run has ended, and no server is needed to know that.
        again = asyncio.run(attended(own))
        assert again == ended[k]
        assert len(lines(own)) == 3


def test_one_that_comes_late_starts_with_the_current_round(tmp_path: Path) -> None:
    folder = new_federation(tmp_path / "f", 2, 30, deadline_ms=40)
    early = folder / "client-0"
    late = folder / "client-1"

    async def work() -> None:
        first = asyncio.create_task(process(early).run(once=False))
        await until(lambda: len(lines(early)) >= 3)
        ended = await process(late).run(once=False)
        assert ended.finished
        assert (await first).finished

    together(folder, work)
    numbers = [line["round"] for line in lines(late)]
    assert numbers[0] > 3
    assert numbers[-1] == 30
    assert numbers == sorted(set(numbers))
    assert "kept" in {line["verdict"] for line in lines(late)}


def test_once_is_one_round(tmp_path: Path) -> None:
    folder = new_federation(tmp_path / "f", 1, 5)

    async def work() -> list[ClientEnded]:
        return [await process(folder / "client-0").run(once=True) for _ in range(2)]

    ended = together(folder, work)
    assert [(one.round, one.finished) for one in ended] == [(1, False), (2, False)]


def test_samples_of_its_own(tmp_path: Path, mnist: Dataset) -> None:
    arrays = {
        f"{part}_{axis}": getattr(mnist, f"{part}_{axis}")[::40]
        for part in ("train", "test")
        for axis in "xy"
    }
    np.savez(tmp_path / "own.npz", **arrays)
    folder = new_federation(tmp_path / "f", 1, 1)
    together(
        folder, lambda: process(folder / "client-0", str(tmp_path / "own.npz")).run(once=False)
    )
    assert lines(folder / "client-0")[0]["verdict"] == "kept"
    assert tensors.load(folder / "client-0" / MODEL / "model.safetensors")[1]["round"] == "1"


OPEN = [
    "method.name=local",
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "checkpoint=1",
]


def test_without_prototypes_it_learns_on_the_public_map_and_keeps_it_over_restarts(
    tmp_path: Path, mnist: Dataset
) -> None:
    """The statistics of round 1 are still known in round 3, by a process that did not hear them."""
    folder = new_federation(tmp_path / "f", 2, 3, *OPEN, minimum=2)

    async def work() -> None:
        for _ in range(3):
            await asyncio.gather(*(process(folder / f"client-{k}").run(True) for k in range(2)))

    together(folder, work)
    state = run_alone(experiment(folder), mnist)
    for k in range(2):
        own = folder / f"client-{k}"
        found = lines(own)
        assert [(line["round"], line["verdict"]) for line in found] == [
            (number, "kept") for number in (1, 2, 3)
        ]
        # Nothing but the public map tells classes that a client does not hold.
        assert all(line["accuracy_unheld"] > 0 for line in found)
        assert all(line["prototype_accuracy"] is None for line in found)
        assert same_model(own, state, k)
        assert load_classifier(own / MODEL, 0) is not None
        assert "3 of 3" in fedrfq("verify", own).stdout


def test_a_clients_pages_say_what_it_sent_and_what_was_certified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages are there as long as the client runs; the last round waits for another client."""
    folder = new_federation(tmp_path / "f", 2, 2, minimum=2)
    own = folder / "client-0"

    async def work() -> tuple[dict[str, Any], str, str]:
        running = asyncio.create_task(process(own).run(once=False))
        await process(folder / "client-1").run(once=True)
        client = own / "status.json"
        await until(client.exists)
        while True:
            found = json.loads(await asyncio.to_thread(lambda: page(own)[1]))
            if found["receipts"] and found["last"]:
                break
        metrics = await asyncio.to_thread(lambda: page(own, "/metrics")[1])
        text = await asyncio.to_thread(lambda: fedrfq("committee", "status", folder).stdout)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return found, metrics, text

    found, metrics, text = together(folder, work)
    assert (found["name"], found["party"], found["round"], found["rounds"]) == (
        "client-0",
        -1,
        2,
        2,
    )
    assert (found["phase"], found["finished"]) == ("waiting for the result", False)
    assert (found["upload"]["round"], found["receipts"]) == (2, ["server-0"])
    assert (found["last"]["round"], found["last"]["verdict"]) == (1, "kept")
    assert len(found["last"]["value"]) == 64
    assert found["certificate_expires"].startswith("20")
    assert "fedrfq_uploads_total 2\n" in metrics
    assert "fedrfq_certified_round 1\n" in metrics
    assert "fedrfq_certificate_expiry_seconds " in metrics
    rows = [line for line in text.splitlines() if line.startswith("│ client-")]
    assert ["waiting for the result" in rows[0], "not running" in rows[1]] == [True, True]
    assert not (own / "status.json").exists()


def test_a_client_that_lost_its_machine_comes_back_with_its_model_and_new_keys(
    tmp_path: Path,
) -> None:
    """The steps of the operating manual. It may have sent an upload nobody here knows of."""
    folder = new_federation(tmp_path / "f", 2, 9, minimum=1, deadline_ms=300)
    server, own, other = (folder / name for name in ("server-0", "client-0", "client-1"))
    backup = tmp_path / "backup"

    async def lose() -> None:
        await asyncio.gather(*(process(each).run(True) for each in (own, other)))
        shutil.copytree(own / MODEL, backup / MODEL)
        shutil.copy(own / NAME, backup)
        shutil.rmtree(own)
        fedrfq("keys", "new", own, "--name", "client-0")
        fedrfq("committee", "change", server, own / "request.toml", "--out", tmp_path / "new.toml")
        fedrfq("committee", "approve", server, tmp_path / "new.toml")
        assert (await process(other).run(once=False)).successor
        await until(lambda: (server / "past/1/federation.toml").exists())

    async def return_() -> None:
        shutil.copytree(backup, own, dirs_exist_ok=True)
        shutil.copy(tmp_path / "new.toml", own / "federation.toml")
        (own / "past/1").mkdir(parents=True)
        for name in ("federation.toml", "last.bin"):
            shutil.copy(server / "past/1" / name, own / "past/1")
        kept, _ = tensors.load(backup / MODEL / "model.safetensors")
        found = participant(identity.load(own), "mnist5k", CPU).params
        assert all(torch.equal(found[name][0], kept[name]) for name in found)
        await process(own).run(once=True)

    async def work() -> None:
        await lose()
        await return_()

    together(folder, work)
    assert [(line["round"], line["verdict"]) for line in lines(own)][:2] == [(1, "kept")] * 2
    assert "no evidence" in fedrfq("evidence", server).stdout


def test_samples_of_its_own_and_a_public_map(
    tmp_path: Path, mnist: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    few = mnist.train_y[::10] < 3
    few_tests = mnist.test_y[::10] < 3
    np.savez(
        tmp_path / "own.npz",
        train_x=mnist.train_x[::10][few],
        train_y=mnist.train_y[::10][few],
        test_x=mnist.test_x[::10][few_tests],
        test_y=mnist.test_y[::10][few_tests],
        classes=np.array(["0", "1", "2"]),
    )
    folder = new_federation(tmp_path / "f", 1, 1, *OPEN)
    logs.begin("text", "info")
    together(
        folder, lambda: process(folder / "client-0", str(tmp_path / "own.npz")).run(once=False)
    )
    (line_,) = lines(folder / "client-0")
    assert (line_["verdict"], line_["accuracy_all"]) == ("kept", None)
    assert line_["accuracy_combined"] > 50
    assert "no test on all classes" in capsys.readouterr().err


def test_another_public_map_than_the_federations_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one that a later release draws in another way."""
    folder = new_federation(tmp_path / "f", 1, 1, *OPEN)
    own = identity.load(folder / "client-0")
    participant(own, "mnist5k", CPU)
    monkeypatch.setattr(RandomMap, "fingerprint", lambda self: "random:other")
    with pytest.raises(UserError, match=r"public\.map = random:[0-9a-f]+, and .* random:other"):
        participant(own, "mnist5k", CPU)


def test_whose_folder_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_federation(tmp_path / "f", 1, 1)
    with pytest.raises(UserError, match="is a server's folder"):
        attend(folder / "server-0", "mnist5k", CPU)
    with pytest.raises(UserError, match="is on mnist5k"):
        attend(folder / "client-0", "mnist", CPU)
    store = WriteAheadLog.open(
        folder / "client-0", identity.load(folder / "client-0").federation.roster.run
    )
    with pytest.raises(UserError, match="in use by another process"):
        attend(folder / "client-0", "mnist5k", CPU)
    store.close()

    def damaged(*arguments: Any) -> WriteAheadLog:
        raise DamagedLog(folder / "client-0" / "log" / "1.log", 7, "it is not what was written")

    monkeypatch.setattr(WriteAheadLog, "open", damaged)
    with pytest.raises(UserError, match=r"move log/, audit\.log and bodies\.bin away") as error:
        attend(folder / "client-0", "mnist5k", CPU)
    assert "fedrfq server" not in str(error.value)


def test_a_full_disk_ends_it_with_the_reason_and_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = new_federation(tmp_path / "f", 1, 2)
    flush = WriteAheadLog.flush
    failed = []

    def full(store: WriteAheadLog) -> None:
        if store.folder.name == "client-0" and store._buffer and not failed:
            failed.append(store)
            raise DiskFull("no space left")
        flush(store)

    monkeypatch.setattr(WriteAheadLog, "flush", full)
    with pytest.raises(UserError, match="no space left"):
        together(folder, lambda: process(folder / "client-0").run(once=False))
    assert not lines(folder / "client-0")
    messages = WriteAheadLog.open(
        folder / "server-0", identity.load(folder / "server-0").federation.roster.run
    ).messages
    assert not any(isinstance(message.body, Upload) for message in messages)


def test_told_to_stop_it_gives_up_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = new_federation(tmp_path / "f", 1, 2)
    training = threading.Event()
    interrupted = threading.Event()

    def train(own: Participant, number: int, globals_: Globals) -> bytes:
        training.set()
        if interrupted.wait(LIMIT_S):
            raise Interrupted
        raise AssertionError("nobody interrupted it")

    monkeypatch.setattr(Participant, "train", train)
    monkeypatch.setattr(
        Participant, "interrupt", lambda own: interrupted.set() if training.is_set() else None
    )

    async def work() -> ClientEnded:
        running = process(folder / "client-0")
        ending = asyncio.create_task(running.run(once=False))
        await until(training.is_set)
        running._stop_requested.set()
        return await ending

    assert asyncio.run(work()) == ClientEnded(0, False, None)
    assert interrupted.is_set()


def test_what_was_signed_is_sent_again_and_never_made_anew(tmp_path: Path, mnist: Dataset) -> None:
    """It is stopped between signing and sending: no server was there."""
    folder = new_federation(tmp_path / "f", 1, 2)
    own = folder / "client-0"

    async def unheard() -> None:
        working = asyncio.create_task(process(own).run(once=False))
        await until(
            lambda: b"".join(p.read_bytes()[200:] for p in (own / "log").glob("*.log")) != b""
        )
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    asyncio.run(unheard())
    run = identity.load(own).federation.roster.run
    signed = _logged(own, run)
    assert [type(message.body) for message in signed] == [Upload]
    together(folder, lambda: process(own).run(once=False))
    found = _logged(own, run)
    assert found[0].wire == signed[0].wire
    assert [type(message.body) for message in found] == [
        Upload,
        Cert,
        Part,
        Part,
        Upload,
        Cert,
        Part,
        Part,
    ]
    assert same_model(own, run_alone(experiment(folder), mnist), 0)


def _logged(folder: Path, run: bytes) -> list[Any]:
    store = WriteAheadLog.open(folder, run)
    store.close()
    return store.messages


def test_who_was_left_out_is_told_and_nobody_else(tmp_path: Path) -> None:
    given: list[Any] = []
    decided = Decided(
        Certificate(Kind.COMMIT, 0, Record(3, *[bytes(32)] * 7), ()), Outcome(b"", b"", b""), ()
    )
    for verdict in ("kept", "filtered", ""):
        news = News(3, Globals.none(1, 1), verdict)
        own = SimpleNamespace(
            _audit=SimpleNamespace(decided=lambda decided: None),
            _news=lambda *found, news=news: news,
            _driver=SimpleNamespace(give=given.append),
            _learner=SimpleNamespace(hear=given.append),
            _compactor=SimpleNamespace(due=False),
        )
        ClientProcess._decided(cast(ClientProcess, own), decided)
    assert [each.verdict if isinstance(each, News) else each for each in given] == [
        "kept",
        "filtered",
        LeftOut(3),
        "",
    ]


def test_a_server_that_comes_is_soon_told_what_it_has_missed(tmp_path: Path) -> None:
    federation = identity.load(new_federation(tmp_path / "f", 1, 1) / "client-0").federation
    found = []
    own = cast(
        ClientProcess,
        SimpleNamespace(
            _federation=federation, _driver=SimpleNamespace(peer_joined=lambda: found.append(True))
        ),
    )
    ClientProcess._peer(own, 0, False)
    assert not found
    ClientProcess._peer(own, 0, True)
    assert found


def test_the_log_is_compacted_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrfq.node.storage.compaction.MIN_BYTES", 1)
    folder = new_federation(tmp_path / "f", 1, 8)
    own = folder / "client-0"
    together(folder, lambda: process(own).run(once=False))
    kinds = [
        type(message.body) for message in _logged(own, identity.load(own).federation.roster.run)
    ]
    assert kinds.count(Cert) == 8
    assert kinds.count(Upload) < 8
    assert asyncio.run(attended(own)).finished


@contextmanager
def children(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def wait(done: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not done():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_killed_and_stopped_it_ends_with_the_same_bytes(tmp_path: Path, mnist: Dataset) -> None:
    folder = new_federation(tmp_path / "f", 1, 24)
    own = folder / "client-0"
    with children(folder) as cluster:
        client = cluster.children[~0]
        wait(lambda: len(lines_so_far(own)) >= 2)
        client.kill()
        client.start()
        before = len(lines_so_far(own))
        wait(lambda: len(lines_so_far(own)) > before or client.code is not None)
        client.signal(signal.SIGTERM)
        wait(lambda: client.code is not None)
        assert client.code == 0
        client.start()
        wait(lambda: client.code is not None)
        assert client.code == 0, client.output.read_text()
    said = client.output.read_text()
    assert "stopped  after_round" in said or "finished" in said
    assert [line["round"] for line in lines(own)] == list(range(1, 25))
    assert same_model(own, run_alone(experiment(folder), mnist), 0)


def lines_so_far(folder: Path) -> list[str]:
    path = folder / NAME
    if path.exists():
        return path.read_text().split("\n")[:-1]
    return []


# The learner, with one that pretends to train


class Pretender:
    """Trains until it is told that it may end."""

    def __init__(self) -> None:
        self.round = 0
        self.losses = Losses(3.0, 1.0, 2.0)
        self.asked: list[int] = []
        self.interrupted = threading.Event()
        self.may_end = threading.Event()
        self.absent: set[int] = set()

    def takes_part(self, number: int) -> bool:
        return number not in self.absent

    def train(self, number: int, globals_: Globals) -> bytes:
        self.asked.append(number)
        limit = time.monotonic() + LIMIT_S
        while not self.may_end.is_set():
            assert time.monotonic() < limit
            if self.interrupted.wait(0.001):
                self.interrupted.clear()
                raise Interrupted
        self.round = number
        return b"content of round %d" % number

    def heard(self, number: int, counted: bytes) -> None:
        pass

    def interrupt(self) -> None:
        self.interrupted.set()

    def test(
        self, number: int, globals_: Globals, public: Globals | None = None
    ) -> ClientAccuracies:
        return ClientAccuracies(90.0, 80.0, 85.0)


NOTHING = Globals.none(2, 3)


def learning(tmp_path: Path, pause_s: int = 0) -> SimpleNamespace:
    given: list[Submit] = []
    pretender = Pretender()
    history = ClientHistory(tmp_path, "aa")
    return SimpleNamespace(
        given=given,
        pretender=pretender,
        learner=Learner(cast(Participant, pretender), history, given.append, pause_s),
    )


def test_a_round_that_is_over_makes_training_stale(tmp_path: Path) -> None:
    async def main() -> None:
        it = learning(tmp_path)
        it.learner.hear(News(0, NOTHING))
        working = asyncio.create_task(it.learner.learn(once=False))
        await until(lambda: it.pretender.asked[-1:] == [1])
        it.learner.hear(News(4, NOTHING))
        await until(lambda: it.pretender.asked[-1:] == [5])
        it.pretender.may_end.set()
        await until(lambda: bool(it.given))
        assert it.given == [Submit(5, b"content of round 5")]
        it.learner.hear(News(5, NOTHING, "filtered", 7, last=True))
        assert (await working).round == 5

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    found = lines(tmp_path)
    assert [(line["round"], line["loss"], line["verdict"], line["score"]) for line in found] == [
        (4, None, "", None),
        (5, 3.0, "filtered", 7),
    ]


def test_who_is_not_drawn_waits(tmp_path: Path) -> None:
    async def main() -> None:
        it = learning(tmp_path)
        it.pretender.absent = {1, 3}
        it.pretender.may_end.set()
        it.learner.hear(News(0, NOTHING))
        working = asyncio.create_task(it.learner.learn(once=False))
        for number in (1, 2, 3):
            await asyncio.sleep(0.01)
            it.learner.hear(News(number, NOTHING, last=number == 3))
            await until(lambda number=number: len(lines(tmp_path)) == number)
            await until(lambda number=number: number != 1 or bool(it.given))
        await working
        assert [trained.round for trained in it.given] == [2]

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_training_that_fails_ends_the_learning(tmp_path: Path) -> None:
    async def main() -> None:
        it = learning(tmp_path)

        def fail(number: int, globals_: Globals) -> bytes:
            raise UserError("lower train.lr")

        it.pretender.train = fail
        it.learner.hear(News(0, NOTHING))
        await it.learner.learn(once=False)

    with pytest.raises(UserError, match=r"lower train\.lr"):
        asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def test_each_round_says_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        it = learning(tmp_path)
        it.learner.hear(News(3, NOTHING, "kept", 0, last=True))
        await it.learner.learn(once=False)

    logs.begin("json", "info")
    asyncio.run(main())
    said = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert (said["event"], said["round"], said["accuracy"], said["verdict"]) == (
        "round completed",
        3,
        90.0,
        "kept",
    )


# The pause between rounds

PAUSE_S = 2
# What two clocks of one machine may differ by.
SLACK = timedelta(seconds=0.1)


def times(folder: Path) -> list[datetime]:
    """Return when a client heard the results, one for each round."""
    return [datetime.fromisoformat(line["at"]) for line in lines(folder)]


def test_clients_pause_between_rounds_also_when_they_are_started_again(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    waits = WAITS | {"minimum": 2, "deadline_ms": 1000 * (PAUSE_S + 60)}
    address = f"127.0.0.1:{free_ports(1)[0]}"
    founding.init(folder, [address], 2, waits, sets=[*SETS, "rounds=3"], pause_s=PAUSE_S)
    assert "pause_s = 2\n" in (folder / "federation.toml").read_text()

    async def first_after_start() -> ClientEnded:
        await process(folder / "client-0").run(once=True)
        running = process(folder / "client-0")
        going_on = asyncio.create_task(running.run(once=False))
        await until(lambda: running._tracker.phase().startswith("pausing until 2"))
        return await going_on

    async def work() -> None:
        await asyncio.gather(first_after_start(), attended(folder / "client-1"))

    together(folder, work)
    for client in range(2):
        found = times(folder / f"client-{client}")
        gaps = [after - before for before, after in pairwise(found)]
        assert len(gaps) == 2
        assert min(gaps) > timedelta(seconds=PAUSE_S) - SLACK


def test_who_was_away_when_a_result_came_does_not_pause(tmp_path: Path) -> None:
    """It does not know since when the others do, and might miss the round after."""
    paused: list[datetime] = []

    async def main() -> None:
        it = learning(tmp_path, pause_s=3600)
        it.pretender.may_end.set()
        it.learner.on_pause = paused.append
        # From its log, of an earlier start, when it had not heard that result.
        it.learner.hear(News(4, NOTHING))
        working = asyncio.create_task(it.learner.learn(once=False))
        await until(lambda: bool(it.given))
        # This one it hears as it comes, and pauses; a newer result ends the pause.
        it.learner.hear(News(5, NOTHING))
        await until(lambda: len(lines(tmp_path)) == 2)
        assert len(it.given) == 1
        it.learner.hear(News(6, NOTHING))
        await until(lambda: len(it.given) == 2)
        working.cancel()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert [bool(line["at"]) for line in lines(tmp_path)] == [False, True, False]
    assert ClientHistory(tmp_path, "bb").at is None
    assert len(paused) == 1


def test_a_clock_that_was_set_back_does_not_lengthen_the_pause(tmp_path: Path) -> None:
    later = datetime.now(UTC) + timedelta(days=300)
    written = ClientHistory(tmp_path, "aa")
    written.write(replace(line(1), at=later.isoformat()))
    paused: list[datetime] = []

    async def main() -> None:
        it = learning(tmp_path, pause_s=1)
        it.learner.on_pause = paused.append
        it.pretender.may_end.set()
        it.learner.hear(News(1, NOTHING))
        working = asyncio.create_task(it.learner.learn(once=False))
        await until(lambda: bool(it.given))
        working.cancel()

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert len(paused) == 1


# The history


def line(number: int) -> HistoryLine:
    return HistoryLine(number, 90.0, 80.0, 85.0, 1.0, 0.5, 0.5, "kept", 0, 0.1)


def test_a_round_is_written_once_and_a_torn_line_is_gone(tmp_path: Path) -> None:
    history = ClientHistory(tmp_path, "aa")
    history.write(line(1))
    history.write(line(2))
    history.write(line(2))
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"run": "aa", "rou')
    again = ClientHistory(tmp_path, "aa")
    assert again.last == 2
    again.write(line(2))
    again.write(line(3))
    assert [found["round"] for found in lines(tmp_path)] == [1, 2, 3]
    assert ClientHistory(tmp_path, "bb").last == 0  # another run's


def test_a_history_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text("no\n")
    with pytest.raises(UserError, match="move the file away"):
        ClientHistory(tmp_path, "aa")
