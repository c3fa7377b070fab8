"""A client on a network that trains by DP-SGD: all that it draws noise for is counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.cli.status_tables import _privacy as status_text
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.learning.public.exchange import public_task
from fedrfq.node import local_dataset
from fedrfq.node.client_privacy import ClientPrivacy
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.participant import Interrupted, Participant
from fedrfq.privacy.accountant import epsilon
from fedrfq.privacy.drawn_uploads import FOLDER
from fedrfq.prototypes.fixed_point import Globals, decode, encode
from support.small import CPU, tiny

RUN = "ab12"
# Statistics on the map are due in round 1, and prototypes in round 2.
PRIVATE: dict[str, Any] = {
    "clients": 2,
    "partition": {"ways": 3, "spread": 1, "shots": 4, "test_shots": 2},
    "train": {"alone": True, "batch_size": 4, "dp_noise": 1.5, "dp_rate": 0.25},
    "method": {"name": "fedproto"},
    "pool": {"name": "none"},
    "public": {"name": "random", "first": 8, "second": 4, "every": 3},
    "privacy": {"noise": 2.0, "prototype_norm": 4.0},
}


def experiment(**changes: Any) -> Experiment:
    return tiny(**{**PRIVATE, **changes})


def started(found: Experiment, local: LocalDataset, home: Path) -> Participant:
    """Return the client as it is after a start of its process."""
    task = public_task(found.public, 10, found.privacy)
    assert task is not None
    privacy = ClientPrivacy.of(found, task, local, home, RUN)
    return Participant(found, 0, local, CPU, home / "model", run=RUN, privacy=privacy)


def client(found: Experiment, mnist: Dataset, home: Path) -> Participant:
    return started(found, local_dataset.share(found, 0, mnist), home)


def nothing(found: Experiment) -> Globals:
    return Globals.none(10, found.prototype_size())


def spent(own: Participant) -> tuple[int, int]:
    """Return the uploads and the steps of training that are counted."""
    assert own.privacy is not None
    made = own.privacy.claim()
    return made.uploads, made.steps


def test_uploads_and_steps_are_composed(mnist: Dataset, tmp_path: Path) -> None:
    found = experiment()
    assert not found.uncovered()
    own = client(found, mnist, tmp_path)
    for number in (1, 2):
        own.train(number, nothing(found))
    own = client(found, mnist, tmp_path)
    assert spent(own) == (2, 8)
    assert own.privacy is not None
    expected = epsilon([2.0, 2.0], 1e-5, found.noisy_steps(2))
    assert own.privacy.claim().epsilon == expected > epsilon([2.0, 2.0], 1e-5)
    shown = status_text(own.privacy.claim().table())
    assert shown.startswith("2 uploads with noise 2 and 8 steps of training with noise 1.5: ε = ")


def test_prototypes_are_drawn_once_with_noise(mnist: Dataset, tmp_path: Path) -> None:
    """What is uploaded lies in privacy/, is of the declared classes, and nothing draws it anew."""
    found = experiment()
    own = client(found, mnist, tmp_path)
    own.train(1, nothing(found))
    content = own.train(2, nothing(found))
    again = client(found, mnist, tmp_path)
    assert again.train(2, nothing(found)) == content
    assert spent(again) == (2, 8)
    precision = found.method.precision()
    _, _, counts_J, values_JV = decode(content, 10, found.prototype_size(), precision)
    kept = (tmp_path / FOLDER / f"{RUN}-2-0.upload").read_bytes()
    assert encode(2, 0, counts_J, values_JV, precision) in kept
    held = local_dataset.share(found, 0, mnist).partition.classes[0]
    assert np.flatnonzero(counts_J).tolist() == held.tolist()


def test_a_round_that_is_trained_again_counts_twice(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written down before any noise is drawn, and the process dies in it."""
    found = experiment()
    own = client(found, mnist, tmp_path)
    assert own.privacy is not None

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(own.engine, "train", dies)
    with pytest.raises(Interrupted):
        own.train(1, nothing(found))
    again = client(found, mnist, tmp_path)
    again.train(1, nothing(found))
    assert spent(again) == (1, 8)
    # While it trains, a status page need not compose anything.
    assert (0, 1) in own.privacy._claims


def test_an_interrupt_before_training_counts_nothing(mnist: Dataset, tmp_path: Path) -> None:
    """Every result interrupts the training that may be under way, and mostly there is none."""
    found = experiment()
    own = client(found, mnist, tmp_path)
    own.interrupt()
    with pytest.raises(Interrupted):
        own.train(1, nothing(found))
    assert own.privacy is not None
    assert own.privacy.trained.of(0) == 0
    own.train(1, nothing(found))
    assert own.privacy.trained.of(0) == 1


def test_own_images_are_normalised_by_constants(mnist: Dataset, tmp_path: Path) -> None:
    """Their mean and deviation would let each change what the model sees of all others."""
    part = {key: getattr(mnist, key)[:40] for key in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(tmp_path / "own.npz", **part, classes=mnist.classes)
    found = experiment(data={"name": str(tmp_path / "own.npz")})
    local = local_dataset.find(found, 0, 10, str(tmp_path / "own.npz"))
    own = started(found, local, tmp_path)
    black = (0 - 0.5) / 0.25
    assert own.engine.shares.x.min().item() == black
    assert own.engine.tests.x.min().item() == black


def test_training_with_noise_alone_is_refused(mnist: Dataset, tmp_path: Path) -> None:
    """Something else is uploaded in any case."""
    found = experiment(public={"name": "none"}, privacy={})
    with pytest.raises(UserError, match=r"set privacy\.noise for what it does upload"):
        Participant(found, 0, local_dataset.share(found, 0, mnist), CPU, tmp_path)
