"""SoftPool's measured Lipschitz constants against autograd, pairs of inputs and hand results."""

from __future__ import annotations

from math import e
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrfq.errors import UserError
from fedrfq.paper import lipschitz_estimate
from fedrfq.paper.lipschitz import Constant, LipschitzPlan
from fedrfq.paper.lipschitz_estimate import (
    Steepest,
    jacobian,
    pair_ratios,
    random_pairs,
    steepest_l2,
    steepest_max,
    window,
)
from fedrfq.prototypes.pooling import Pool
from fedrfq.studies.plan import StudyResult
from fedrfq.studies.study import Study
from support.studies import shown, study_of

SMALL: dict[str, Any] = {
    "kernels": [1, 2],
    "maps": [[2, 4]],
    "strides": [1, 2],
    "starts": 4,
    "pairs": 500,
}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    return shown(
        LipschitzPlan.of(study_of("lipschitz", SMALL)), tmp_path_factory.mktemp("lipschitz")
    )


@pytest.mark.parametrize(
    "pool",
    [window(3), Pool("softpool", 2, 2, 1), Pool("softpool", 4, 3, 2), Pool("softpool", 4, 1)],
)
def test_the_closed_form_is_the_pooling_s_jacobian(pool: Pool) -> None:
    values = 24
    if pool.rows == 3:
        values = 9
    c = torch.from_numpy(rng().standard_normal((2, values)) * 3)
    for own, row in zip(jacobian(pool, c), c, strict=True):
        assert torch.allclose(own, torch.autograd.functional.jacobian(pool, row))


def one_high(values: int) -> float:
    """Return the max norm's constant over windows of one high value and equal others, by trying."""
    a = np.linspace(0, 20, 200_001)
    weight = np.exp(a) / (np.exp(a) + values - 1)
    low = (1 - weight) * (1 - a * weight)
    return float((np.abs(weight * (1 + a - a * weight)) + np.abs(low)).max())


@pytest.mark.parametrize("kernel", [2, 3])
def test_the_max_norm_s_constant_is_that_of_one_high_value(kernel: int) -> None:
    assert steepest_max(window(kernel), kernel**2, 8, rng()).value == pytest.approx(
        one_high(kernel**2), abs=1e-6
    )


def test_without_overlap_a_map_is_as_steep_as_a_window_and_with_it_steeper() -> None:
    alone = steepest_l2(window(2), 4, 4, rng()).value
    apart = steepest_l2(Pool("softpool", 2, 2, 2), 8, 4, rng()).value
    over = steepest_l2(Pool("softpool", 2, 2, 1), 8, 4, rng()).value
    assert apart == pytest.approx(alone, abs=1e-6)
    assert 1 < alone < 1.3 < over < 3


def test_what_is_found_is_attained() -> None:
    pool = Pool("softpool", 2, 2, 1)
    found = steepest_l2(pool, 8, 4, rng())
    assert torch.linalg.matrix_norm(jacobian(pool, found.c[None]), 2).item() == pytest.approx(
        found.value, abs=1e-12
    )
    widest = steepest_max(window(2), 4, 4, rng())
    assert jacobian(window(2), widest.c[None]).abs().sum().item() == pytest.approx(
        widest.value, abs=1e-12
    )


@pytest.mark.parametrize(("order", "find"), [(torch.inf, steepest_max), (2.0, steepest_l2)])
def test_no_pair_is_steeper_and_some_come_near(order: float, find: Any) -> None:
    found = find(window(2), 4, 8, rng())
    ratios = pair_ratios(window(2), found, order, 20_000, rng())
    assert 0.97 * found.value < ratios.max() <= found.value + 1e-9
    elsewhere = pair_ratios(
        window(2), Steepest(1.0, torch.zeros(4, dtype=torch.float64)), order, 20_000, rng()
    )
    assert elsewhere[:10_000].max() <= 1 + 1e-3  # around 0 a window is an average


