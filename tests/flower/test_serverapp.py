"""The server app without Flower's engines: nodes answer in this process."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from fedrfq import data
from fedrfq.consensus.messages import Message, Part, PartKind
from fedrfq.errors import UserError
from fedrfq.experiment import from_table
from fedrfq.federation.round_log import pack, unpack
from fedrfq.files import toml
from fedrfq.flower.committee_gateway import SimulatedGateway
from fedrfq.flower.messages import RoundOrder
from fedrfq.flower.packed_result import public_in
from fedrfq.flower.serverapp import main
from fedrfq.learning import metrics
from fedrfq.learning.public.classifier_file import CLASSIFIERS
from fedrfq.runs.inference import ClientModel
from fedrfq.runs.run_directory import RunDirectory
from fedrfq.runs.session import Session, pick_device
from support.flowers import SMALL, Nodes, context, hear, written

FILES = (
    "audit.log",
    "bodies.bin",
    "clients.csv",
    "federation.toml",
    "partition.csv",
    "prototypes.safetensors",
)
TIMES = ("seconds", "seconds_train")
# In small what examples/open.toml is, and other experiments with a public map.
OPEN: dict[str, dict[str, Any]] = {
    "local": {"method": {"name": "local"}, "public": {"name": "random", "second": 8}},
    "prototypes, again and again": {
        "rounds": 4,
        "participation": 0.5,
        "validation": 0.3,
        "public": {"name": "random", "second": 8, "every": 3, "threshold": 0.6},
    },
    "moments, labels poisoned": {
        "method": {"name": "codes"},
        "attack": {"name": "label-flip", "clients": 1},
        "detector": {"name": "median"},
        "public": {"name": "random", "second": 2, "bits": 12, "moments": "full", "every": 1},
        "rounds": 2,
    },
}

heard = pytest.fixture(autouse=True)(hear)


def run(
    folder: Path, grid: Nodes, changes: Mapping[str, Any] | None = None, **settings: str | float
) -> RunDirectory:
    """Run the small experiment, with changes, on the app."""
    path = written(folder, toml.merge(SMALL, changes or {}))
    defaults: dict[str, str | float] = {"experiment": path, "out": str(folder / "flower")}
    main(grid, context(**{**defaults, "deadline_s": 5.0, "patience_s": 60.0, **settings}))
    return only(folder / "flower")


def only(out: Path) -> RunDirectory:
    """Return the only run below this folder."""
    (path,) = out.glob("*/*")
    return RunDirectory.open(path)


def direct(folder: Path, changes: Mapping[str, Any] | None = None) -> RunDirectory:
    """Run the small experiment, with changes, without Flower."""
    experiment = from_table(toml.merge(SMALL, changes or {}))
    session = Session.begin([experiment], pick_device("cpu"), folder / "direct")
    for _ in session.advance():
        pass
    session.finish()
    return session.runs[0]


def records(found: RunDirectory) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in asdict(record).items() if key not in TIMES}
        for record in found.rounds()
    ]


def same(one: RunDirectory, other: RunDirectory, files: tuple[str, ...] = FILES) -> None:
    for name in files:
        assert (one.path / name).read_bytes() == (other.path / name).read_bytes(), name
    assert records(one) == records(other)


def test_trackers_that_nobody_would_tell_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is for `fedrfq run`, and `fedrfq watch` follows"):
        run(tmp_path, Nodes(4), {"track": "mlflow"})
    assert not (tmp_path / "flower").exists()


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_run_leaves_the_bytes_that_a_run_without_flower_leaves(
    tmp_path: Path, nodes: int
) -> None:
    found = run(tmp_path, Nodes(nodes))
    other = direct(tmp_path)
    same(found, other)
    result = found.result()
    expected = other.result()
    assert result is not None
    assert expected is not None
    assert {key for key in result if result[key] != expected[key]} <= {
        "silhouette",
        "silhouette_unpooled",
        "samples_per_second",
        "seconds",
        "run_dir",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"attack": {"name": "label-flip", "clients": 2}, "detector": {"name": "median"}},
        {"participation": 0.5},
        {"method": {"name": "fedproto"}},
        {"method": {"name": "fedsa", "inertia": 0.5}},
        {"committee": {"faulty": 1, "network": "lossy"}},
    ],
)
def test_whatever_the_experiment_is(tmp_path: Path, changes: dict[str, Any]) -> None:
    same(run(tmp_path, Nodes(4), changes), direct(tmp_path, changes))


@pytest.mark.parametrize("method", ["local", "codes", "self"])
def test_where_nothing_is_exchanged_there_is_no_committee(tmp_path: Path, method: str) -> None:
    changes = {"method": {"name": method}, "committee": {"name": "direct"}}
    local = {key: value for key, value in SMALL.items() if key != "committee"}
    path = written(tmp_path, toml.merge(local, changes))
    main(Nodes(2), context(experiment=path, out=str(tmp_path / "flower")))
    found = only(tmp_path / "flower")
    session = Session.begin(
        [from_table(toml.merge(local, changes))], pick_device("cpu"), tmp_path / "direct"
    )
    for _ in session.advance():
        pass
    same(found, session.runs[0], ("clients.csv", "partition.csv"))
    assert not found.audited()


@pytest.mark.parametrize("changes", OPEN.values(), ids=OPEN)
def test_statistics_on_a_public_map_and_what_clients_learn_from_them(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = run(tmp_path, Nodes(3), changes)
    other = direct(tmp_path, changes)
    files = tuple(name for name in FILES if (other.path / name).exists())
    same(found, other, (*files, CLASSIFIERS))
    assert files == tuple(name for name in FILES if (found.path / name).exists())
    assert "audit.log" in files
    last = found.rounds()[-1]
    assert last.accuracy_all is not None
    assert last.public_accuracy_unheld is not None


def test_the_public_part_goes_to_nodes_that_do_not_have_it(tmp_path: Path) -> None:
    grid = Nodes(2)
    sent = list[tuple[int, int, bool]]()

    def to(node: int, order: RoundOrder) -> RoundOrder:
        if not order.hello:
            sent.append((node, order.round, bool(public_in(order.last))))
        if node == 1 and order.round == 3 and not order.hello:
            # It loses its state, once, and refuses what it cannot check.
            shutil.rmtree(Path(order.state) / "clients-2-3", ignore_errors=True)
        return order

    grid.to = to
    run(tmp_path, grid, toml.merge(OPEN["local"], {"rounds": 5}))
    assert [(node, number) for node, number, with_public in sent if with_public] == [
        (0, 1),
        (1, 1),
        (1, 5),
    ]
    assert (1, 3, False) in sent
    assert all(order.last == b"" for order in grid.orders if order.hello)


@pytest.mark.parametrize(
    "changes",
    [
        OPEN["local"],
        # Not everybody takes part in the only round: some have the model that they started with.
        {
            "rounds": 1,
            "participation": 0.5,
            "model": {"name": "cnn"},
            "cohorts": [{"clients": 1, "channels": 8}, {"clients": 3, "channels": 10}],
        },
    ],
)
def test_every_clients_model_predicts_as_after_a_run_without_flower(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    found = run(tmp_path, Nodes(3), changes)
    other = direct(tmp_path, changes)
    image = tmp_path / "digit.png"
    Image.fromarray(data.load("mnist5k").test_x[0, 0]).save(image)
    for client in range(4):
        expected = ClientModel.load(other, client).predict([image])
        assert ClientModel.load(found, client).predict([image]) == expected


def test_models_that_are_kept_elsewhere_are_left_there(tmp_path: Path) -> None:
    """As the nodes of a real federation do."""
    grid = Nodes(2)
    grid.to = lambda node, order: replace(order, state=str(tmp_path / "elsewhere"))
    found = run(tmp_path, grid, OPEN["local"])
    assert not (found.path / CLASSIFIERS).exists()
    with pytest.raises(UserError, match="stay with its nodes"):
        ClientModel.load(found, 0)


def test_an_experiment_that_came_with_the_app_is_found_and_models_go_where_they_should(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "app").mkdir()
    written(tmp_path / "app", toml.merge(SMALL, {"rounds": 1}))
    monkeypatch.syspath_prepend(str(tmp_path / "app"))
    monkeypatch.chdir(tmp_path)
    main(Nodes(2), context(experiment="experiment.toml", state=str(tmp_path / "models")))
    assert not (only(tmp_path / "runs").path / "state").exists()
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == [
        "clients-0-1",
        "clients-2-3",
    ]


def test_a_line_a_round_says_how_it_went(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = run(tmp_path, Nodes(2))
    lines = [
        line for line in caplog.messages if "round" in line and "accuracy" in line and "/3" in line
    ]
    assert len(lines) == 3
    for line, record in zip(lines, found.rounds(), strict=True):
        assert f"round {record.round}/3: accuracy {record.accuracy_mean:.2f}" in line
        assert "4 clients, 0 filtered, view 0" in line
    assert f"on all classes {found.rounds()[-1].accuracy_all:.2f}" in lines[-1]


def test_the_collector_leaves_alone_what_was_loaded_before_the_first_round(tmp_path: Path) -> None:
    grid = Nodes(2)
    frozen = list[int]()

    def to(_: int, order: RoundOrder) -> RoundOrder:
        frozen.extend([gc.get_freeze_count()] * (not order.hello))
        return order

    grid.to = to
    run(tmp_path, grid)
    assert min(frozen) > 1000
    # When the run is over, all is as before.
    assert gc.get_freeze_count() < 1000


def test_a_record_is_made_on_one_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine, a second thread would have to be waited for."""
    threads = list[int]()
    failure = metrics.prototype_failure

    def measured(*args: Any) -> Any:
        threads.append(torch.get_num_threads())
        return failure(*args)

    monkeypatch.setattr(metrics, "prototype_failure", measured)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        run(tmp_path, Nodes(2))
    finally:
        torch.set_num_threads(before)
    assert threads == [1, 1, 1]


