"""ε against dp-accounting called by hand, with other accountants than the one used here."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter

import dp_accounting
import pytest
from dp_accounting import pld, rdp

from fedrfq.errors import UserError
from fedrfq.privacy.accountant import epsilon, noise_for
from fedrfq.privacy.cost import auc
from support.command import fedrfq


def composed(accountant: dp_accounting.PrivacyAccountant, noises: list[float]) -> float:
    for noise, uploads in Counter(noises).items():
        accountant.compose(dp_accounting.GaussianDpEvent(noise), uploads)
    return float(accountant.get_epsilon(1e-5))


@pytest.mark.parametrize("noises", [[2.0], [2.0] * 10, [1.5, 4.0, 4.0]])
def test_it_is_what_privacy_loss_distributions_say(noises: list[float]) -> None:
    """These are upper bounds with an error of their own, of about 10⁻⁴ an upload."""
    by_hand = composed(pld.PLDAccountant(), noises)
    assert epsilon(noises, 1e-5) == pytest.approx(by_hand, abs=3e-4)


@pytest.mark.parametrize("noises", [[2.0], [2.0] * 10])
def test_renyi_differential_privacy_says_a_little_more(noises: list[float]) -> None:
    """Its bound holds for the discrete Gaussian to the letter, and is not tight."""
    by_hand = composed(rdp.RdpAccountant(), noises)
    assert epsilon(noises, 1e-5) < by_hand < 1.15 * epsilon(noises, 1e-5)


def test_discrete_noise_costs_a_little_more_than_continuous() -> None:
    continuous = dp_accounting.get_epsilon_gaussian(2.0, 1e-5)
    assert continuous + 1e-5 < epsilon([2.0], 1e-5) < continuous + 1e-4


def test_one_dimension_computed_by_hand() -> None:
    """δ of the discrete Gaussian itself, summed up value by value, is below what is claimed."""
    sigma = 1 << 14
    multiplier = 2.0
    shift = int(sigma / multiplier)
    claimed = epsilon([multiplier], 1e-5)
    values = range(-12 * sigma, 12 * sigma)
    total = math.fsum(math.exp(-(value**2) / (2 * sigma**2)) for value in values)
    beyond = 0.0
    for value in values:
        loss = (shift**2 - 2 * shift * value) / (2 * sigma**2)
        if loss > claimed:
            chance = math.exp(-(value**2) / (2 * sigma**2)) / total
            beyond += chance * -math.expm1(claimed - loss)
    assert 0.99e-5 < beyond <= 1e-5


def test_nothing_sent_costs_nothing() -> None:
    assert epsilon([], 1e-5) == 0


def test_more_uploads_cost_more_and_more_noise_less() -> None:
    costs = [epsilon([2.0] * uploads, 1e-5) for uploads in range(1, 6)]
    assert costs == sorted(costs)
    assert epsilon([4.0], 1e-5) < epsilon([2.0], 1e-5)


@pytest.mark.parametrize(("wanted", "uploads"), [(1.0, 1), (2.0, 1), (8.0, 1), (2.0, 10)])
def test_the_reverse_gives_the_least_noise(wanted: float, uploads: int) -> None:
    noise = noise_for(wanted, uploads, 1e-5)
    assert epsilon([noise] * uploads, 1e-5) <= wanted
    assert epsilon([noise - 0.002] * uploads, 1e-5) > wanted


def test_too_small_a_delta_for_so_many_uploads_is_no_guarantee() -> None:
    assert epsilon([2.0] * 200, 1e-9) == math.inf


def test_without_dp_accounting_there_is_a_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'fedrfq\[privacy\]'"):
        epsilon([2.0], 1e-5)


def test_the_command_says_what_a_setting_costs() -> None:
    arguments = ("--noise", "2.0", "--uploads", "10", "--delta", "1e-5", "--json")
    found = json.loads(fedrfq("privacy", *arguments).stdout)
    assert found["epsilon"] == epsilon([2.0] * 10, 1e-5)
    reverse = json.loads(fedrfq("privacy", "--epsilon", "2", "--json").stdout)
    assert reverse["noise"] == noise_for(2.0, 1, 1e-5)
    # An attacker's AUC at ε = 2.
    assert reverse["auc"] == pytest.approx(0.64, abs=0.005)
    assert auc(1e9) == pytest.approx(0.5)
