"""Settings of privacy that cannot be, and how an experiment takes those that can."""

from __future__ import annotations

import pytest

from fedrfq.errors import UserError
from fedrfq.experiment import load
from fedrfq.privacy.settings import Privacy

PRIVATE = ["method.name=local", "public.name=random", "privacy.noise=2.0"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["privacy.noise=-1.0"], "privacy.noise must be 0, or 0.05 to 1e"),
        (["privacy.noise=nan"], "privacy.noise must be 0, or 0.05 to 1e"),
        (["privacy.noise=inf"], "privacy.noise must be 0, or 0.05 to 1e"),
        (["privacy.noise=0.01"], "privacy.noise must be 0, or 0.05 to 1e"),
        (
            ["privacy.delta=0.02"],
            "privacy.delta must be 1e-9 to 0.01; below one in the .*samples, not 0.02",
        ),
        (["privacy.delta=0.0"], "privacy.delta must be 1e-9 to 0.01"),
        (["privacy.delta=nan"], "privacy.delta must be 1e-9 to 0.01"),
        (["privacy.budget=-1.0"], "privacy.budget must be 0 or more"),
        (["privacy.budget=nan"], "privacy.budget must be 0 or more"),
        (["privacy.budget=inf"], "privacy.budget must be 0 or more"),
        (["privacy.unit=group"], "privacy.unit must be one of sample, client, not 'group'"),
        (["privacy.classes=some"], "privacy.classes must be one of declared, all"),
        (["privacy.count_share=0.0"], "privacy.count_share must be above 0, below 1"),
        (["privacy.count_share=1.0"], "privacy.count_share must be above 0, below 1"),
        (["privacy.unit=client"], "needs a limit on what a client can change: set privacy.samples"),
        (["privacy.samples=5"], "set privacy.unit = 'client', or remove it"),
        (["privacy.unit=client", "privacy.samples=-1"], "privacy.samples must be 0 to 1048576"),
        (["public.name=none"], "added to statistics on a public map.*set public.name"),
        (["public.moments=full", "public.bits=12"], "set public.moments = 'none'"),
        (["detector.name=median"], "detector 'median' does not know how much noise"),
        (["public.norm=0.05"], "too fine for the grid: raise public.norm"),
        (
            ["privacy.noise=1e6", "privacy.unit=client", "privacy.samples=1000000"],
            "more than 64 bits hold: lower one of them",
        ),
        (
            ["method.name=fedproto", "privacy.budget=2.0"],
            "privacy.budget cannot be kept, since there is no ε: method 'fedproto' uploads"
            " prototypes of features that were trained on the samples",
        ),
    ],
)
def test_what_cannot_be_is_said(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(sets=[*PRIVATE, *changes])


def test_without_noise_an_experiment_is_as_before() -> None:
    """Old hashes stay, whatever else the section says."""
    before = load(sets=["public.name=random"])
    with_section = load(sets=["public.name=random", "privacy.delta=1e-6"])
    assert with_section.hash() == before.hash()
    assert "privacy" not in before.table()


def test_noise_is_part_of_the_hash() -> None:
    hashes = {load(sets=[*PRIVATE, f"privacy.noise={noise}"]).hash() for noise in (0.0, 1.0, 2.0)}
    assert len(hashes) == 3


def test_an_epsilon_is_refused_where_more_leaves_the_client() -> None:
    assert not load(sets=PRIVATE).uncovered()
    models = load(sets=[*PRIVATE, "method.name=fedavg"]).uncovered()
    assert models == "method 'fedavg' uploads models that were trained on the samples"
    assert "uploads prototypes" in load(sets=[*PRIVATE, "method.name=fedrfq"]).uncovered()


@pytest.mark.parametrize(
    "noise",
    [PRIVATE, ["method.name=fedavg", "train.dp_noise=2.0", "train.dp_rate=0.1"]],
)
def test_an_epsilon_is_refused_where_samples_are_held_back(noise: list[str]) -> None:
    """Which ones are held back is drawn by position, so one more sample swaps others."""
    assert not load(sets=noise).uncovered()
    assert "set validation = 0" in load(sets=[*noise, "validation=0.25"]).uncovered()


def test_an_epsilon_is_refused_where_a_tracker_may_send_accuracies() -> None:
    assert not load(sets=[*PRIVATE, "track=tensorboard"]).uncovered()
    for track in ("wandb", "tensorboard,trackio", "somebodys"):
        assert "may send accuracies" in load(sets=[*PRIVATE, f"track={track}"]).uncovered()


@pytest.mark.parametrize("name", ["sampling", "adaptive", "none"])
def test_detectors_that_know_the_noise_are_taken(name: str) -> None:
    assert load(sets=[*PRIVATE, f"detector.name={name}"]).detector.knows_noise


def test_the_noise_is_never_less_than_asked_for() -> None:
    """It is rounded up to a whole number, and so is what one sample can change."""
    for noise in (0.3, 1.0, 1.994, 7.77):
        scale = Privacy(noise=noise).scale(20.0, 400)
        assert scale.sigma**2 >= noise**2 * (scale.length**2 + scale.one**2)
        assert scale.length <= 20 * 2**14