def test_if_the_federation_was_changed_the_run_says_that_it_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry = SimulatedGateway.carry

    def changing(
        self: SimulatedGateway, number: int, last: bytes, uploads: Mapping[int, Message]
    ) -> Any:
        agreed = carry(self, number, last, uploads)
        if number == 2:
            return replace(agreed, last=_succeeded(agreed.last))
        return agreed

    monkeypatch.setattr(SimulatedGateway, "carry", changing)
    grid = Nodes(2)
    line = r"was changed in round 2, which ends this run: remove .* run them with `fedrfq client`"
    with pytest.raises(UserError, match=line):
        run(tmp_path, grid, patience_s=1)
    assert max(order.round for order in grid.orders) == 1


def _succeeded(last: bytes) -> bytes:
    """Return the result with a successor."""
    messages = [placed.message for placed in unpack(last)]
    successor = Part(messages[0].body.round, PartKind.SUCCESSOR, b"next")
    return pack([*messages, Message(messages[0].run, successor)])


# Nodes that go and come


def test_a_node_that_vanishes_is_left_out_and_may_return_under_another_number(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes(4)

    def away(_: int, order: Any) -> Any:
        if order.round == 1 and not order.hello:
            grid.away = {3}
        if order.round == 3 and not order.hello and 3 in grid.hosting:
            del grid.hosting[3]
            grid.hosting[8] = 3
            grid.away = set()
        return order

    grid.to = away
    found = run(tmp_path, grid, {"rounds": 6}, deadline_s=0.5)
    numbers = [record.participants for record in found.rounds()]
    assert numbers[0] == 4
    assert numbers[1] == 3
    assert numbers[-1] == 4
    assert "node 103 gave no valid answer: continuing without clients 3" in caplog.text
    assert "node 108 hosts clients 3" in caplog.text
    rows = [line.split(",") for line in (found.path / "clients.csv").read_text().splitlines()]
    of_three = {row[0]: row[5] for row in rows if row[1] == "3"}
    # While the node is away, its clients' figures stay.
    assert of_three["2"] == of_three["1"]
    assert of_three["6"] != "0.0"


def test_two_nodes_with_one_client_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes(4)
    grid.hosting[9] = 2
    run(tmp_path, grid)
    assert "node 109: it hosts client 2, as node 102 does" in caplog.text or (
        "node 102: it hosts client 2, as node 109 does" in caplog.text
    )


def test_a_greeting_that_nobody_answers_is_repeated(tmp_path: Path) -> None:
    grid = Nodes(2)
    greetings = list[int]()
    grid.away = {1}

    def to(node: int, order: Any) -> Any:
        greetings.extend([1] * (node == 1 and order.hello))
        if len(greetings) == 2:
            grid.away = set()
        return order

    grid.to = to
    records = run(tmp_path, grid, deadline_s=0.3, patience_s=20).rounds()
    assert [record.participants for record in records] == [4, 4, 4]
    assert len(greetings) == 2


def test_a_node_of_which_the_engine_says_that_it_failed_is_named_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes(2)
    grid.broken = {1}
    with pytest.raises(UserError, match=r"a node said: it fell over \[2J$"):
        run(tmp_path, grid, patience_s=0.5)
    assert caplog.messages.count("node 101: it fell over [2J") == 1


@pytest.mark.parametrize("clients", [(), (3, 4)])
def test_a_node_that_hosts_nobody_of_this_experiment_is_not_entered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clients: tuple[int, ...]
) -> None:
    grid = Nodes(2)
    grid.back = lambda node, answer: replace(answer, clients=clients) if node == 1 else answer
    with pytest.raises(UserError, match="2 of 4 clients are hosted"):
        run(tmp_path, grid, patience_s=0.3)
    assert "node 101: it hosts none of the clients 0 to 3" in caplog.text