def test_pairs_are_of_every_scale_and_distance() -> None:
    a, b = random_pairs(9, 4000, rng())
    sizes = a.abs().mean(1)
    steps = (a - b).abs().mean(1)
    assert sizes.min() < 0.5 < 3 < sizes.max()
    assert steps.min() < 1e-3 < 3 < steps.max()


def test_the_ascent_is_polished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lipschitz_estimate, "_ascend", lambda objective, starts: starts)
    assert steepest_max(window(2), 4, 8, rng()).value == pytest.approx(one_high(4), abs=1e-3)


def test_it_takes_one_thread_and_gives_the_others_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    seen = []
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(
            lipschitz_estimate,
            "_ascend",
            lambda objective, starts: seen.append(torch.get_num_threads()) or starts,
        )
        steepest_max(window(2), 4, 1, rng())
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)


def test_the_identity_has_1_where_0_is_printed(small: StudyResult) -> None:
    own = [row for row in small.rows if row["kernel"] == 1]
    assert [row["printed"] for row in own] == [0] * 4
    assert all(row["measured"] == pytest.approx(1) and not row["holds"] for row in own)
    assert all("!" in cell for cell in small.sheets[0].rows[0][2:])


def test_larger_kernels_stay_below_what_is_printed(small: StudyResult) -> None:
    own = [row for row in small.rows if row["kernel"] == 2]
    assert len(own) == 4
    assert all(
        row["printed"] == 3 and row["holds"] and row["pairs"] <= row["measured"] + 1e-9
        for row in own
    )
    assert not any("!" in cell for cell in small.sheets[0].rows[1])
    verdicts = {row[0]: row[1:3] for row in small.sheets[1].rows}
    assert verdicts["k̂² − 1 bounds SoftPool: max norm, a window"] == ("fails", "k̂ = 1")
    assert verdicts["none of 500 random pairs exceeds the measured constant"] == (
        "holds",
        "every norm and k̂",
    )


def test_the_step_that_is_not_valid_is_counted(small: StudyResult) -> None:
    steps = small.whole["pairs_against_s18"]
    assert steps[1] == 0
    assert 0.05 < steps[2] < 0.5
    assert small.sheets[1].rows[-1][1] == "fails"


def test_the_same_seed_gives_the_same(small: StudyResult, tmp_path: Path) -> None:
    assert shown(LipschitzPlan.of(study_of("lipschitz", SMALL)), tmp_path).rows == small.rows
    other = shown(LipschitzPlan.of(study_of("lipschitz", {**SMALL, "seed": 1})), tmp_path).rows
    assert [row["pairs"] for row in other] != [row["pairs"] for row in small.rows]


def test_a_kernel_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    found = shown(
        LipschitzPlan.of(study_of("lipschitz", {**SMALL, "kernels": [3], "starts": 1, "pairs": 2})),
        tmp_path,
    )
    assert [row["norm"] for row in found.rows] == ["max norm, a window", "L2, a window"]
    assert found.sheets[0].rows[0][-1] == "–"


def test_it_says_where_pairs_go_beyond() -> None:
    plan = LipschitzPlan.of(study_of("lipschitz", SMALL))
    sheet = plan._claims(["L2, a window"], [Constant("L2, a window", 2, 3, 1.2, e)], {2: 0.0})
    assert [row[1] for row in sheet.rows] == ["holds", "fails", "holds"]
    assert sheet.rows[1][2] == "L2, a window"


def test_the_study_asks_for_what_the_paper_says() -> None:
    plan = LipschitzPlan.of(Study.load("lipschitz"))
    assert plan.kernels == (1, 2, 3, 4, 5)
    assert (2, 25) in plan.maps
    assert (plan.experiments, plan.keep) == ((), False)
    assert LipschitzPlan.of(Study.load("lipschitz", quick=True)).starts < plan.starts


@pytest.mark.parametrize(
    "change",
    [
        {"kernels": []},
        {"kernels": [0]},
        {"starts": 0},
        {"pairs": 1},
        {"maps": [3]},
        {"maps": 3},
        {"maps": [[1, 0]]},
        {"map": []},
    ],
)
def test_impossible_studies_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        LipschitzPlan.of(study_of("lipschitz", {**SMALL, **change}))
