"""One server alone that lies, forgets or crashes, against one that does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedrfq.committee import AgreedRound, Alone, Direct, PreviousRound, Simulated
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.robust.detectors.adaptive import AdaptiveDetector
from fedrfq.runs.session import Session
from fedrfq.studies.axes import Axes
from fedrfq.studies.study import Study
from support.command import fedrfq
from support.committees import CLASSES, rounds, some_settings, uploads
from support.small import CPU, tiny


def same(a: Globals, b: Globals) -> bool:
    return np.array_equal(a.present_J, b.present_J) and np.array_equal(a.values_JV, b.values_JV)


def globals_of(found: list[AgreedRound]) -> list[Globals]:
    return [agreed.decision.globals_ for agreed in found]


@pytest.mark.parametrize("behaviour", ["honest", "forget", "crash"])
def test_it_decides_as_a_trusted_server_until_it_misbehaves(behaviour: str) -> None:
    settings = some_settings(5)
    for mine, right in zip(
        rounds(Alone(behaviour, at=3), settings, 2), rounds(Direct(), settings, 2), strict=True
    ):
        assert same(mine.decision.globals_, right.decision.globals_)
        assert all(
            np.array_equal(mine.decision.state[key], right.decision.state[key])
            for key in right.decision.state
        )
        assert mine.decision.verdict.kept_K.tolist() == right.decision.verdict.kept_K.tolist()


def test_a_liar_gives_each_class_anothers_prototype_and_knows_what_is_right() -> None:
    settings = some_settings(5)
    for mine, right in zip(
        globals_of(rounds(Alone("lie"), settings, 4)),
        globals_of(rounds(Direct(), settings, 4)),
        strict=True,
    ):
        assert right.present_J.all()
        assert np.array_equal(mine.values_JV, np.roll(right.values_JV, 1, 0))
        assert mine.present_J.all()


def test_a_liar_goes_on_from_what_is_right_for_a_class_that_nobody_sends() -> None:
    settings = some_settings(5)
    first = rounds(Alone("lie"), some_settings(5), 1)[0]
    sent = uploads(settings, 2)
    sent = replace(sent, counts_KJ=sent.counts_KJ * (np.arange(CLASSES) > 0))
    before = PreviousRound(first.last, first.decision.state, first.decision.globals_)
    told = Alone("lie").decide(settings, 2, before, sent)
    right = rounds(Direct(), settings, 1)[0].decision.globals_
    assert np.array_equal(told.decision.globals_.values_JV[1], right.values_JV[0])


def test_only_prototypes_that_are_there_are_swapped() -> None:
    settings = some_settings(5)
    sent = uploads(settings, 1)
    sent = replace(sent, counts_KJ=sent.counts_KJ * (np.arange(CLASSES) != 1))
    before = PreviousRound.start(settings.task)
    told = Alone("lie").decide(settings, 1, before, sent).decision.globals_
    right = Direct().decide(settings, 1, before, sent).decision.globals_
    assert told.present_J.tolist() == [True, False, True]
    assert np.array_equal(told.values_JV[[0, 2]], right.values_JV[[2, 0]])
    assert not told.values_JV[1].any()


def test_a_forgetful_one_loses_prototypes_and_memory_every_so_many_rounds() -> None:
    settings = some_settings(5, detector=AdaptiveDetector())
    found = rounds(Alone("forget", at=2), settings, 5)
    assert [bool(globals_.present_J.any()) for globals_ in globals_of(found)] == [
        True,
        False,
        True,
        False,
        True,
    ]
    start = settings.task.detector.start(5)
    for agreed in (found[1], found[3]):
        assert all(np.array_equal(agreed.decision.state[key], start[key]) for key in start)
    assert any(not np.array_equal(found[0].decision.state[key], start[key]) for key in start)


def test_a_crashed_one_takes_nothing_and_everything_stays() -> None:
    found = rounds(Alone("crash", at=3), some_settings(5), 5)
    for agreed in found[2:]:
        assert same(agreed.decision.globals_, found[1].decision.globals_)
        assert agreed.decision.state is found[1].decision.state
        assert not agreed.decision.uploads.clients
        assert agreed.decision.uploads.refused == dict.fromkeys(range(5), "the server is down")


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"behaviour": "lye"}, "did you mean lie"), ({"at": 0}, "committee.at must be 1 or more")],
)
def test_impossible_ones_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        Alone(**options)  # type: ignore[arg-type]


def test_it_says_what_it_is() -> None:
    assert Alone("lie").about() == "one server alone (lie)"
    assert Alone("crash", at=4).about() == "one server alone (crash in round 4)"
    assert Alone("forget", at=4).about() == "one server alone (forget every 4 rounds)"
    assert "alone" in fedrfq("list", "committees").stdout
    assert Alone().federation(some_settings()) is None


def test_runs_of_it_are_stacked_with_others_and_differ_by_its_options(mnist: Dataset) -> None:
    kinds = [
        {"name": "direct"},
        *({"name": "alone", "behaviour": b, "at": 2} for b in ("honest", "lie", "forget", "crash")),
    ]
    experiments = [tiny(committee=kind) for kind in kinds]
    assert len({experiment.hash() for experiment in experiments}) == 5
    loop = RoundLoop(experiments, mnist, CPU)
    state = loop.start()
    for _ in range(2):
        state, outcomes = loop.advance(state)
    assert same(state.globals_[0], state.globals_[1])
    assert not state.globals_[3].present_J.any()
    right = outcomes[0].record
    lied = outcomes[2].record
    assert (lied.prototype_accuracy_mean or 0) < (right.prototype_accuracy_mean or 0)
    assert outcomes[4].record.refused == {str(k): "the server is down" for k in range(6)}


def test_a_liars_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    experiment = tiny(committee={"name": "alone", "behaviour": "lie"}, rounds=2, checkpoint=1)
    session = Session.begin([experiment], CPU, tmp_path)
    next(session.advance())
    session.close()
    resumed = Session.resume(session.runs[0].path, CPU)
    assert resumed.state.agreed == session.state.agreed != (b"",)


def test_the_study_sets_one_alone_against_four_of_whom_one_is_so() -> None:
    study = Study.load("servers")
    found = {
        labels: experiment.committee
        for (labels, _), experiment in Axes.of(study).experiments.items()
    }
    alone = "one server alone"
    four = "four servers, one of them so"
    assert {labels: committee for labels, committee in found.items() if labels[1] == alone} == {
        ("honest", alone): Alone("honest"),
        ("lying", alone): Alone("lie"),
        ("forgetful", alone): Alone("forget", at=4),
        ("crashing", alone): Alone("crash", at=4),
    }
    assert {labels[0]: committee for labels, committee in found.items() if labels[1] == four} == {
        "honest": Simulated(4, 0),
        "lying": Simulated(4, 1, "lie"),
        "forgetful": Simulated(4, 1, "crash"),
        "crashing": Simulated(4, 1, "silent"),
    }
    for quick in (False, True):
        rounds_ = {e.rounds for e in Axes.of(Study.load("servers", quick)).experiments.values()}
        # The last round is not one that the forgetful server has just forgotten.
        assert all(number > 4 and number % 4 for number in rounds_)
