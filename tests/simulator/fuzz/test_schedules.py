"""Schedules: the same seed gives the same run, all kinds of faults occur, and all are borne."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fedrfq.consensus.client import Client
from fedrfq.consensus.compaction import compacted
from fedrfq.consensus.events import Event
from fedrfq.consensus.messages import Kind, Message
from fedrfq.consensus.replica import Replica
from fedrfq.consensus.rules import Rules
from fedrfq.simulator.adversaries import BEHAVIOURS, CLIENTS
from fedrfq.simulator.fuzz.held_messages import attributes
from fedrfq.simulator.fuzz.schedule import Schedule
from fedrfq.simulator.fuzz.schedule_run import ScheduleRun, draw, run
from fedrfq.simulator.party import Action, Crash, SimulatedParty
from support.simulated import IDEAL, PLAIN


def trial(schedule: Schedule, replica: type[Replica] = Replica, wire: bool = False) -> ScheduleRun:
    """Run a schedule, and return the run once it has passed."""
    schedule_run = ScheduleRun(schedule, replica, Rules, Client, IDEAL)
    schedule_run.world.wire = wire
    schedule_run.run()
    return schedule_run


def test_the_same_seed_gives_the_same_transcript() -> None:
    """The other run is in another process, where bytes hash differently."""
    script = """
