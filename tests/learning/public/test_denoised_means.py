"""Class means with noise: what a client takes for noise, and what it makes of the rest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.learning.public.classifier import CertifiedStatistics, classifier
from fedrfq.learning.public.denoised_means import denoised
from fedrfq.models.public_maps import RandomMap
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals

NEAREST = RandomMap(classifier="nearest")
CPU = torch.device("cpu")


def test_two_classes_by_hand() -> None:
    """Samples vary along the last of four values only: three quarters of the values are quiet.

    Along these the classes are 1 from their middle: noise of 1². Along the last they are 3 from it:
    3² − 1² = 8 besides noise. Its flattened variance is 0.7·10 + 0.3·2.5 = 7.75, so classes differ
    by 8/7.75 of the variance.
    """
    means = torch.tensor([[1.0, -1.0, 1.0, 3.0], [-1.0, 1.0, -1.0, -3.0]]).double()
    found = denoised(means, torch.diag(torch.tensor([0.0, 0.0, 0.0, 10.0])).double())
    # Along a quiet value 0.75·8/7.75 = 0.774 is expected: 0.774 / 1.774 of it stays.
    quiet = 0.4364
    assert found[0].tolist() == pytest.approx([quiet, -quiet, quiet, 3 * 8 / 9], abs=1e-3)
    assert found[1].tolist() == pytest.approx([-quiet, quiet, -quiet, -3 * 8 / 9], abs=1e-3)


def _classes(noise: list[float], seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return the true means of classes, those with noise, and the samples' covariance."""
    generator = torch.Generator().manual_seed(seed)
    spread_V = torch.cat([torch.full((48,), 0.01), torch.full((16,), 1.0)]).double()
    true_CV = 3 * torch.randn(len(noise), 64, generator=generator).double() * spread_V
    drawn_CV = torch.randn(len(noise), 64, generator=generator).double()
    return true_CV, true_CV + torch.tensor(noise)[:, None] * drawn_CV, torch.diag(spread_V**2)


def _apart(means_CV: Tensor) -> Tensor:
    """Return how far each class is from the mean of all."""
    return torch.linalg.vector_norm(means_CV - means_CV.mean(0), dim=1)


def test_means_come_closer_to_the_true_ones() -> None:
    true_CV, noisy_CV, covariance_VV = _classes([1.0] * 10)
    error = (noisy_CV - true_CV).square().sum()
    assert (denoised(noisy_CV, covariance_VV) - true_CV).square().sum() < 0.5 * error


def test_more_noise_shrinks_more() -> None:
    shares = []
    for noise in (0.3, 1.0, 3.0, 10.0):
        _, noisy_CV, covariance_VV = _classes([noise] * 10)
        shares.append(_apart(denoised(noisy_CV, covariance_VV)) / _apart(noisy_CV))
    for less, more in pairwise(shares):
        assert (more < less).all()


def test_the_class_of_one_holder_shrinks_more_than_others() -> None:
    """It has more noise, and would otherwise seem far from everything."""
    _, noisy_CV, covariance_VV = _classes([0.5] * 9 + [2.0])
    kept_C = _apart(denoised(noisy_CV, covariance_VV)) / _apart(noisy_CV)
    assert kept_C[9] < 0.8 * kept_C[:9].min()


def test_a_class_that_is_nothing_but_noise_hardly_changes_the_others() -> None:
    """As one whose only holder has no sample of it: it ends near the centre of the others."""
    true_CV, noisy_CV, covariance_VV = _classes([0.3] * 9 + [100.0])
    found_CV = denoised(noisy_CV, covariance_VV)
    alone_CV = denoised(noisy_CV[:9], covariance_VV)
    assert (found_CV[:9] - alone_CV).abs().max() < 0.2
    assert torch.linalg.vector_norm(found_CV[9] - true_CV[:9].mean(0)) < 10


def test_without_noise_means_stay_where_classes_differ() -> None:
    true_CV, _, covariance_VV = _classes([0.0] * 10)
    found_CV = denoised(true_CV, covariance_VV)
    assert (found_CV - true_CV).abs().max() < 0.05


def test_noise_without_any_signal_draws_all_classes_together() -> None:
    generator = torch.Generator().manual_seed(0)
    noise_CV = torch.randn(10, 64, generator=generator).double()
    covariance_VV = torch.diag(torch.linspace(0.1, 1, 64)).double()
    # Three quarters of the values say more noise than the last ones have.
    noise_CV[:, 48:] *= 0.5
    found_CV = denoised(noise_CV, covariance_VV)
    assert _apart(found_CV).max() < 1e-3


@pytest.mark.parametrize(("classes", "values"), [(0, 4), (1, 4), (3, 1)])
def test_of_one_class_or_value_nothing_can_be_told(classes: int, values: int) -> None:
    means_CV = torch.arange(classes * values).reshape(classes, values).double()
    assert torch.equal(denoised(means_CV, torch.eye(values).double()), means_CV)


def test_without_any_variance_nothing_can_be_told() -> None:
    means_CV = torch.eye(4).double()
    assert torch.equal(denoised(means_CV, torch.zeros(4, 4).double()), means_CV)


def _known(means_JV: Tensor, present: list[bool], noisy: bool) -> CertifiedStatistics:
    values = (means_JV * 2**FRACTION_BITS).round().long().numpy()
    return CertifiedStatistics.of(Globals(np.array(present), values), len(present), CPU, noisy)


def test_a_client_takes_noise_out_where_there_is_some_and_leaves_empty_classes_out() -> None:
    generator = torch.Generator().manual_seed(1)
    _, noisy_JV, covariance_VV = _classes([1.0] * 3)
    # Nobody uploaded the second class: it says nothing, and is never an answer.
    noisy_JV[1] = 50.0
    present = [True, False, True]
    own_NV = torch.randn(200, 64, generator=generator) @ covariance_VV.sqrt().float()
    labels_N = torch.zeros(200).long()
    exact = classifier(NEAREST, _known(noisy_JV, present, False), own_NV, labels_N)
    made = classifier(NEAREST, _known(noisy_JV, present, True), own_NV, labels_N)
    # The nearest mean's weights are the means themselves.
    assert (made.weight_VJ[:, 1] == 0).all()
    assert made.bias_J[1] < -1e6
    residual_NV = own_NV.double() - own_NV.double().mean(0)
    expected = denoised(exact.weight_VJ.mT[[0, 2]], residual_NV.mT @ residual_NV / 200)
    assert torch.allclose(made.weight_VJ.mT[[0, 2]], expected, atol=1e-6)
    assert not torch.allclose(made.weight_VJ, exact.weight_VJ, atol=0.1)
