"""Theorem 1 along a run: the measured loss is the program's, and the terms are the theorem's."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.engine.engine import Program
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment, from_table, without_replaced_kinds
from fedrfq.files import toml
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.stacked import TrainingStep
from fedrfq.paper import descent
from fedrfq.paper.bound import BoundPlan
from fedrfq.paper.client_gradients import (
    ClientLoss,
    Point,
    curvature,
    minibatches,
    variance,
)
from fedrfq.paper.descent import Exchanged, MeasuredRound, check, descend
from fedrfq.paper.theorem import Constants, MeasuredSetting, largest_lam, s8_holds, terms
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.study import Study
from support.studies import shown, study_of

SMALL: dict[str, Any] = {
    "rounds": 4,
    "clients": 3,
    "partition": {"ways": 3, "spread": 0, "shots": 4, "test_shots": 2},
    "model": {"name": "mlp", "width": 8, "hidden": 8},
    "train": {"momentum": 0.0, "lr": 0.02, "batch_size": 2},
    "method": {"lam": 2.0},
    "detector": {"name": "bft", "psi": 1},
}
TABLE: dict[str, Any] = {
    "iterations": 3,
    "powers": 3,
    "starts": 2,
    "experiment": SMALL,
    "axes": {"setting": {"two": {}, "tiny": {"method": {"lam": 1e-6}, "train": {"lr": 1e-4}}}},
}


def small(**changes: Any) -> Experiment:
    return from_table(toml.merge(without_replaced_kinds(SMALL, changes), changes))


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def random_globals(experiment: Experiment, dataset: Dataset) -> Globals:
    """Return global prototypes of random values, for all classes."""
    values = rng().integers(0, 2**14, (len(dataset.classes), experiment.prototype_size()))
    return Globals(np.ones(len(dataset.classes), np.bool_), values)


@pytest.fixture(scope="module")
def client(mnist: Dataset) -> tuple[ClientLoss, torch.Tensor, Globals]:
    experiment = small(model={"name": "cnn", "drop": 0.0}, clients=2)
    clients, weights = descent._clients(experiment, mnist)
    return clients[0], weights[0], random_globals(experiment, mnist)


@pytest.fixture(scope="module")
def rounds(mnist: Dataset) -> list[MeasuredRound]:
    return descend(small(), mnist, 3, 3, lambda number: None)


def measure(
    client: ClientLoss,
    walk: list[Point],
    before: Exchanged,
    after: Exchanged,
    curvature: float = 0.0,
) -> MeasuredRound:
    """Measure the first client in round 2."""
    return descent._measure(
        client,
        walk,
        before,
        after,
        client_number=0,
        round_number=2,
        curvature_at_start=curvature,
    )


# A client's loss


def test_the_loss_and_its_gradient_are_the_program_s_own(
    client: tuple[ClientLoss, torch.Tensor, Globals],
) -> None:
    one, w, known = client
    loss, gradient = one.whole(w, one.guide(known))
    sizes = [p.numel() for p in one.like.values()]
    pieces = w.float().split(sizes)
    params = {
        n: q.view(1, *p.shape).requires_grad_()
        for (n, p), q in zip(one.like.items(), pieces, strict=True)
    }
    step = TrainingStep(torch.ones(1, len(one.y)), None)
    program: Program = one.program
    batch = program.batch(params, one.x[None].float(), one.y[None], step)
    total, _, prototype = program.method.losses(batch, program.method.guide(2, known, params))
    assert loss == pytest.approx(total.item(), rel=1e-5)
    assert prototype.item() > 0.1
    own = torch.cat([g.flatten() for g in torch.autograd.grad(total.sum(), list(params.values()))])
    assert torch.allclose(gradient.float(), own, atol=1e-4)
    assert gradient.dtype == torch.float64


def test_samples_one_by_one_make_up_the_whole(
    client: tuple[ClientLoss, torch.Tensor, Globals],
) -> None:
    one, w, known = client
    guide = one.guide(known)
    losses_N, gradients_NP, c_ND = one.samples(w, guide)
    loss, gradient = one.whole(w, guide)
    assert len(losses_N) == len(gradients_NP) == len(c_ND) == len(one.y)
    assert losses_N.mean().item() == pytest.approx(loss, rel=1e-12)
    assert torch.allclose(gradients_NP.mean(0), gradient, atol=1e-12)
    point = one.point(w, guide, rng())
    assert (point.loss, point.variance) == (
        losses_N.mean().item(),
        variance(gradients_NP, one.program.train.batch_size),
    )
    assert torch.equal(point.gradient, gradients_NP.mean(0))
    drawn = minibatches(gradients_NP, 2, 16, rng())
    assert torch.equal(point.drawn, drawn[0])
    assert point.norm == pytest.approx(drawn.norm(dim=1).mean().item())
    assert torch.equal(point.c_ND, c_ND)


def test_the_decision_layer_is_no_part_of_the_representation(
    client: tuple[ClientLoss, torch.Tensor, Globals],
) -> None:
    one, w, _ = client
    below = one.representation()
    assert len(below) == len(w)
    assert (~below).sum() == 8 * 10 + 10
    assert not below[-90:].any()


def test_the_variance_is_that_of_all_minibatches() -> None:
    gradients_NP = torch.from_numpy(rng().standard_normal((4, 3)))
    every = torch.stack(
        [gradients_NP[list(chosen)].mean(0) for chosen in product(range(4), repeat=3)]
    )
    exact = (every - gradients_NP.mean(0)).square().sum(1).mean().item()
    assert variance(gradients_NP, 3) == pytest.approx(exact)


def test_minibatches_are_drawn_anew_and_with_replacement() -> None:
    drawn = minibatches(torch.eye(4, dtype=torch.float64), 3, 500, rng())
    assert drawn.shape == (500, 4)
    assert torch.allclose(drawn.sum(1), torch.ones(500, dtype=torch.float64))
    assert (drawn == 1).any()
    assert len({tuple(row) for row in drawn.tolist()}) > 10


def test_the_curvature_is_the_largest_absolute_eigenvalue() -> None:
    bent = torch.diag(torch.tensor([3.0, -5.0, 1.0], dtype=torch.float64))
    w = torch.ones(3, dtype=torch.float64)
    assert curvature(lambda at: bent @ at, w, 40, rng()) == pytest.approx(5, rel=1e-6)
    assert curvature(lambda at: at * 0, w, 40, rng()) == 0


# The run


def test_uploads_are_what_a_federation_s_clients_send(mnist: Dataset) -> None:
    experiment = small(train={"lr": 1e-30})
    clients, weights = descent._clients(experiment, mnist)
    pairs = zip(clients, weights, strict=True)
    nothing = Globals.none(10, experiment.prototype_size())
    walks = [descent._walk(client, w, client.guide(nothing), 1, rng()) for client, w in pairs]
    mine = descent._uploads(clients, walks, 10)
    loop = RoundLoop([experiment], mnist, torch.device("cpu"))
    own = loop._upload(1, loop.start().params, [[0, 1, 2]])[0]
    assert np.array_equal(mine.counts_KJ, own.counts_KJ)
    assert np.abs(mine.values_KJV - own.values_KJV).max() <= 1
    assert own.values_KJV.any()


def test_each_round_begins_where_the_last_one_ended(rounds: list[MeasuredRound]) -> None:
    assert [(m.round, m.client) for m in rounds] == [
        (number, k) for number in (2, 3, 4) for k in range(3)
    ]
    by = {(m.round, m.client): m for m in rounds}
    for number, k in product((2, 3), range(3)):
        assert by[number, k].loss_after == pytest.approx(by[number + 1, k].loss_start, rel=1e-9)
        assert by[number, k].loss_end != by[number, k].loss_after
    assert all(
        m.curvature > 0 and m.smoothness > 0 and m.steepness > 0 and m.variance > 0 and m.norm > 0
        for m in rounds
    )


def test_a_step_goes_against_a_minibatch_s_gradient(mnist: Dataset) -> None:
    clients, weights = descent._clients(small(), mnist)
    nothing = Globals.none(10, 3)
    a, b, c = descent._walk(clients[0], weights[0], clients[0].guide(nothing), 2, rng())
    assert torch.equal(b.w, a.w - 0.02 * a.drawn)
    assert torch.equal(c.w, b.w - 0.02 * b.drawn)


def test_the_largest_of_a_round_is_taken(mnist: Dataset) -> None:
    experiment = small()
    clients, weights = descent._clients(experiment, mnist)
    nothing = Exchanged(Globals.none(10, 3), Globals.none(10, 3), {})
    walk = descent._walk(clients[0], weights[0], clients[0].guide(nothing.globals_), 3, rng())
    found = measure(clients[0], walk, nothing, nothing, curvature=7.0)
    assert found.descent == pytest.approx(sum(p.gradient.square().sum().item() for p in walk[:3]))
    assert (found.variance, found.norm) == (
        max(p.variance for p in walk[:3]),
        max(p.norm for p in walk[:3]),
    )
    ratios = [
        ((a.gradient - b.gradient).norm() / (a.w - b.w).norm()).item() for a, b in pairwise(walk)
    ]
    assert found.smoothness == pytest.approx(max(ratios))
    below = clients[0].representation()
    pairs = [*pairwise(walk), (walk[0], walk[3])]
    steep = [
        ((a.c_ND - b.c_ND).norm(dim=1).max() / (a.w - b.w)[below].norm()).item() for a, b in pairs
    ]
    assert found.steepness == pytest.approx(max(steep))
    assert (found.curvature, found.loss_start, found.loss_end) == (7.0, walk[0].loss, walk[3].loss)


def test_the_gap_is_the_larger_of_both_rounds(mnist: Dataset) -> None:
    clients, weights = descent._clients(small(), mnist)
    nothing = Globals.none(10, 3)
    walk = descent._walk(clients[0], weights[0], clients[0].guide(nothing), 1, rng())
    one, two = (
        Exchanged(nothing, Globals(nothing.present_J, nothing.values_JV + size * 2**14), {})
        for size in (1, 2)
    )
    for before, after in ((one, two), (two, one)):
        found = measure(clients[0], walk, before, after)
        assert found.filtered == pytest.approx(2 * 3**0.5)
        assert (found.globals_moved, found.unfiltered_moved) == (0, pytest.approx(3**0.5))
        assert found.filter_moved == pytest.approx(3**0.5)


def test_a_detector_remembers(mnist: Dataset) -> None:
    """All four send all classes, and one of them is far from the others."""
    experiment = small(clients=4, detector={"name": "adaptive", "malicious": 1})
    clients, weights = descent._clients(experiment, mnist)
    nothing = Globals.none(10, 3)
    memory = experiment.detector.start(4)
    walks = [
        descent._walk(client, w, client.guide(nothing), 1, rng())
        for client, w in zip(clients, weights, strict=True)
    ]
    before = Exchanged(nothing, nothing, memory)
    uploads = descent._uploads(clients, walks, 10)
    uploads.counts_KJ[:] = 5
    uploads.values_KJV[2] += 2**16
    after = descent._exchange(experiment, before, uploads)
    assert any(not np.array_equal(after.memory[key], memory[key]) for key in memory)


def test_it_takes_one_thread(mnist: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    walk = descent._walk
    before = torch.get_num_threads()
    seen = []

    def spy(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return walk(*arguments)

    monkeypatch.setattr(descent, "_walk", spy)
    torch.set_num_threads(2)
    try:
        descend(small(rounds=1), mnist, 1, 1, lambda number: None)
        assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    finally:
        torch.set_num_threads(before)


def test_without_a_detector_there_is_no_gap(mnist: Dataset, rounds: list[MeasuredRound]) -> None:
    free = descend(small(detector={"name": "none"}), mnist, 2, 1, lambda number: None)
    assert all(
        m.filtered == m.filter_moved == 0 and m.globals_moved == m.unfiltered_moved > 0
        for m in free
    )
    assert all(m.filtered > 0 for m in rounds)
    assert any(m.globals_moved != m.unfiltered_moved for m in rounds)
    for m in rounds:
        assert m.globals_moved <= m.unfiltered_moved + m.filter_moved + 1e-9
        assert abs(m.loss_after - m.loss_end) <= 2.0 * m.globals_moved + 1e-6


def test_a_run_is_told_of_and_repeats_itself(mnist: Dataset, rounds: list[MeasuredRound]) -> None:
    numbers: list[int] = []
    assert descend(small(), mnist, 3, 3, numbers.append) == rounds
    assert numbers == [1, 2, 3, 4]


def test_divergence_is_said(mnist: Dataset) -> None:
    with pytest.raises(UserError, match=r"lower train\.lr"):
        descend(small(train={"lr": 1e38}), mnist, 5, 1, lambda number: None)


@pytest.mark.parametrize(
    "change",
    [
        {"method": {"reduction": "classes"}},
        {"method": {"name": "fedproto"}, "pool": {"name": "none"}},
        {"train": {"momentum": 0.5}},
        {"model": {"name": "cnn"}},
        {"data": {"augment": True}},
        {"participation": 0.5},
        {"pool": {"name": "max"}},
        {"attack": {"name": "scale", "clients": 1}},
    ],
)
def test_what_the_theorem_does_not_assume_is_refused(change: dict[str, Any]) -> None:
    check(small())
    with pytest.raises(UserError, match="the bound"):
        check(small(**change))


# The theorem


def measured(**changes: float) -> MeasuredRound:
    values = dict.fromkeys(MeasuredRound.__dataclass_fields__, 1.0)
    return MeasuredRound(**{**values, **changes})  # type: ignore[arg-type]


def constants(**changes: float) -> Constants:
    values = {
        "eta": 0.1,
        "lam": 2.0,
        "iterations": 5,
        "smoothness": 3.0,
        "curvature": 4.0,
        "variance": 6.0,
        "norm": 7.0,
    }
    return Constants(
        **{**values, "steepness": 8.0, "pooled": 1.5, "printed": 3.0, "epsilon": 0.25, **changes}
    )  # type: ignore[arg-type]


def test_the_terms_by_hand() -> None:
    printed, corrected = (
        terms(measured(descent=10.0), constants(), form) for form in (False, True)
    )
    assert printed.descent == pytest.approx(-(0.1 - 4 * 0.01 / 2) * 10)
    assert printed.noise == pytest.approx(4 * 5 * 0.01 * 6 / 2)
    assert printed.exchange == pytest.approx(2 * 8 * 3 * 0.1 * 5 * 7)
    assert corrected.exchange == pytest.approx(printed.exchange / 2)
    assert (printed.gap, corrected.gap) == (0.5, 1.0)
    assert printed.change == pytest.approx(
        printed.descent + printed.noise + printed.exchange + printed.gap
    )
    assert constants(smoothness=9.0).smooth == 9


def test_constants_are_the_largest_there_were() -> None:
    names = ("smoothness", "curvature", "variance", "norm", "steepness")
    rows = [
        measured(**{name: float(i == j) for i, name in enumerate(names)}, filtered=float(j))
        for j in range(5)
    ]
    found = Constants.of(rows, eta=0.1, lam=2.0, iterations=5, pooled=1.7, kernel=2)
    assert all(getattr(found, name) == 1 for name in names)
    assert (found.eta, found.lam, found.iterations, found.pooled, found.printed, found.epsilon) == (
        0.1,
        2.0,
        5,
        1.7,
        3.0,
        4.0,
    )


@pytest.mark.parametrize("corrected", [False, True])
def test_beyond_the_largest_lam_no_step_is_promised_to_help(corrected: bool) -> None:
    one = measured(descent=10.0)
    most = largest_lam(one, constants(), corrected)
    for factor, helps in ((0.99, True), (1.01, False)):
        own = constants(lam=factor * most, eta=1e-7, epsilon=0.0)
        assert (terms(one, own, corrected).change < 0) == helps


def test_the_step_that_loses_a_lam() -> None:
    one = measured(globals_moved=2.0, unfiltered_moved=1.0, filter_moved=1.0)
    assert not s8_holds(one, constants(lam=4.0), corrected=False)
    assert s8_holds(one, constants(lam=4.0), corrected=True)
    assert s8_holds(one, constants(lam=1.0), corrected=False)


def test_slack_is_what_is_between_the_bound_and_the_loss() -> None:
    found = MeasuredSetting(constants(), [measured(loss_start=3.0, loss_after=1.0)])
    assert found.slacks(True) == [pytest.approx(2 + found.changes(True)[0])]


# The study


@pytest.fixture(scope="module")
def small_shown(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return shown(BoundPlan.of(study_of("bound", TABLE)), tmp_path_factory.mktemp("bound"))


def test_it_shows_all_terms_for_every_round(small_shown: StudyResult) -> None:
    assert len(small_shown.rows) == 2 * 3 * 3
    row = small_shown.rows[0]
    own = small_shown.whole["constants"]["two"]
    assert (own["eta"], own["lam"], own["iterations"], own["printed"]) == (0.02, 2.0, 3, 3.0)
    assert 1.2 < own["pooled"] < 1.8
    for form in ("printed", "corrected"):
        parts = sum(row[f"{form}_{name}"] for name in ("descent", "noise", "exchange", "gap"))
        assert row[f"{form}_bound"] == pytest.approx(row["loss_start"] + parts)
    assert all(row["corrected_s8"] for row in small_shown.rows)
    assert row["printed_gap"] == pytest.approx(2 * own["epsilon"])
    assert row["corrected_gap"] == pytest.approx(4 * own["epsilon"])
    assert [path.name for path in small_shown.pictures] == ["bound.png"]


def test_the_verdicts_follow_from_the_rows(small_shown: StudyResult) -> None:
    verdicts, sizes, medians = small_shown.sheets
    assert [row[:3] for row in verdicts.rows] == [
        (s, f, "9") for s in ("two", "tiny") for f in ("printed", "corrected")
    ]
    for row in verdicts.rows:
        own = [r for r in small_shown.rows if r["setting"] == row[0]]
        bounds = [(r[f"{row[1]}_bound"], r) for r in own]
        shares = [
            [bound >= r["loss_after"] for bound, r in bounds],
            [bound < r["loss_start"] for bound, r in bounds],
            [r["loss_after"] < r["loss_start"] for r in own],
            [bound - r["loss_start"] > r["loss_start"] for bound, r in bounds],
            [r[f"{row[1]}_s8"] for r in own],
        ]
        assert [row[3], *row[5:9]] == [f"{100 * np.mean(cases):.0f} %" for cases in shares]
        assert row[4] == f"{np.median([bound - r['loss_after'] for bound, r in bounds]):.3g}"
    assert [row[0] for row in sizes.rows] == ["two", "tiny"]
    assert [row[:2] for row in medians.rows] == [row[:2] for row in verdicts.rows]
    assert medians.rows[0][2] == f"{np.median([r['loss_start'] for r in small_shown.rows[:9]]):.3g}"


def test_only_the_corrected_form_can_promise_anything_with_a_filter(
    small_shown: StudyResult,
) -> None:
    """With a tiny λ the gap of 2ε is all there is, and it is too much."""
    promised = {row[1]: row[5] for row in small_shown.sheets[0].rows if row[0] == "tiny"}
    assert promised["printed"] == "0 %"
    assert promised["corrected"] != "0 %"


def test_without_pooling_the_constant_is_1(tmp_path: Path) -> None:
    table = toml.merge(
        TABLE, {"experiment": {"rounds": 2, "pool": {"name": "none"}}, "iterations": 1}
    )
    found = shown(
        BoundPlan.of(study_of("bound", {**table, "axes": {"setting": {"none": {}}}})), tmp_path
    )
    assert found.whole["constants"]["none"]["pooled"] == 1


def test_the_study_assumes_what_the_theorem_does() -> None:
    plan = BoundPlan.of(Study.load("bound"))
    assert (plan.experiments, plan.keep) == ((), False)
    for experiment in plan.settings.values():
        check(experiment)
        assert experiment.detector.psi == 1  # type: ignore[attr-defined]
    assert len({experiment.method.lam for experiment in plan.settings.values()}) > 2  # type: ignore[attr-defined]
    quick = BoundPlan.of(Study.load("bound", quick=True))
    assert quick.iterations < plan.iterations


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"powers": 1.5},
        {"axes": {"setting": {}}},
        {"experiment": {"train": {"momentum": 0.5}}},
        {"x": 1},
    ],
)
def test_impossible_studies_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        BoundPlan.of(study_of("bound", {**TABLE, **change}))