def test_a_node_that_answers_for_others_than_it_said_is_not_heard(tmp_path: Path) -> None:
    grid = Nodes(4)

    def back(node: int, answer: Any) -> Any:
        if answer.round != 2 or node != 3:
            return answer
        return replace(answer, clients=(0, 3), figures=None)

    grid.back = back
    records = run(tmp_path, grid, {"rounds": 4}).rounds()
    assert [record.participants for record in records] == [4, 3, 3, 4]


def test_too_few_clients_are_waited_for_so_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Nodes(4)
    grid.away = {1, 2}
    with pytest.raises(
        UserError, match=r"2 of 4 clients are hosted after 0\.3 s, 1, 2 are not: start the nodes"
    ):
        run(tmp_path, grid, patience_s=0.3)
    levels = [record.levelname for record in caplog.records if "2 of 4" in record.message]
    assert levels == ["ERROR"]


def test_what_a_node_says_is_said_to_the_user(tmp_path: Path) -> None:
    class Keyless(Nodes):
        def config(self, node: int) -> dict[str, Any]:
            return {}

    with pytest.raises(UserError, match="a node said: this node has no clients"):
        run(tmp_path, Keyless(2), patience_s=0.3)


def test_if_nobody_trains_any_more_the_run_stops_and_says_how_to_go_on(tmp_path: Path) -> None:
    grid = Nodes(2)

    def gone(_: int, order: Any) -> Any:
        if order.round == 2:
            grid.away = {0, 1}
        return order

    grid.to = gone
    with pytest.raises(
        UserError,
        match="0 clients trained round 3 within 1 s, but it needs 1: start the nodes, and continue",
    ) as error:
        run(tmp_path, grid, deadline_s=0.2, patience_s=1)
    main(Nodes(2), context(resume=str(error.value).split("'")[1]))
    same(only(tmp_path / "flower"), direct(tmp_path))


