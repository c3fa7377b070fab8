"""The classifier that a client makes from certified statistics, and its combination."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrfq.learning.public.classifier import CertifiedStatistics, _covariance, classifier
from fedrfq.learning.public.combination import UNKNOWN, answers, combined
from fedrfq.learning.public.temperature import temperature, unseen
from fedrfq.models.public_maps import RandomMap
from fedrfq.prototypes.class_statistics import class_rows, covariance, packed
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals

NEAREST = RandomMap(classifier="nearest")


def _known(rows: torch.Tensor, present: list[bool], classes: int = 0) -> CertifiedStatistics:
    values = (rows.double() * 2**FRACTION_BITS).round().long().numpy()
    globals_ = Globals(np.array(present), values)
    return CertifiedStatistics.of(globals_, classes or len(present), torch.device("cpu"))


def test_the_nearest_mean_by_hand() -> None:
    known = _known(torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]]), [True, True, False])
    own = torch.tensor([[1.0, 0.1], [0.9, 0.0]])
    made = classifier(NEAREST, known, own, torch.tensor([0, 0]))
    guess = made.log_probabilities(torch.tensor([[0.9, 0.3], [0.2, 0.8], [5.0, 5.0]])).argmax(1)
    # Of the third class nothing is known: it is never an answer.
    assert guess.tolist()[:2] == [0, 1]
    assert guess[2] != 2


def test_lda_with_the_federations_covariance_by_hand() -> None:
    """Along the first value samples scatter widely, so only the second tells the classes apart."""
    means = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    spread = torch.tensor([[4.0, 0.0], [0.0, 0.01]])
    known = _known(torch.cat([means, packed(spread)]), [True] * 4, classes=2)
    sample = torch.tensor([[2.0, 0.1]])
    own = torch.tensor([[0.0, 0.0], [0.1, 0.0]])
    labels = torch.tensor([0, 0])
    lda = RandomMap(moments="full", bits=16, shrinkage=0.001)
    assert classifier(lda, known, own, labels).log_probabilities(sample).argmax() == 0
    assert classifier(NEAREST, known, own, labels).log_probabilities(sample).argmax() == 1


def test_lda_with_the_clients_own_covariance() -> None:
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, 2, generator=generator) * torch.tensor([2.0, 0.1])
    known = _known(torch.tensor([[0.0, 0.0], [2.0, 1.0]]), [True, True])
    made = classifier(RandomMap(shrinkage=0.01), known, noise, torch.zeros(200).long())
    assert made.log_probabilities(torch.tensor([[2.0, 0.1]])).argmax() == 0


@pytest.mark.parametrize("samples", [1, 2])
def test_one_sample_of_each_class_leaves_the_nearest_mean(samples: int) -> None:
    known = _known(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [True, True])
    own = torch.eye(2)[:samples]
    made = classifier(RandomMap(), known, own, torch.arange(samples))
    chances = made.log_probabilities(torch.eye(2))
    assert chances.isfinite().all()
    assert chances.argmax(1).tolist() == [0, 1]


def test_confidence_follows_the_clients_own_samples() -> None:
    """Where the client's own samples lie between the means, the classifier is less sure."""
    known = _known(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), [True, True])
    labels = torch.tensor([0, 1, 0, 1])
    clear = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(2, 1)
    vague = torch.tensor([[0.6, 0.4], [0.4, 0.6], [0.4, 0.6], [0.6, 0.4]])
    sure = classifier(NEAREST, known, clear, labels)
    unsure = classifier(NEAREST, known, vague, labels)
    assert sure.temperature < unsure.temperature