import sys
from fedrfq.simulator.fuzz.schedule import draw
from fedrfq.simulator.fuzz.schedule_run import run
sys.stdout.write("".join(run(draw(seed, 4), trace=True).transcript for seed in range(8)))
"""
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    there = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=env,
        check=True,
        timeout=60,
    )
    here = "".join(run(draw(seed, 4), trace=True).transcript for seed in range(8))
    assert here == there.stdout
    assert len(here) > 10_000


@pytest.mark.parametrize(("n", "seeds"), [(4, 120), (5, 25), (6, 15), (7, 15), (10, 4)])
def test_schedules_hold(n: int, seeds: int) -> None:
    for seed in range(seeds):
        report = run(draw(seed, n))
        assert report.violation is None, f"n={n} seed={seed}: {report.violation}"


def test_every_schedule_is_large_enough_and_has_a_fault() -> None:
    for seed in range(2000):
        schedule = draw(seed, 4)
        faults = (
            schedule.behaviours,
            schedule.faulty_clients,
            schedule.crashes,
            schedule.links.calm_ms,
            schedule.weak_client,
        )
        assert schedule.rounds >= 3
        assert schedule.clients >= 4
        assert any(faults) or schedule.links.slow_ms > schedule.view_ms
        assert len(schedule.behaviours) <= 1


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_each_behaviour_of_servers_is_borne(name: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(6):
        schedule = replace(
            PLAIN, seed=seed, n=7, behaviours=((1, name), (3, name)), faulty_clients=((0, "late"),)
        )
        report = run(schedule)
        assert report.violation is None, f"seed={seed}: {report.violation}"
        counts += report.exercised
    assert counts[f"server {name}"] == 12
    assert counts["rounds decided"] == 18


@pytest.mark.parametrize("name", CLIENTS)
def test_each_behaviour_of_clients_is_borne(name: str) -> None:
    for seed in range(10):
        report = run(replace(PLAIN, seed=seed, faulty_clients=((1, name),)))
        assert report.violation is None, f"seed={seed}: {report.violation}"


def test_what_goes_wrong_is_counted() -> None:
    counts: Counter[str] = Counter()
    for seed in range(1000, 1150):
        counts += run(draw(seed, 4)).exercised
    wanted = [
        "crashes",
        "restarts",
        "lost",
        "doubled",
        "cut off",
        "partitions",
        "clock jumps",
        "view changes",
        "catch-ups",
    ]
    wanted += ["logs lost", "logs cut to their essence", "run over", "fetches", "weak key refused"]
    wanted += ["decided in view 0", "decided in view 1", "decided in view 2"]
    kinds = ("UPLOAD", "LIST", "PREPREPARE", "PREPARE", "COMMIT")
    wanted += [f"evidence of two {kind}" for kind in kinds]
    wanted += [f"server {name}" for name in BEHAVIOURS] + [f"client {name}" for name in CLIENTS]
    assert not [name for name in wanted if not counts[name]]


def test_bytes_on_the_wire_lead_to_the_same_decisions() -> None:
    for seed in range(12):
        schedule = replace(
            draw(seed, 4),
            behaviours=(),
            faulty_clients=((0, "equivocating"),),
            change_proposals=0.5,
            clients_fetch=True,
        )
        as_objects = trial(schedule)
        as_bytes = trial(schedule, wire=True)
        assert as_objects.observer.chain.values == as_bytes.observer.chain.values


def test_bytes_that_are_no_message_are_refused() -> None:
    refused = 0
    for seed in range(8):
        schedule = replace(draw(seed, 4), behaviours=((2, "forge"),), crashes=())
        refused += trial(schedule, wire=True).world.counts["bytes refused"]
    assert refused > 20


def test_a_crash_at_every_effect_of_every_step() -> None:
    """The leader of round 1 comes back with what it persisted and nothing else."""
    steps = [len(actions) for actions in _actions_of(1)]
    assert len(steps) > 40
    for step, number in enumerate(steps, 1):
        for effects in range(number):
            crashed = trial(replace(PLAIN, crashes=(Crash(1, step, effects, 5),)))
            assert crashed.world.counts["crashes"] == 1, (step, effects)


def _actions_of(party: int) -> list[Any]:
    """Return the actions of a party in each of its steps."""
    steps = []

    def note(now: int, node: SimulatedParty, event: Event, actions: Sequence[Action]) -> None:
        if node.party == party:
            steps.append(actions)

    schedule_run = ScheduleRun(PLAIN, Replica, Rules, Client, IDEAL)
    schedule_run.world.trace = note
    schedule_run.run()
    return steps


def test_a_crash_when_something_becomes_durable() -> None:
    for kind in (
        Kind.UPLOAD,
        Kind.LIST,
        Kind.PREPREPARE,
        Kind.PREPARE,
        Kind.COMMIT,
        Kind.CERT,
        Kind.BODY,
    ):
        for effects in range(3):
            crashed = trial(replace(PLAIN, crashes=(Crash(1, 1, effects, 50, kind),)))
            assert crashed.world.counts["crashes"] == 1, (kind, effects)


def test_a_log_is_lost_at_every_step() -> None:
    """A server that would have led follows the others to the end, and speaks again before it."""
    for step in range(1, len(_actions_of(1)), 3):
        crash = Crash(1, step, 1, 5, forgets=True)
        lost = trial(replace(PLAIN, rounds=5, seed=step, change_proposals=0.2, crashes=(crash,)))
        assert lost.world.counts["logs lost"] == 1, step


def test_what_matters_of_a_log_recalls_to_the_same_place() -> None:
    """This is checked at every crash of many schedules, also of servers that rejoin."""
    shortened: list[bool] = []
    for seed in range(60):
        schedule_run = ScheduleRun(draw(seed, 4), Replica, Rules, Client, IDEAL)
        on_crash = partial(_compare_logs, schedule_run._on_crash, shortened)
        schedule_run._on_crash = on_crash  # type: ignore[method-assign]
        schedule_run.run()
    assert sum(shortened) > 10


def _compare_logs(
    on_crash: Callable[[SimulatedParty, Crash], list[Message]],
    shortened: list[bool],
    node: SimulatedParty,
    crash: Crash,
) -> list[Message]:
    short = compacted(node.log)
    assert short == compacted(short)
    assert _remembered(node.make_machine(short)) == _remembered(node.make_machine(node.log))
    shortened.append(len(short) < len(node.log))
    return on_crash(node, crash)


def _remembered(machine: Any) -> dict[Any, Any]:
    """Return a machine's state, except what it shares with others or no longer needs.

    The lists of the round before and a silence long over need not be recalled.
    """
    shared = ("rules", "roster", "signer", "application", "effects", "state_changed", "ignored")
    left_out = (
        *shared,
        "_rules",
        "_roster",
        "upload_lists last",
        "abstains_through",
    )
    state = dict(attributes(machine))
    if isinstance(machine, Replica):
        for part in ("state", "certificates", "record_parts", "rejoining", "early"):
            state |= attributes(state.pop(part))
        for part in ("votes", "view_changes", "requests"):
            state |= attributes(state.pop(part))
        state["evidence"] = state.pop("proofs").kept
        for part in ("upload_pool", "proposal_pool", "upload_lists"):
            inner = attributes(state.pop(part))
            state |= {f"{part} {name}": value for name, value in inner.items()}
    return {name: value for name, value in state.items() if name not in left_out}