def test_a_node_that_only_says_that_it_trained_is_waited_for(tmp_path: Path) -> None:
    grid = Nodes(2)
    grid.back = lambda node, answer: replace(answer, uploads=())
    with pytest.raises(UserError, match="0 clients trained round 1 within 1 s, but it needs 1"):
        run(tmp_path, grid, patience_s=1)


# Stopped, and going on


class Killed(BaseException):
    """Ends the run as the system would: nothing is caught or logged."""


@pytest.mark.parametrize("at", [1, 2, 3])
@pytest.mark.parametrize("where", ["carry", "certified", "recorded"])
def test_killed_and_run_again_it_leaves_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, where: str
) -> None:
    with monkeypatch.context() as patch:
        _kill(patch, at, where)
        with pytest.raises(Killed):
            run(tmp_path, Nodes(4))
    stopped = only(tmp_path / "flower")
    certified = (stopped.path / "audit.log").read_bytes()
    main(Nodes(4), context(resume=str(stopped.path), experiment="not looked at"))
    assert (stopped.path / "audit.log").read_bytes().startswith(certified)
    same(only(tmp_path / "flower"), direct(tmp_path))


def _kill(patch: pytest.MonkeyPatch, at: int, where: str) -> None:
    """Kill the run before it decides a round, before it proves it, or once it has recorded it."""
    decide = SimulatedGateway.carry
    prove = RunDirectory.prove
    write = RunDirectory.append

    def carry(
        self: SimulatedGateway, number: int, last: bytes, uploads: Mapping[int, Message]
    ) -> Any:
        if number == at:
            raise Killed
        return decide(self, number, last, uploads)

    def proving(self: RunDirectory, report: Any) -> None:
        if (
            report.bodies
            and (self.path / "decided.safetensors").is_file()
            and _rounds(self) == at - 1
        ):
            raise Killed
        prove(self, report)

    def append(self: RunDirectory, outcome: Any) -> None:
        write(self, outcome)
        if outcome.record.round == at:
            raise Killed

    target, name = {
        "carry": (SimulatedGateway, "carry"),
        "certified": (RunDirectory, "prove"),
        "recorded": (RunDirectory, "append"),
    }[where]
    patch.setattr(target, name, {"carry": carry, "certified": proving, "recorded": append}[where])


