"""The federation as a scikit-learn classifier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.utils import estimator_checks
from torch import nn

import fedrfq
from fedrfq import FedRFQClassifier

X, Y = load_iris(return_X_y=True)
NAMES = np.array(["setosa", "versicolor", "virginica"])
SITES = np.arange(len(Y)) % 3


def test_iris_at_three_sites() -> None:
    held = np.arange(len(Y)) % 5 == 0
    found = FedRFQClassifier(rounds=15).fit(X[~held], NAMES[Y[~held]], groups=SITES[~held])
    assert found.score(X[held], NAMES[Y[held]]) > 0.9
    assert sorted(found.groups_) == [0, 1, 2]
    assert found.predict_proba(X[:4]).sum(1) == pytest.approx(np.ones(4))
    with_unknown = found.predict_proba(X[:4], groups=[0, 1, 2, 7])
    assert with_unknown[3] == pytest.approx(found.predict_proba(X[3:4])[0])


def test_each_group_is_answered_by_its_own_model() -> None:
    """Two sites that call the same two things by each other's names."""
    thing = np.arange(80) % 2
    rows = np.random.default_rng(0).normal(size=(80, 2)) + 6 * thing[:, None]
    site = np.where(np.arange(80) < 40, "west", "east")
    labels = np.where(site == "west", thing, 1 - thing)
    found = FedRFQClassifier("local", rounds=10).fit(rows, labels, groups=site)
    assert (found.predict(rows, groups=site) == labels).mean() > 0.95


def test_settings_and_modules_reach_the_run(tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3))

    settings: dict[str, Any] = {"method": {"lam": 0.25}, "pool": {"name": "none"}}
    found = FedRFQClassifier(model=make, rounds=2, settings=settings, out=tmp_path).fit(X, Y)
    assert isinstance(found.run_, fedrfq.Run)
    assert found.run_.experiment.method.lam == 0.25  # type: ignore[attr-defined]
    assert isinstance(found.run_.models[0], nn.Sequential)
    assert found.predict(X).shape == (150,)


@pytest.mark.parametrize(
    "name",
    [
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_get_params_invariance",
        "check_set_params",
        "check_estimators_nan_inf",
        "check_classifiers_one_label",
        "check_n_features_in",
        "check_fit2d_predict1d",
        "check_estimators_unfitted",
    ],
)
def test_what_sklearn_asks_of_a_classifier(name: str) -> None:
    check = getattr(estimator_checks, name)
    estimator = FedRFQClassifier
    if name == "check_parameters_default_constructible":
        check("FedRFQClassifier", FedRFQClassifier())
        return
    check("FedRFQClassifier", estimator(rounds=8, clients=2))
