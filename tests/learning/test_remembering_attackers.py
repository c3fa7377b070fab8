"""Attackers that search and remember, in whole federations on real images."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.committee import PreviousRound
from fedrfq.data import Dataset
from fedrfq.learning.attackers_scene import attackers_scene
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.round_loop import LoopState, RoundLoop, attackers
from fedrfq.prototypes.fixed_point import LIMIT, Ints, Uploads
from fedrfq.robust.attacks import ATTACKS, Scene
from fedrfq.robust.attacks.search import displacement
from fedrfq.runs.session import Session
from support.command import CPU
from support.committees import some_settings, uploads
from support.remembering import Halving
from support.small import run, tiny

MLP = {"name": "mlp", "width": 20}
TEN: dict[str, Any] = {"clients": 10, "model": MLP}
MAP = {"name": "random", "first": 4, "second": 8, "moments": "full", "projection": 12, "bits": 16}


def against(
    mnist: Dataset, detector: str, rounds: int, attacks: list[dict[str, Any]], **more: Any
) -> tuple[LoopState, list[list[RoundOutcome]]]:
    """Return the last state, and the rounds, of one stack with a run for each attack by three."""
    experiments = [
        tiny(**{**TEN, **more}, attack={"clients": 3, **attack}, detector={"name": detector})
        for attack in attacks
    ]
    return run(experiments, mnist, rounds)


def honest_dropped(outcome: RoundOutcome) -> int:
    return len(outcome.record.filtered) - outcome.record.attackers_filtered


# What they foresee


def check_foresight(loop: RoundLoop, rounds: int) -> None:
    """Check that attackers who try what is sent foresee what the committee then decides."""
    state = loop.start()
    for number in range(1, rounds + 1):
        after, outcomes = loop.advance(state)
        for r, outcome in enumerate(outcomes):
            task = loop.settings[r].task
            before = loop._previous(r, state)
            scene = attackers_scene(task, number, before, outcome.sent, loop.malicious[r])
            assert (scene.round, scene.rule, scene.classes) == (number, task.rule, 10)
            foreseen = scene.foresee(outcome.sent)
            dropped = [k for k, kept in enumerate(foreseen.kept_K) if not kept]
            refused = [int(k) for k in outcome.record.refused]
            assert dropped == sorted([*outcome.record.filtered, *refused])
            scores = [row["score"] for row in outcome.clients]
            assert [int(score) for score in foreseen.score_K] == scores
            decided = after.globals_[r]
            if task.public_in(number) is not None:
                assert after.public[r] is not None
                decided = after.public[r] or decided
            assert displacement(decided, foreseen.globals_) == 0
            assert np.array_equal(decided.present_J, foreseen.globals_.present_J)
        state = after


def test_attackers_are_told_what_the_detector_remembers_and_not_the_rule() -> None:
    task = replace(some_settings().task, detector=Halving())
    before = PreviousRound.start(task)
    assert "rule/rounds" in before.memory
    scene = attackers_scene(task, 1, before, uploads(some_settings(), 1), [0])
    assert list(scene.state) == ["rounds"]


def test_attackers_foresee_what_the_servers_decide(mnist: Dataset) -> None:
    attacks: list[dict[str, Any]] = [
        {"name": "swap"},
        {"name": "optimal-frame"},
        {"name": "scale", "strength": 1e6},
    ]
    method = {"name": "fedproto", "aggregate": "trimmed"}
    experiments = [
        tiny(**TEN, attack={"clients": 3, **attack}, detector={"name": detector}, method=method)
        for attack in attacks
        for detector in ("median", "adaptive")
    ]
    check_foresight(RoundLoop(experiments, mnist, CPU), 2)


def test_attackers_foresee_public_rounds(mnist: Dataset) -> None:
    public = {**MAP, "every": 2}
    experiment = tiny(
        **TEN, attack={"name": "swap", "clients": 3}, detector={"name": "median"}, public=public
    )
    check_foresight(RoundLoop([experiment], mnist, CPU), 3)


def scene_before_the_first_round(loop: RoundLoop) -> tuple[Scene, Uploads]:
    """Return the first round's scene, and what is sent in it."""
    state = loop.start()
    _, (outcome,) = loop.advance(state)
    before = loop._previous(0, state)
    task = loop.settings[0].task
    return attackers_scene(task, 1, before, outcome.sent, loop.malicious[0]), outcome.sent


