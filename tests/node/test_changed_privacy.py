"""A federation with noise that is changed: what left a client in earlier runs still counts."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.consensus.events import Outcome
from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.federation.federation_file import Federation, experiment_digest
from fedrfq.files import toml
from fedrfq.node.client_learning import participant
from fedrfq.node.membership import epochs, founding, identity
from fedrfq.node.membership.change import changed, differences
from fedrfq.node.membership.founding import NewKeys
from fedrfq.privacy.claim import PrivacyClaim
from fedrfq.prototypes.fixed_point import Globals
from support.federations import ended_run
from support.small import CPU

SETS = [
    "clients=2",
    "rounds=4",
    "partition.ways=3",
    "partition.spread=1",
    "partition.shots=4",
    "partition.test_shots=2",
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "public.every=2",
    "privacy.noise=2.0",
]


def new_federation(folder: Path, *sets: str) -> Path:
    founding.init(folder, ["127.0.0.1:7400"], 2, {"minimum": 1}, sets=[*SETS, *sets])
    return folder


def with_experiment(federation: Federation, **sections: Any) -> Federation:
    """Return the federation with other sections of its experiment, which changes nothing else."""
    assert federation.network is not None
    table = toml.strict(federation.network.experiment) | sections
    network = replace(federation.network, experiment=toml.dump(table))
    return replace(federation, experiment=experiment_digest(table), network=network)


def own_samples(mnist: Dataset, path: Path) -> str:
    part = {key: getattr(mnist, key)[:20] for key in ("train_x", "train_y", "test_x", "test_y")}
    np.savez(path, **part, classes=mnist.classes)
    return str(path)


def change(folder: Path, successor: Federation, *homes: str) -> None:
    """End the run of these folders, and begin the successor's."""
    federation = identity.load(folder / homes[0]).federation
    text = successor.text.encode()
    last = ended_run(federation, folder, Outcome(b"", b"", b"", b"", text))
    for home in homes:
        epochs.activate_successor(folder / home, last, text)


def claimed(home: Path) -> PrivacyClaim:
    own = participant(identity.load(home), "mnist5k", CPU)
    assert own.privacy is not None
    return own.privacy.claim()


def test_there_is_no_epsilon_after_a_run_that_sent_more(tmp_path: Path) -> None:
    """Prototypes that left the client cannot be taken back by an experiment that sends none."""
    folder = new_federation(tmp_path, "method.name=fedproto", "pool.name=none")
    federation = identity.load(folder / "client-0").federation
    assert "uploads prototypes" in claimed(folder / "client-0").why
    new = with_experiment(changed(federation, minimum=2), method={"name": "local"})
    change(folder, new, "client-0")
    made = claimed(folder / "client-0")
    assert made.epsilon is None
    assert made.why.startswith("in run 1 of the federation, method 'fedproto' uploads prototypes")


def test_every_change_draws_an_upload_until_the_budget_is_spent(tmp_path: Path) -> None:
    """Two uploads with this noise cost ε = 2.94; three would cost 3.71."""
    folder = new_federation(tmp_path, "method.name=local", "privacy.budget=3.2")
    for uploads in (1, 2, 2):
        own = participant(identity.load(folder / "client-0"), "mnist5k", CPU)
        nothing = Globals.none(10, own.experiment.prototype_size())
        own.train(1, nothing)
        assert own.privacy is not None
        assert own.privacy.claim().uploads == uploads
        federation = identity.load(folder / "client-0").federation
        successor = changed(federation, minimum=3 - federation.timings.minimum)
        assert "draw another upload" in differences(federation, successor)[-1]
        change(folder, successor, "client-0")


def test_who_lost_what_it_drew_does_not_begin_at_zero(tmp_path: Path) -> None:
    """Also where all classes are uploaded, and nothing was declared."""
    folder = new_federation(tmp_path, "method.name=local", "privacy.classes=all")
    home = folder / "client-0"
    claimed(home)
    change(folder, changed(identity.load(home).federation, minimum=2), "client-0")
    assert claimed(home).epsilon == 0
    shutil.rmtree(home / "privacy")
    with pytest.raises(UserError, match="it alone knows what they cost: restore it"):
        claimed(home)
    (home / "privacy").mkdir()
    (home / "privacy" / "lost").touch()
    assert "drawn in earlier runs is lost" in claimed(home).why


def test_there_is_no_epsilon_after_a_run_that_trained_without_noise(tmp_path: Path) -> None:
    """The model of then is trained further, and uploads are made of it."""
    map_ = ["method.name=local", "privacy.classes=all"]
    folder = new_federation(tmp_path, *map_)
    home = folder / "client-0"
    assert claimed(home).epsilon == 0
    federation = identity.load(home).federation
    train = {"dp_noise": 1.5, "dp_rate": 0.5}
    change(folder, with_experiment(changed(federation, minimum=2), train=train), "client-0")
    assert "clients trained with other noise (train.dp_noise), or without any" in claimed(home).why


def test_a_newcomer_has_not_sent_what_others_did_before_it_came(
    mnist: Dataset, tmp_path: Path
) -> None:
    folder = new_federation(tmp_path, "method.name=fedproto", "pool.name=none")
    federation = identity.load(folder / "client-0").federation
    newcomer = NewKeys.new("client-9")
    new = with_experiment(changed(federation, [newcomer.request]), method={"name": "local"})
    change(folder, new, "client-0")
    home = folder / "client-9"
    newcomer.write(home)
    shutil.copytree(folder / "client-0" / "past", home / "past")
    shutil.copy(folder / "client-0" / "federation.toml", home)
    own = participant(identity.load(home), own_samples(mnist, tmp_path / "own.npz"), CPU)
    assert own.privacy is not None
    assert own.privacy.claim().epsilon == 0


def test_a_run_whose_experiment_nobody_can_read_has_no_epsilon(tmp_path: Path) -> None:
    """It may have been of a plugin that is no longer installed. A budget cannot be kept then."""
    folder = new_federation(tmp_path, "method.name=local", "privacy.budget=4.0")
    federation = identity.load(folder / "client-0").federation
    unknown = with_experiment(federation, method={"name": "somebodys"})
    for home in folder.glob("*-*"):
        (home / "federation.toml").write_text(unknown.text)
    new = with_experiment(changed(unknown, minimum=2), method={"name": "local"})
    change(folder, new, "client-0")
    (folder / "client-0" / "privacy").mkdir()
    with pytest.raises(UserError, match=r"budget cannot be kept, .* run 1 .* program cannot read"):
        claimed(folder / "client-0")