def _rounds(run: RunDirectory) -> int:
    return len((run.path / "rounds.jsonl").read_text().splitlines())


def test_a_run_of_another_experiment_is_not_gone_on_with(tmp_path: Path) -> None:
    found = run(tmp_path, Nodes(2))
    (found.path / "federation.toml").write_text("")
    with pytest.raises(UserError, match="of another experiment or federation"):
        main(Nodes(2), context(resume=str(found.path)))
    with pytest.raises(
        UserError, match=r"was run on Flower; resume it there: `fedrfq flower run APP"
    ):
        Session.resume(found.path, pick_device("cpu"))


# Bad input


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"method": {"name": "fedavg"}, "pool": {"name": "none"}},
            "method 'fedavg' averages models",
        ),
        (
            {"committee": {"name": "direct"}},
            'set committee.name = "simulated", or give `federation`',
        ),
        (
            {"attack": {"name": "sign-flip", "clients": 1}},
            "attack 'sign-flip' changes uploads after clients have signed them",
        ),
    ],
)
def test_what_the_app_cannot_run_it_says(
    tmp_path: Path, changes: dict[str, Any], line: str
) -> None:
    table = {key: value for key, value in SMALL.items() if key not in ("committee", "train")}
    if "attack" in changes:
        table["committee"] = SMALL["committee"]
    path = written(tmp_path, toml.merge(table, changes))
    with pytest.raises(UserError, match=line.replace("(", r"\(")):
        main(Nodes(2), context(experiment=path, out=str(tmp_path / "out")))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({}, "no experiment is given: "),
        ({"experiment": "nowhere.toml"}, "there is no experiment file nowhere.toml"),
        ({"experimnt": "a.toml"}, r"no setting experimnt \(did you mean experiment\?\)"),
        ({"experiment": "a.toml", "deadline_s": "soon"}, "deadline-s must be a number, not 'soon'"),
        ({"experiment": "a.toml", "deadline_s": 0}, "deadline-s must be more than 0 seconds"),
        ({"experiment": 1}, "experiment must be a text, not 1"),
        ({"resume": "nowhere"}, "nowhere is not a run directory"),
        ({"federation": "nowhere"}, "nowhere"),
    ],
)
def test_bad_settings_are_one_line(
    settings: dict[str, Any], line: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match=line) as error:
        main(Nodes(1), context(**settings))
    assert "\n" not in str(error.value)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_the_records_are_strict_json(tmp_path: Path) -> None:
    found = run(tmp_path, Nodes(4), {"participation": 0.25})
    for line in (found.path / "rounds.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(name))