def test_attackers_foresee_that_others_are_refused(mnist: Dataset) -> None:
    loop = RoundLoop([tiny(**TEN, attack={"name": "swap", "clients": 3})], mnist, CPU)
    scene, sent = scene_before_the_first_round(loop)
    values_KJV = sent.values_KJV.copy()
    values_KJV[4, sent.held_KJ[4]] = LIMIT
    foreseen = scene.foresee(replace(sent, values_KJV=values_KJV))
    assert foreseen.kept_K.tolist() == [k != 4 for k in range(10)]


def test_attackers_foresee_what_becomes_of_their_second_moments(mnist: Dataset) -> None:
    """Other counts than those of the classes would be refused, so they are not what is sent."""
    experiment = tiny(**TEN, attack={"name": "swap", "clients": 3}, public=MAP)
    scene, sent = scene_before_the_first_round(RoundLoop([experiment], mnist, CPU))
    assert scene.classes == 10 < sent.counts_KJ.shape[1]
    counts_KJ = sent.counts_KJ.copy()
    counts_KJ[scene.malicious_K, 10:] += 1
    assert scene.all_kept(replace(sent, counts_KJ=counts_KJ))


# The searches


@pytest.mark.parametrize("detector", ["none", "adaptive"])
@pytest.mark.parametrize("name", ["ipm", "alie"])
def test_a_searched_factor_moves_the_centres_farther_and_nobody_is_dropped(
    mnist: Dataset, name: str, detector: str
) -> None:
    """In the second round, when classes have begun to part; both start from the same first one.

    The adaptive detector leaves little to search for.
    """
    attacks: list[dict[str, Any]] = [{"name": "none"}, {"name": name}, {"name": f"optimal-{name}"}]
    started = [{**attack, "start_round": 2} for attack in attacks]
    state, rounds = against(mnist, detector, 2, started)
    peace, plain, optimal = state.globals_
    least = 1.2 if detector == "none" else 1.0
    assert displacement(peace, optimal) > least * displacement(peace, plain)
    assert rounds[1][2].record.attackers_filtered == 0


@pytest.mark.parametrize("detector", ["bft-mean", "adaptive"])
def test_framers_who_search_have_honest_uploads_dropped_where_that_can_be_done(
    mnist: Dataset, detector: str
) -> None:
    """The detector that drops a client every round can be led; the adaptive one cannot."""
    attacks: list[dict[str, Any]] = [{"name": "frame"}, {"name": "optimal-frame"}]
    _, rounds = against(mnist, detector, 3, attacks)
    plain, optimal = (sum(map(honest_dropped, run)) for run in zip(*rounds, strict=True))
    if detector == "adaptive":
        assert plain == optimal == 0
    else:
        assert plain <= optimal == 3, "an honest client in every round"


# Over several rounds


def test_drift_goes_a_step_a_round(mnist: Dataset) -> None:
    """By a fifth of the way each; without a detector nobody is dropped."""
    attacks: list[dict[str, Any]] = [{"name": "none"}, {"name": "drift", "strength": 0.2}]
    experiments = [tiny(**TEN, attack={"clients": 3, **attack}) for attack in attacks]
    loop = RoundLoop(experiments, mnist, CPU)
    state = loop.start()
    moved = []
    for steps in range(1, 5):
        state, _ = loop.advance(state)
        assert {name: int(known) for name, known in state.attack[1].items()} == {"steps": steps}
        assert state.attack[0] == {}
        moved.append(displacement(*state.globals_))
    assert moved[-1] > 4 * moved[0] > 0


def test_sleepers_are_honest_then_attack_and_are_honest_again_once_found(mnist: Dataset) -> None:
    attacks: list[dict[str, Any]] = [
        {"name": "none"},
        {"name": "sleeper", "sleep": 2, "then": "scale"},
    ]
    experiments = [
        tiny(**TEN, attack={"clients": 3, **attack}, detector={"name": "median", "psi": 3})
        for attack in attacks
    ]
    loop = RoundLoop(experiments, mnist, CPU)
    state = loop.start()
    asleep = []
    for number in range(1, 7):
        state, (peace, sleeper) = loop.advance(state)
        asleep.append(int(state.attack[1]["asleep"]))
        if number <= 2:
            assert sleeper.sent.values_KJV.tobytes() == peace.sent.values_KJV.tobytes()
        if number == 3:
            bad = loop.malicious[1]
            assert (sleeper.sent.values_KJV != peace.sent.values_KJV)[bad].any()
            assert sleeper.record.attackers_filtered > 0
    assert asleep == [1, 0, 2, 1, 0, 2]


# One class


def moved_classes(state: LoopState) -> Ints:
    """Return the classes whose centres the second run of a stack has elsewhere than the first."""
    one, other = state.globals_
    moved_J = (one.values_JV != other.values_JV).any(1) | (one.present_J != other.present_J)
    return np.flatnonzero(moved_J)


