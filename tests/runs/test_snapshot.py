"""What a run keeps for its report: its partition, and the prototypes of its last round."""

import numpy as np
import pytest
import torch

from fedrfq.errors import UserError
from fedrfq.experiment import load
from fedrfq.files import tensors
from fedrfq.learning.round_loop import deal
from fedrfq.prototypes.fixed_point import Globals
from fedrfq.runs.session import Session
from fedrfq.runs.snapshot import PrototypeSnapshot, Share, load_shares, save_shares, shares
from support.command import CPU, clients, only_run, small_session


def test_the_partition_is_kept_from_the_start(tmp_path, mnist):
    sets = [
        "clients=6",
        "partition.name=dirichlet",
        "partition.samples=60",
        "partition.test_samples=20",
    ]
    session = Session.begin([load(sets=sets)], CPU, tmp_path)
    found = load_shares(session.runs[0].path)
    partition = deal(session.loop.experiments[0], mnist)
    assert found == shares(partition, mnist)
    for client, own in enumerate(partition.train):
        kept = {share.label: share.train for share in found if share.client == client}
        assert kept == {
            int(j): int((mnist.train_y[own] == j).sum()) for j in np.unique(mnist.train_y[own])
        }
        tested = sum(share.test for share in found if share.client == client)
        assert tested == len(partition.test[client])


def test_test_samples_that_were_held_back_are_counted_among_the_training_samples(tmp_path, mnist):
    session = small_session(tmp_path, "validation=0.25")
    found = load_shares(session.runs[0].path)
    assert {(share.train, share.test) for share in found} == {(6, 2)}
    assert found == shares(session.loop.partitions[0], mnist)


def test_the_last_rounds_prototypes_are_what_was_sent_and_decided(tmp_path, sent):
    session = small_session(tmp_path, "rounds=2", "participation=0.5")
    list(session.advance())
    assert not (session.runs[0].path / "prototypes.safetensors").exists()
    session.finish()
    found = PrototypeSnapshot.load(session.runs[0].path)
    last = sent[-1]
    assert found.round == 2
    for row, client in enumerate(last.clients):
        own = found.client_R == client
        assert (found.label_R[own] == np.flatnonzero(last.counts_KJ[row])).all()
        assert (found.values_RV[own] == last.values_KJV[row][found.label_R[own]]).all()
        assert (found.count_R[own] == last.counts_KJ[row][found.label_R[own]]).all()
    assert set(found.client_R.tolist()) == set(last.clients)
    assert (found.globals_.values_JV == session.state.globals_[0].values_JV).all()
    assert (found.globals_.present_J == session.state.globals_[0].present_J).all()


def test_a_resumed_run_keeps_the_same(tmp_path):
    whole = small_session(tmp_path / "whole", "rounds=4")
    list(whole.advance())
    whole.finish()
    part = small_session(tmp_path / "part", "rounds=4")
    for _, _outcomes in zip(range(3), part.advance(), strict=False):
        pass
    part.close()
    again = Session.resume(part.runs[0].path, CPU)
    list(again.advance())
    again.finish()
    for name in ("prototypes.safetensors", "partition.csv"):
        assert (part.runs[0].path / name).read_bytes() == (whole.runs[0].path / name).read_bytes()


def test_a_finished_run_that_is_resumed_keeps_what_it_has(tmp_path):
    session = small_session(tmp_path, "rounds=2")
    list(session.advance())
    session.finish()
    session.close()
    path = session.runs[0].path / "prototypes.safetensors"
    before = path.read_bytes()
    Session.resume(session.runs[0].path, CPU).finish()
    assert path.read_bytes() == before


def test_where_no_prototypes_are_exchanged_none_are_kept(tmp_path):
    session = small_session(tmp_path, "rounds=1", "method.name=fedavg")
    list(session.advance())
    session.finish()
    assert PrototypeSnapshot.load(only_run(tmp_path).path) is None
    assert len(clients(only_run(tmp_path).path)) == 6


def test_shares_come_back_as_they_were_written(tmp_path):
    written = [Share(0, 3, 20, 5), Share(1, 61, 7, 0)]
    save_shares(tmp_path, written)
    assert load_shares(tmp_path) == written
    assert load_shares(tmp_path / "nowhere") is None


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


def stored(tmp_path, **changes):
    named = {
        "client": ints(0, 1),
        "class": ints(0, 1),
        "count": ints(5, 5),
        "values": torch.zeros(2, 3, dtype=torch.int32),
        "globals/present": torch.tensor([True, False]),
        "globals/values": torch.zeros(2, 3, dtype=torch.int32),
    }
    named |= {name.replace("_", "/"): tensor for name, tensor in changes.items()}
    present = {name: tensor for name, tensor in named.items() if tensor is not None}
    tensors.save(tmp_path / "prototypes.safetensors", present, {"round": "7"})
    return PrototypeSnapshot.load(tmp_path)


def test_prototypes_come_back_as_they_were_written(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(-1000, 1000, (3, 4))
    globals_ = Globals(np.array([True, False, True]), rng.integers(-9, 9, (3, 4)))
    PrototypeSnapshot(
        7, np.array([0, 0, 5]), np.array([0, 2, 2]), np.array([1, 2, 3]), values, globals_
    ).save(tmp_path)
    found = PrototypeSnapshot.load(tmp_path)
    assert found.round == 7
    assert found.client_R.tolist() == [0, 0, 5]
    assert found.label_R.tolist() == [0, 2, 2]
    assert (found.values_RV == values).all()
    assert (found.globals_.present_J == globals_.present_J).all()
    assert (found.globals_.values_JV == globals_.values_JV).all()
    assert stored(tmp_path).round == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"count": None},
        {"more": torch.zeros(1)},
        {"count": torch.zeros(2, 2, dtype=torch.int32)},
        {"count": torch.zeros(2, dtype=torch.bfloat16)},
        {"count": ints(1, 2, 3)},
        {"class": ints(0, 2)},
        {"class": ints(0, -1)},
        {"class": ints(0)},
        {"values": torch.zeros(2, 4, dtype=torch.int32)},
        {"globals_present": torch.tensor([True])},
    ],
)
def test_prototypes_that_do_not_fit_together_are_refused(tmp_path, changes):
    with pytest.raises(UserError, match="prototypes"):
        stored(tmp_path, **changes)
