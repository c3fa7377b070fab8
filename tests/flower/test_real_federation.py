"""The server app as a courier to a real federation's servers, which are processes of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedrfq.committee.round_result import LEFT_OUT
from fedrfq.consensus.messages import Message
from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.files import toml
from fedrfq.flower.committee_gateway import NetworkGateway
from fedrfq.flower.messages import NodeAnswer, RoundOrder
from fedrfq.flower.run_directory import NOTHING_CAME
from fedrfq.flower.serverapp import main
from fedrfq.node.membership import founding
from fedrfq.node.ops.local_cluster import free_ports
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session, pick_device
from fedrfq.runs.snapshot import PrototypeSnapshot
from support.command import fedrfq
from support.federations import PATIENCE_S, process, status
from support.flowers import SMALL, Nodes, context, hear

heard = pytest.fixture(autouse=True)(hear)


class Hosts(Nodes):
    """A node for each client of a federation, with the client's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(4)
        self.folder = folder

    def config(self, node: int) -> dict[str, Any]:
        return {"folders": str(self.folder / f"client-{self.hosting[node]}"), "device": "cpu"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return founded(tmp_path, SMALL)


def founded(tmp_path: Path, table: dict[str, Any], deadline_ms: int = 5_000) -> Path:
    """Found a federation for an experiment."""
    path = tmp_path / "parties"
    file = tmp_path / "experiment.toml"
    file.write_text(toml.dump(from_table(table).table()), encoding="utf-8")
    waits = {"minimum": 3, "deadline_ms": deadline_ms, "view_ms": 1_000, "resend_ms": 100}
    founding.init(
        path, [f"127.0.0.1:{port}" for port in free_ports(4)], None, waits, file=file, couriers=1
    )
    return path


@contextmanager
def serving(folder: Path) -> Iterator[None]:
    with ExitStack() as running:
        for k in range(4):
            running.enter_context(process(folder / f"server-{k}"))
        for k in range(4):
            status(folder / f"server-{k}")
        yield


def run(folder: Path, grid: Nodes, **settings: str | float) -> RunDirectory:
    out = folder.parent / "out"
    courier = str(folder / "courier-0")
    defaults: dict[str, str | float] = {"federation": courier, "out": str(out), "deadline_s": 20.0}
    main(grid, context(**{**defaults, "patience_s": PATIENCE_S, **settings}))
    return only(out)


def only(out: Path) -> RunDirectory:
    (path,) = out.glob("*/*")
    return RunDirectory.open(path)


def test_what_real_servers_decide_is_what_simulated_ones_decide(tmp_path: Path) -> None:
    """In the first round statistics on a public map, then prototypes."""
    table = toml.merge(SMALL, {"public": {"name": "random", "second": 2}})
    # The figures are those of all four clients, however busy the machine is.
    folder = founded(tmp_path, table, deadline_ms=120_000)
    with serving(folder):
        found = run(folder, Hosts(folder), deadline_s=120.0)
    session = Session.begin([from_table(table)], pick_device("cpu"), tmp_path / "direct")
    for _ in session.advance():
        pass
    session.finish()
    other = session.runs[0]
    expected = PrototypeSnapshot.load(session.runs[0].path)
    snapshot = PrototypeSnapshot.load(found.path)
    assert expected is not None
    assert snapshot is not None
    assert (snapshot.globals_.values_JV == expected.globals_.values_JV).all()
    assert (snapshot.values_RV == expected.values_RV).all()
    for name in ("clients.csv", "partition.csv"):
        assert (found.path / name).read_bytes() == (other.path / name).read_bytes(), name
    assert found.rounds()[-1].public_accuracy_all == other.rounds()[-1].public_accuracy_all
    assert found.rounds()[-1].public_accuracy_all is not None
    assert "3 of 3" in fedrfq("verify", found.path).stdout
    fedrfq("report", found.path)


def test_a_dropped_upload_is_missed_by_its_client(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Hosts(folder)
    grid.back = lambda node, answer: (
        NodeAnswer(**{**vars(answer), "uploads": ()}) if node == 1 and answer.round == 2 else answer
    )
    with serving(folder):
        found = run(folder, grid)
    assert [record.refused for record in found.rounds()] == [{}, {"1": NOTHING_CAME}, {}]
    assert "round 2 was decided without the uploads that clients 1 had sent" in caplog.text
    assert LEFT_OUT not in (found.path / "rounds.jsonl").read_text()


def test_stopped_when_the_committee_had_decided_it_goes_on_with_that(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = NetworkGateway.carry

    def carry(
        self: NetworkGateway, number: int, last: bytes, uploads: Mapping[int, Message]
    ) -> Any:
        found = decide(self, number, last, uploads)
        if number == 2:
            raise KeyboardInterrupt
        return found

    with serving(folder):
        with monkeypatch.context() as patch:
            patch.setattr(NetworkGateway, "carry", carry)
            with pytest.raises(KeyboardInterrupt):
                run(folder, Hosts(folder))
        stopped = only(folder.parent / "out")
        with pytest.raises(
            UserError,
            match=r"the committee has decided round 2, but this run knows only 0: .*resume='DIR'",
        ):
            run(folder, Hosts(folder), out=str(folder.parent / "another"))
        found = run(folder, Hosts(folder), resume=str(stopped.path))
    assert [record.round for record in found.rounds()] == [1, 2, 3]
    assert "3 of 3" in fedrfq("verify", found.path).stdout


def test_a_round_waits_for_as_many_clients_as_the_federation_says(folder: Path) -> None:
    grid = Hosts(folder)

    def to(_: int, order: RoundOrder) -> RoundOrder:
        grid.away = {2, 3} if order.round == 1 else set()
        return order

    grid.to = to
    with (
        serving(folder),
        pytest.raises(
            UserError, match="2 clients trained round 2 within 3 s, but it needs 3: start the"
        ),
    ):
        run(folder, grid, deadline_s=0.5, patience_s=3)


def test_if_others_carry_too_and_are_ahead_it_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ahead(self: NetworkGateway, number: int, *_: Any) -> Any:
        return SimpleNamespace(round=number + 1)

    monkeypatch.setattr(NetworkGateway, "_carried", ahead)
    line = r"decided round 3 without this app, which carries round 2: continue the run .*resume="
    with pytest.raises(UserError, match=line):
        NetworkGateway(folder / "courier-0", 1).carry(2, b"", {})


def test_a_committee_that_cannot_be_reached_is_said_before_anything_is_trained(
    folder: Path,
) -> None:
    grid = Hosts(folder)
    with pytest.raises(
        UserError, match=r"server-0, server-1, server-2, server-3 cannot be reached; `fedrfq doctor"
    ):
        run(folder, grid, patience_s=0.5)
    assert not grid.orders
    assert not (folder.parent / "out").exists()


def test_only_a_couriers_folder_is_one(folder: Path) -> None:
    with pytest.raises(UserError, match="is a client's folder"):
        run(folder, Hosts(folder), federation=str(folder / "client-0"))