@pytest.mark.parametrize("samples", [2, 6, 18])
def test_few_samples_do_not_make_the_classifier_certain(samples: int) -> None:
    """Where N samples are told apart and a tenth of one more is not, it is N / (N + 0.1) sure."""
    known = _known(torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 9.0]]), [True, True, False])
    own = torch.eye(2).repeat(samples // 2, 1)
    made = classifier(NEAREST, known, own, torch.arange(samples) % 2)
    chance = float(made.log_probabilities(torch.tensor([[1.0, 0.0]])).exp().max())
    # Temperatures are tried in steps of a fifth.
    assert chance == pytest.approx(samples / (samples + 0.1), abs=0.03)


def _few_samples(values: int = 30) -> tuple[CertifiedStatistics, torch.Tensor, torch.Tensor]:
    """Two classes that overlap, ten samples of each, and more values than samples."""
    rng = torch.Generator().manual_seed(0)
    means_JV = torch.zeros(2, values)
    means_JV[1, 0] = 1
    labels_N = torch.arange(20) % 2
    samples_NV = means_JV[labels_N] + torch.randn(20, values, generator=rng) / 2
    return _known(means_JV, [True, True]), samples_NV, labels_N


def test_without_a_sample_its_scores_are_those_of_the_other_samples_covariance() -> None:
    known, z_NV, y_N = _few_samples()
    shrunk = RandomMap(shrinkage=0.5)
    covariance_VV, own = _covariance(shrunk, known, z_NV, y_N)
    gained_NJ = unseen(covariance_VV, own, known.means_JV, z_NV, y_N)
    _, all_JV = class_rows(z_NV, y_N, 2)
    seen_VV = own * covariance(z_NV, y_N, all_JV)
    for i in range(len(y_N)):
        others = torch.arange(len(y_N)) != i
        _, own_JV = class_rows(z_NV[others], y_N[others], 2)
        # The sum over 19 samples in place of that over 20, by the same divisor.
        rest_VV = own * covariance(z_NV[others], y_N[others], own_JV) * 19 / 20
        weights = [
            torch.linalg.solve(matrix_VV, known.means_JV.mT)
            for matrix_VV in (covariance_VV - seen_VV + rest_VV, covariance_VV)
        ]
        left_J, with_J = (
            z_NV[i].double() @ weight_VJ - (known.means_JV.mT * weight_VJ).sum(0) / 2
            for weight_VJ in weights
        )
        assert torch.allclose(gained_NJ[i], left_J - with_J)


def test_the_classifier_is_no_surer_for_having_seen_its_own_samples() -> None:
    """A covariance of few samples fits these better than others: it must not count as certainty."""
    known, z_NV, y_N = _few_samples()
    made = classifier(RandomMap(shrinkage=0.1), known, z_NV, y_N)
    scores_NJ = z_NV.double() @ made.weight_VJ + made.bias_J
    assert made.temperature > 1.5 * temperature(scores_NJ, y_N, known.present_J)


def _chances(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows).log()


def test_the_own_head_and_the_map_decide_together_among_held_classes() -> None:
    own = _chances([0.9, 0.1, 1e-6])
    public = _chances([0.3, 0.6, 0.1])
    held = torch.tensor([True, True, False])
    chance = combined(own, public, held).exp()[0]
    # 0.9 of it is held; within that ⁴√0.9 · 1/3 = 0.3247 against ⁴√0.1 · 2/3 = 0.3749.
    assert chance.tolist() == pytest.approx([0.9 * 0.4641, 0.9 * 0.5359, 0.1], abs=1e-4)


def test_the_map_alone_decides_on_classes_that_the_client_does_not_hold() -> None:
    own = _chances([0.999, 0.001, 1e-9])
    public = _chances([0.1, 0.1, 0.8])
    held = torch.tensor([True, True, False])
    chance = combined(own, public, held).exp()[0]
    assert chance[2] == pytest.approx(0.8, abs=1e-5)


def test_the_own_head_speaks_for_held_classes_that_are_not_on_the_map() -> None:
    """As where a client is the only one with a class, and its upload was dropped."""
    known = _known(torch.tensor([[9.0, 9.0], [1.0, 0.0], [0.0, 1.0]]), [False, True, True])
    own_samples = torch.tensor([[0.9, 0.1], [1.0, 0.2]])
    made = classifier(NEAREST, known, own_samples, torch.tensor([0, 1]))
    public = made.log_probabilities(torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    own = _chances([0.8, 0.2, 1e-6], [0.3, 0.7, 1e-6], [0.3, 0.7, 1e-6])
    chance = combined(own, public, torch.tensor([True, True, False])).exp()
    assert chance[:, 0].tolist() == pytest.approx([0.8, 0.3, 0.3], abs=1e-5)
    assert chance.argmax(1).tolist() == [0, 1, 2]


def test_below_the_threshold_the_answer_is_that_it_does_not_know() -> None:
    chances = _chances([0.6, 0.4], [0.9, 0.1])
    assert answers(chances, 0.0).tolist() == [0, 0]
    assert answers(chances, 0.7).tolist() == [UNKNOWN, 0]


def test_what_is_no_covariance_becomes_the_nearest_one() -> None:
    """Rounding, or a liar, may leave a negative eigenvalue: LDA would prefer what is far away."""
    means = torch.tensor([[0.0, 0.0], [2.0, 1.0]])
    wrong = torch.tensor([[1.0, 0.0], [0.0, -5.0]])
    known = _known(torch.cat([means, packed(wrong)]), [True] * 4, classes=2)
    assert known.covariance_VV is not None
    assert torch.linalg.eigvalsh(known.covariance_VV).min() >= -1e-9
    lda = RandomMap(moments="full", bits=16)
    made = classifier(lda, known, torch.tensor([[0.0, 0.1], [0.1, 0.0]]), torch.tensor([0, 0]))
    assert made.log_probabilities(torch.tensor([[2.0, 1.0]])).argmax() == 1
