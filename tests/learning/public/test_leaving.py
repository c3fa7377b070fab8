"""Clients of a run that leave: from their round on, the statistics are those of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq import experiment
from fedrfq.data import Dataset
from fedrfq.experiment import Experiment
from fedrfq.federation import codec
from fedrfq.learning.round_loop import LoopState, RoundLoop, participants
from fedrfq.robust.aggregation import decide_public
from fedrfq.runs.session import Session
from support.command import CPU, SMALL, assert_same_run, fedrfq
from support.small import run, tiny

MAP: dict[str, Any] = {"name": "random", "first": 8, "second": 4, "revocable": True}
DIRECT: dict[str, Any] = {"name": "direct"}
SIMULATED: dict[str, Any] = {"name": "simulated", "faulty": 1, "behaviour": "lie"}


def leaving(leave: str, every: int = 0, **changes: Any) -> Experiment:
    public = {**MAP, "leave": leave, "every": every}
    method = {"name": "fedproto"}
    return tiny(**{"public": public, "method": method, "checkpoint": 1, **changes})


def written(state: LoopState, r: int) -> bytes:
    known = state.public[r]
    assert known is not None
    return codec.encode_globals(known)


def without(asked: Experiment, dataset: Dataset, gone: tuple[int, ...]) -> bytes:
    """Return the statistics of a first exchange in which some clients never took part."""
    loop = RoundLoop([asked], dataset, CPU)
    task = loop.settings[0].task
    assert task.public is not None
    others = [k for k in range(asked.clients) if k not in gone]
    sent = loop.public.exchanges[0].uploads(others)
    nothing = task.public.nothing()
    _, _, found = decide_public(task.detector, task.clients, task.classes, nothing, sent)
    return codec.encode_globals(found)


def test_what_remains_is_as_if_they_had_never_been_there(mnist: Dataset) -> None:
    chosen = {"detector": {"name": "adaptive"}}
    runs = [leaving("2:1 3:4", **chosen, committee=kind) for kind in (DIRECT, SIMULATED)]
    expected = [without(runs[0], mnist, gone) for gone in ((), (1,), (1, 4))]
    assert len(set(expected)) == 3
    loop = RoundLoop(runs, mnist, CPU)
    state = loop.start()
    for statistics in expected:
        state, outcomes = loop.advance(state)
        assert written(state, 0) == written(state, 1) == statistics
        assert len({outcome.record.accuracy_all for outcome in outcomes}) == 1
    assert [outcome.record.participants for outcome in outcomes] == [5, 5]


def test_they_leave_in_an_exchange_too_and_with_a_method_that_sends_nothing(mnist: Dataset) -> None:
    alone = {"method": {"name": "local"}}
    every = [
        leaving("2:1", every=1, **alone),
        leaving("2:1", every=1, **alone, committee=SIMULATED),
    ]
    once = [leaving("2:1", **alone), leaving("2:1", **alone, committee=SIMULATED)]
    expected = without(once[0], mnist, (1,))
    for runs in (every, once):
        state, _ = run(runs, mnist, 3)
        assert written(state, 0) == written(state, 1) == expected


def test_who_has_left_takes_no_part_and_who_leaves_does_once_more() -> None:
    few = leaving("4:0 5:1 6:2 7:3", participation=0.2)
    for number in range(2, 20):
        who = participants(few, number)
        assert {0, 1, 2, 3} & set(who) <= {k for k in range(4) if number <= 4 + k}
        assert set(who) >= {k for k in range(4) if number == 4 + k}
        assert who
    assert participants(leaving("4:0", every=5), 6) == [1, 2, 3, 4, 5]
    plain = tiny(participation=0.5)
    assert participants(plain, 3) == participants(leaving("", participation=0.5), 3)


def test_attackers_and_averaged_models_do_not_mind(mnist: Dataset) -> None:
    attack = {"name": "swap", "clients": 2}
    state, _ = run([leaving("2:0 2:1 2:2", attack=attack)], mnist, 3)
    averaged = {"name": "fedavg"}
    again, _ = run([leaving("2:1", method=averaged)], mnist, 3)
    for found in (state, again):
        assert np.isfinite(found.round)
        assert written(found, 0)


@pytest.mark.usefixtures("_data_folder")
def test_a_run_is_verified_and_resumed_with_it(tmp_path: Path) -> None:
    public = ["public.name=random", "public.first=8", "public.second=4", "public.revocable=true"]
    asked = [*SMALL, *public, "public.leave=3:1", "rounds=4", "committee.name=simulated"]
    paths = []
    for stop in (3, 9):
        session = Session.begin([experiment.load(sets=asked)], CPU, tmp_path / str(stop))
        for outcomes in session.advance():
            if outcomes[0].record.round == stop:
                break
        else:
            session.finish()
        session.close()
        paths.append(session.runs[0].path)
    fedrfq("resume", paths[0])
    assert_same_run(*paths)
    shown = fedrfq("verify", paths[0], "--recompute").stdout
    assert "recomputed" in shown
