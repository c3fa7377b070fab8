"""A client on a network with noise: nothing is drawn twice, and what is spent is remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation.public_task import PublicTask
from fedrfq.learning.public.exchange import public_task
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.node import local_dataset
from fedrfq.node.client_privacy import DECLARED, ClientPrivacy
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.ops.prometheus import _privacy as metrics
from fedrfq.node.participant import Participant
from fedrfq.privacy.accountant import epsilon
from fedrfq.privacy.drawn_uploads import FOLDER, DrawnUpload, UploadKey
from fedrfq.prototypes.fixed_point import Globals, decode, encode
from support.small import CPU, tiny

PRIVATE: dict[str, Any] = {
    "clients": 2,
    "rounds": 3,
    "partition": {"ways": 3, "spread": 1, "shots": 4, "test_shots": 2},
    "train": {"alone": True},
    "method": {"name": "local"},
    "public": {"name": "random", "first": 8, "second": 4, "every": 1},
    "committee": {"name": "simulated", "servers": 1},
    "privacy": {"noise": 2.0},
}
RUN = "ab12"


def experiment(**changes: Any) -> Experiment:
    return tiny(**{**PRIVATE, **changes})


def task_of(found: Experiment) -> PublicTask:
    task = public_task(found.public, 10, found.privacy)
    assert task is not None
    return task


def privacy(
    found: Experiment, local: LocalDataset, home: Path, *names: str, run: str = RUN
) -> ClientPrivacy:
    home.mkdir(exist_ok=True)
    return ClientPrivacy.of(found, task_of(found), local, home, run, names)


def client(found: Experiment, dataset: Dataset, home: Path, k: int = 0) -> Participant:
    """Return the client as it is after a start of its process."""
    home.mkdir(exist_ok=True)
    local = local_dataset.share(found, k, dataset)
    return Participant(
        found, k, local, CPU, home / "model", run=RUN, privacy=privacy(found, local, home)
    )


def nothing(found: Experiment) -> Globals:
    return Globals.none(10, found.prototype_size())


def test_a_restart_sends_the_same_bytes(mnist: Dataset, tmp_path: Path) -> None:
    """Killed after the upload was drawn and before it was signed, or having lost its model."""
    found = experiment()
    first = client(found, mnist, tmp_path).train(1, nothing(found))
    again = client(found, mnist, tmp_path)
    assert again.train(1, nothing(found)) == first
    (tmp_path / "model" / "model.safetensors").unlink()
    anew = client(found, mnist, tmp_path)
    assert anew.train(1, nothing(found)) == first
    assert anew.privacy is not None
    assert anew.privacy.claim().uploads == 1
    assert anew.train(2, nothing(found))[18:] != first[18:]
    assert anew.privacy.claim().epsilon == epsilon([2.0, 2.0], 1e-5)


def test_clients_on_a_network_are_those_of_a_run_given_their_noise(
    mnist: Dataset, tmp_path: Path
) -> None:
    """Noise is drawn by each; from there on everything is the same to the byte."""
    found = experiment()
    clients = [client(found, mnist, tmp_path / str(k), k) for k in range(2)]
    loop = RoundLoop([found], mnist, CPU)
    state = loop.start()
    task = task_of(found)
    for number in (1, 2):
        contents = [own.train(number, state.globals_[0]) for own in clients]
        for k, content in enumerate(contents):
            drawn = DrawnUpload(content, 2.0, "sample", 0)
            loop.public.drawn[0].once(UploadKey("", number, k), lambda drawn=drawn: drawn)
        state, (outcome,) = loop.advance(state)
        assert outcome.sent.encoded(number) == contents
        assert outcome.sent.noise == task.noise
        for k, own in enumerate(clients):
            accuracies = own.test(number, state.globals_[0], state.public[0])
            assert accuracies.accuracy_all == outcome.clients[k]["accuracy_all"]


def test_a_spent_budget_stops_uploads_for_good(
    mnist: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also in the next run of the federation, and after a restart. The client goes on."""
    found = experiment(privacy={"noise": 2.0, "budget": 2.0})
    own = client(found, mnist, tmp_path)
    assert decode(own.train(1, nothing(found)), 10, 64, task_of(found).precision)[2].any()
    own = client(found, mnist, tmp_path)
    with caplog.at_level("INFO"):
        content = own.train(2, nothing(found))
    _, _, counts_J, _ = decode(content, 10, 64, task_of(found).precision)
    assert not counts_J.any()
    assert "the privacy budget is spent: no class is uploaded" in caplog.text
    local = local_dataset.share(found, 0, mnist)
    next_run = privacy(found, local, tmp_path, run="cd34")
    assert next_run.claim().uploads == 1
    # Round 1 of run ab12 can still be asked for: it was paid for.
    assert own.privacy is not None
    assert len(list((tmp_path / FOLDER).glob("*.upload"))) == 1


def test_a_budget_below_one_upload_is_said_at_the_start(mnist: Dataset, tmp_path: Path) -> None:
    found = experiment(privacy={"noise": 2.0, "budget": 1.0})
    with pytest.raises(UserError, match="below what one upload costs"):
        client(found, mnist, tmp_path)