def test_a_backdoor_moves_one_class_toward_another(mnist: Dataset) -> None:
    attacks: list[dict[str, Any]] = [
        {"name": "none"},
        {"name": "backdoor", "victim": 4, "target": 9},
    ]
    state, _ = against(mnist, "none", 1, attacks)
    peace, moved = (known.values_JV for known in state.globals_)
    assert moved_classes(state).tolist() == [4]
    before, after = (float(np.linalg.norm(known[4] - peace[9])) for known in (peace, moved))
    assert after < 0.8 * before


@pytest.mark.parametrize("lone", ["keep", "hold"])
def test_a_sole_holder_displaces_a_class_unless_lone_classes_are_held_back(
    mnist: Dataset, lone: str
) -> None:
    """Clients of one class each leave some class to the attackers alone."""
    experiments = [
        tiny(
            **TEN,
            attack={"name": name, "clients": 3},
            detector={"name": "none", "lone": lone},
            partition={"ways": 1, "spread": 0, "draw": "normal"},
        )
        for name in ("none", "sole")
    ]
    loop = RoundLoop(experiments, mnist, CPU)
    held_KJ = loop.held_of(1).numpy()
    honest = [k for k in range(10) if k not in attackers(experiments[1])]
    free = np.flatnonzero(~held_KJ[honest].any(0))
    victim = int(held_KJ[honest].sum(0).argmax())
    assert len(free), "choose another seed"
    state, (_, outcome) = loop.advance(loop.start())
    known = state.globals_[1]
    claimed = int(free[free != victim][0])
    (holder,) = np.flatnonzero(outcome.sent.held_KJ[:, claimed])
    assert holder == attackers(experiments[1])[0]
    if lone == "hold":
        assert not known.present_J[claimed]
    else:
        distance_J = np.linalg.norm(known.values_JV - known.values_JV[claimed], axis=1)
        distance_J[[claimed, *free]] = np.inf
        distance_J[~known.present_J] = np.inf
        assert distance_J.argmin() == victim


# What is saved


def test_memories_are_saved_and_a_resumed_run_goes_on_to_the_same_bytes(
    mnist: Dataset, tmp_path: Path
) -> None:
    """Two groups, one that drifts and one that sleeps, beside a run of another attack."""
    groups = {"name": "groups", "clients": 3, "first": "drift", "second": "sleeper"}
    experiments = [
        tiny(**TEN, rounds=4, checkpoint=2, attack=groups, detector={"name": "adaptive"}),
        tiny(**TEN, rounds=4, checkpoint=2, attack={"name": "drift", "clients": 3}),
    ]
    whole = Session.begin(experiments, CPU, tmp_path / "whole", mnist)
    list(whole.advance())
    whole.close()
    broken = Session.begin(experiments, CPU, tmp_path / "broken", mnist)
    assert len(list(islice(broken.advance(), 3))) == 3
    broken.close()
    resumed = Session.resume(broken.runs[0].path, CPU)
    assert resumed.state.round == 2
    assert int(resumed.state.attack[0]["first/steps"]) == 2
    assert int(resumed.state.attack[0]["second/asleep"]) == 3
    assert int(resumed.state.attack[1]["steps"]) == 2
    list(resumed.advance())
    for one, other in zip(whole.runs, resumed.runs, strict=True):
        assert one.checkpoints()[4].read_bytes() == other.checkpoints()[4].read_bytes()
        assert timeless(one.path) == timeless(other.path)


def timeless(path: Path) -> list[dict[str, Any]]:
    """Return a run's records without the times that they took."""
    lines = (path / "rounds.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("seconds")}
        for line in lines
    ]


def test_no_memory_leaves_no_trace_in_a_checkpoint(mnist: Dataset, tmp_path: Path) -> None:
    """So checkpoints of attacks without a memory are as they were before there were any."""
    experiment = tiny(**TEN, rounds=1, attack={"name": "swap", "clients": 3})
    session = Session.begin([experiment], CPU, tmp_path, mnist)
    list(session.advance())
    session.close()
    assert session.state.attack == ({},)
    assert b"attack/" not in session.runs[0].checkpoints()[1].read_bytes()


@pytest.mark.parametrize("name", [name for name, kind in ATTACKS.items() if kind.on_uploads])
def test_attackers_who_come_and_go_attack_all_the_same(mnist: Dataset, name: str) -> None:
    """In rounds with no attacker, one, and all of them."""
    attack = {"name": name, "clients": 2}
    _, rounds = run([tiny(attack=attack, participation=0.4, model=MLP)], mnist, 5)
    assert {outcome.record.attackers for (outcome,) in rounds} >= {0, 1}