def test_a_delta_that_is_large_beside_the_samples_is_said(
    mnist: Dataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    large = experiment(
        partition={**PRIVATE["partition"], "shots": 60}, privacy={"noise": 2.0, "delta": 0.01}
    )
    for found, said in ((experiment(), False), (large, True)):
        with caplog.at_level("INFO"):
            client(found, mnist, tmp_path / str(said))
        assert ("lower privacy.delta" in caplog.text) == said


def test_what_a_client_spent_is_in_its_metrics(mnist: Dataset, tmp_path: Path) -> None:
    found = experiment(privacy={"noise": 2.0, "budget": 2.0})
    own = client(found, mnist, tmp_path)
    own.train(1, nothing(found))
    assert own.privacy is not None
    values = {name: value for name, (_, value) in metrics(own.privacy.claim()).items()}
    spent = epsilon([2.0], 1e-5)
    assert values == {"privacy_uploads": 1, "privacy_epsilon": spent, "privacy_budget": 2.0}
    assert metrics(None) == {}


def test_no_epsilon_is_shown_where_prototypes_leave_the_client(
    mnist: Dataset, tmp_path: Path
) -> None:
    found = experiment(method={"name": "fedproto"}, public={**PRIVATE["public"], "every": 2})
    own = client(found, mnist, tmp_path)
    own.train(1, nothing(found))
    assert own.privacy is not None
    made = own.privacy.claim()
    assert (made.uploads, made.epsilon) == (1, None)
    assert "prototypes of features that were trained" in made.why
    assert set(metrics(made)) == {"privacy_uploads"}


def own_samples(mnist: Dataset) -> LocalDataset:
    local = local_dataset.share(experiment(), 0, mnist)
    return LocalDataset(local.dataset, local.partition)


def test_a_client_with_samples_of_its_own_uploads_all_classes_unless_it_declared_some(
    mnist: Dataset, tmp_path: Path
) -> None:
    found = experiment()
    local = own_samples(mnist)
    assert privacy(found, local, tmp_path / "other").declared_J.all()
    declared = privacy(found, local, tmp_path, "3", "7")
    assert np.flatnonzero(declared.declared_J).tolist() == [3, 7]
    assert (tmp_path / FOLDER / DECLARED).read_text() == "3\n7\n"
    # From now on these are its classes.
    assert privacy(found, local, tmp_path).declared_J.tolist() == declared.declared_J.tolist()
    assert privacy(found, local, tmp_path, "7", "3").declared_J.tolist() == [
        number in (3, 7) for number in range(10)
    ]
    with pytest.raises(UserError, match="a change would tell others about its samples"):
        privacy(found, local, tmp_path, "3")


def test_who_declared_no_class_at_the_first_start_declares_none_later(
    mnist: Dataset, tmp_path: Path
) -> None:
    """Its upload of all classes has left; fewer afterwards would tell which it has samples of."""
    found = experiment()
    assert privacy(found, own_samples(mnist), tmp_path).declared_J.all()
    with pytest.raises(UserError, match=r"uploads 0, 1, .*, 9: a change would tell others"):
        privacy(found, own_samples(mnist), tmp_path, "3", "7")
    # Nor does a share of a known dataset change with the samples.
    share = local_dataset.share(found, 0, mnist)
    first = privacy(found, share, tmp_path / "share").declared_J
    assert np.flatnonzero(first).tolist() == share.partition.classes[0].tolist()
    other = local_dataset.share(found, 1, mnist)
    assert other.partition.classes[0].tolist() != share.partition.classes[0].tolist()
    assert privacy(found, other, tmp_path / "share").declared_J.tolist() == first.tolist()


def test_classes_that_cannot_be_declared(mnist: Dataset, tmp_path: Path) -> None:
    local = own_samples(mnist)
    with pytest.raises(UserError, match="names 'cat', which is none of the federation's"):
        privacy(experiment(), local, tmp_path, "cat")
    # A misspelt name is not what the client is known by from now on.
    assert privacy(experiment(), local, tmp_path, "3").declared_J[3]
    (tmp_path / FOLDER / DECLARED).write_text("cat\n")
    with pytest.raises(UserError, match=r"classes\.txt names 'cat'"):
        privacy(experiment(), local, tmp_path)
    everything = experiment(privacy={"noise": 2.0, "classes": "all"})
    with pytest.raises(UserError, match="every client uploads all classes"):
        privacy(everything, local, tmp_path / "other", "3")
    assert privacy(everything, local, tmp_path / "other").declared_J.all()


def test_the_upload_has_its_round_and_member(mnist: Dataset, tmp_path: Path) -> None:
    """What is kept has the number 0, which is this client's only one in its own folder."""
    found = experiment()
    content = client(found, mnist, tmp_path, k=1).train(1, nothing(found))
    precision = task_of(found).precision
    number, member, counts_J, values_JV = decode(content, 10, 64, precision)
    assert (number, member) == (1, 1)
    (kept,) = (tmp_path / FOLDER).glob("*.upload")
    assert kept.name == f"{RUN}-1-0.upload"
    assert encode(1, 0, counts_J, values_JV, precision) in kept.read_bytes()
