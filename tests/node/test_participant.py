"""A client outside the round loop equals the one in it; its model on disk; its own samples."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrfq.data import Dataset
from fedrfq.errors import UserError
from fedrfq.experiment import Experiment
from fedrfq.federation.retained import MARK
from fedrfq.files import tensors
from fedrfq.learning.evaluation import RoundOutcome
from fedrfq.learning.public.classifier_file import CLASSIFIERS, load_classifier
from fedrfq.learning.public.exchange import PublicExchange, public_task
from fedrfq.learning.public.features import vectors
from fedrfq.learning.round_loop import LoopState, RoundLoop, check_stackable, program_key
from fedrfq.node import local_dataset
from fedrfq.node.client_privacy import ClientPrivacy
from fedrfq.node.participant import Interrupted, Participant
from fedrfq.node.public_knowledge import PublicKnowledge
from fedrfq.privacy.drawn_uploads import DrawnUploads
from fedrfq.privacy.settings import Privacy
from fedrfq.prototypes.fixed_point import Globals, Precision, admit
from support.small import CPU, tiny

ROUNDS = 3


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Any:
    """Set the number of threads, which must not matter to a client alone."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def alone(**changes: Any) -> Experiment:
    found = tiny(**changes)
    return replace(found, train=replace(found.train, alone=True))


def participant(
    experiment: Experiment, client: int, dataset: Dataset, folder: Path, run: str = ""
) -> Participant:
    return Participant(
        experiment, client, local_dataset.share(experiment, client, dataset), CPU, folder, run=run
    )


def rounds(experiment: Experiment, dataset: Dataset) -> list[tuple[LoopState, RoundOutcome]]:
    """Return the state after each round, with the round's outcome."""
    loop = RoundLoop([experiment], dataset, CPU)
    state = loop.start()
    found = []
    for _ in range(ROUNDS):
        state, outcomes = loop.advance(state)
        found.append((state, outcomes[0]))
    return found


def nothing(experiment: Experiment, dataset: Dataset) -> Globals:
    return Globals.none(len(dataset.classes), experiment.prototype_size())


MAP = {"name": "random", "first": 8, "second": 4}
# With a committee, which hears from clients in every round.
OPEN: dict[str, Any] = {
    "clients": 2,
    "method": {"name": "local"},
    "public": MAP,
    "committee": {"name": "simulated", "servers": 1},
}
CHANGES: dict[str, dict[str, Any]] = {
    "plain": {"clients": 3},
    "augmented, lean": {"clients": 2, "data": {"augment": True}, "method": {"name": "fedrfq-lean"}},
    "anchors": {"clients": 2, "method": {"name": "fedsa", "inertia": 0.5}},
    "validated, same start": {"clients": 3, "validation": 0.3, "init": "same"},
    "cohorts": {
        "clients": 3,
        "init": "same",
        "cohorts": [{"clients": 2, "hidden": 40}, {"clients": 1, "channels": 12, "hidden": 40}],
    },
    "larger batches than shares": {"clients": 3, "train": {"batch_size": 32, "epochs": 2}},
    "public map every other round": {"clients": 2, "public": {**MAP, "every": 2}, "checkpoint": 1},
    "public map, no prototypes": {**OPEN, "checkpoint": 1, "validation": 0.3},
    "public map, codes": {**OPEN, "method": {"name": "codes"}},
    "public map, own means": {**OPEN, "method": {"name": "self"}},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_participant_is_the_client_of_a_run_alone_to_the_byte(
    changes: dict[str, Any], mnist: Dataset, tmp_path: Path, threads: int
) -> None:
    experiment = alone(**changes)
    run = rounds(experiment, mnist)
    for k in range(experiment.clients):
        own = participant(experiment, k, mnist, tmp_path / str(k))
        globals_ = nothing(experiment, mnist)
        for number, (state, outcome) in enumerate(run, start=1):
            content = own.train(number, globals_)
            assert content == outcome.sent.encoded(number)[k]
            assert all(torch.equal(p, state.params[k][name]) for name, p in own.params.items())
            globals_ = state.globals_[0]
            row = outcome.clients[k]
            accuracies = own.test(number, globals_, state.public[0])
            assert (accuracies.head, accuracies.prototype) == (
                row["accuracy"],
                row["prototype_accuracy"],
            )
            assert accuracies.prototype_own == row["prototype_accuracy_own"]
            # Rounds with a checkpoint are tested on all classes, too.
            assert (accuracies.accuracy_all is not None) == experiment.at_checkpoint(number)
            assert (accuracies.combined is not None) == experiment.public.used
            for name in ("accuracy_all", "accuracy_held", "accuracy_unheld"):
                assert getattr(accuracies, name) == row[name]
            assert own.losses.classification == row["loss_classification"]
            assert own.losses.prototype == (row["loss_prototype"] or own.losses.prototype)


def test_alone_the_number_of_threads_is_nothing_to_a_run(mnist: Dataset) -> None:
    experiment = alone(clients=2)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(rounds(experiment, mnist)[-1][0])
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    for state in found[1:]:
        pairs = zip(state.params, found[0].params, strict=True)
        assert all(torch.equal(p, one[name]) for own, one in pairs for name, p in own.items())


def test_alone_and_stacked_clients_differ_in_last_bits_at_most(mnist: Dataset) -> None:
    experiment = alone(clients=3)
    stacked = replace(experiment, train=replace(experiment.train, alone=False))
    by_itself = rounds(experiment, mnist)[0][0].params
    together = rounds(stacked, mnist)[0][0].params
    for name, p in together[0].items():
        torch.testing.assert_close(
            torch.cat([own[name] for own in by_itself]), p, rtol=1e-3, atol=1e-5
        )


def test_runs_alone_are_not_stacked() -> None:
    with pytest.raises(UserError, match="one seed at a time"):
        check_stackable([alone(), alone()])
    assert program_key(alone(seed=1)) != program_key(alone(seed=2))
    assert program_key(tiny(seed=1)) == program_key(tiny(seed=2))


def test_models_that_are_averaged_are_not_trained_alone() -> None:
    with pytest.raises(UserError, match=r"set train\.alone = false"):
        tiny(method={"name": "fedavg"}, train={"alone": True})


def test_killed_after_any_round_it_goes_on_with_the_same_bytes(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = alone(clients=3)
    run = rounds(experiment, mnist)
    whole = participant(experiment, 1, mnist, tmp_path / "whole")
    globals_ = [nothing(experiment, mnist), *(state.globals_[0] for state, _ in run)]
    expected = []
    for number in range(1, ROUNDS + 1):
        expected.append(whole.train(number, globals_[number - 1]))
        # Loaded from disk in every round, as after a crash.
        again = participant(experiment, 1, mnist, tmp_path / "again")
        assert again.round == number - 1
        assert again.train(number, globals_[number - 1]) == expected[-1]
    left = [tmp_path / name / "model.safetensors" for name in ("whole", "again")]
    assert left[0].read_bytes() == left[1].read_bytes()
    last = participant(experiment, 1, mnist, tmp_path / "again")
    assert (last.round, last.losses) == (ROUNDS, whole.losses)
    # Asked again, even with other globals, it does not train anew.
    assert last.train(ROUNDS, globals_[0]) == expected[-1]
    assert left[0].read_bytes() == left[1].read_bytes()


def test_in_another_run_the_model_stays_and_its_rounds_do_not(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = alone(clients=2)
    first = participant(experiment, 0, mnist, tmp_path, run="aa")
    first.train(1, nothing(experiment, mnist))
    second = participant(experiment, 0, mnist, tmp_path, run="bb")
    assert second.round == 0
    assert all(torch.equal(p, first.params[name]) for name, p in second.params.items())


@pytest.mark.parametrize("change", ["shape", "round", "losses"])
def test_a_model_that_is_none_of_its_own_is_refused(
    change: str, mnist: Dataset, tmp_path: Path
) -> None:
    experiment = alone(clients=2)
    participant(experiment, 0, mnist, tmp_path).train(1, nothing(experiment, mnist))
    found, about = tensors.load(tmp_path / "model.safetensors")
    if change == "shape":
        found = {name: p[:-1] for name, p in found.items()}
    if change == "round":
        about["round"] = "x"
    if change == "losses":
        about["losses"] = "[1]"
    tensors.save(tmp_path / "model.safetensors", found, about)
    with pytest.raises(UserError, match="restore it, or remove it"):
        participant(experiment, 0, mnist, tmp_path)


def test_interrupted_it_is_as_it_was_and_trains_again(mnist: Dataset, tmp_path: Path) -> None:
    experiment = alone(clients=2, train={"epochs": 1_000})
    own = participant(experiment, 0, mnist, tmp_path)
    caught = []
    before = {name: p.clone() for name, p in own.params.items()}

    def work() -> None:
        try:
            own.train(1, nothing(experiment, mnist))
        except Interrupted as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    own.interrupt()
    thread.join(60)
    assert caught
    assert not thread.is_alive()
    assert own.round == 0
    assert not own.path.exists()
    assert all(torch.equal(p, before[name]) for name, p in own.params.items())
    brief = participant(alone(clients=2), 0, mnist, tmp_path)
    brief.interrupt()
    with pytest.raises(Interrupted):
        brief.train(1, nothing(experiment, mnist))
    assert brief.train(1, nothing(experiment, mnist))


def test_it_is_honest_and_alone_whatever_the_experiment_says(
    mnist: Dataset, tmp_path: Path
) -> None:
    good = tiny(clients=2)
    evil = tiny(clients=2, attack={"name": "label-flip", "clients": 2})
    contents = [participant(e, 1, mnist, tmp_path / str(i)) for i, e in enumerate((good, evil))]
    assert len({own.train(1, nothing(good, mnist)) for own in contents}) == 1
    assert all(own.experiment.train.alone for own in contents)


def test_who_takes_part_is_drawn_by_the_experiment(mnist: Dataset, tmp_path: Path) -> None:
    experiment = tiny(participation=0.5)
    clients = [participant(experiment, k, mnist, tmp_path / str(k)) for k in range(6)]
    drawn = [[own.takes_part(number) for own in clients] for number in range(1, 9)]
    assert all(sum(row) == 3 for row in drawn)
    assert len({tuple(row) for row in drawn}) > 1


@pytest.mark.parametrize(("method", "map_"), [("local", "none"), ("fedavg", "random")])
def test_methods_that_exchange_something_else_or_nothing_are_refused(
    method: str, map_: str, mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(method={"name": method}, public={"name": map_})
    with pytest.raises(UserError, match="exchanges none"):
        participant(experiment, 0, mnist, tmp_path)


def test_training_that_fails_says_so_and_leaves_the_model(mnist: Dataset, tmp_path: Path) -> None:
    own = participant(tiny(train={"lr": 1e30}), 0, mnist, tmp_path)
    with pytest.raises(UserError, match="training diverged in round 1"):
        own.train(1, nothing(own.experiment, mnist))
    assert not own.path.exists()


def some(dataset: Dataset, classes: list[int]) -> dict[str, Any]:
    """Arrays of a few samples of some classes, numbered from 0, with their names."""
    found: dict[str, Any] = {"classes": np.array([dataset.classes[j] for j in classes])}
    for part, count in (("train", 6), ("test", 2)):
        x = getattr(dataset, f"{part}_x")
        y = getattr(dataset, f"{part}_y")
        rows = np.concatenate([np.flatnonzero(y == j)[:count] for j in classes])
        found |= {f"{part}_x": x[rows], f"{part}_y": np.repeat(np.arange(len(classes)), count)}
    return found


def test_own_samples_are_all_its_own_under_the_federations_classes(
    mnist: Dataset, tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", **some(mnist, [7, 2]))
    experiment = tiny()
    found = local_dataset.find(experiment, 4, 10, str(tmp_path / "own.npz"))
    assert found.dataset.classes == mnist.classes
    assert (found.dataset.mean, found.dataset.std) == (mnist.mean, mnist.std)
    assert found.dataset.train_y.tolist() == [7] * 6 + [2] * 6
    assert [len(found.partition.train[0]), len(found.partition.test[0])] == [12, 4]
    held_back = local_dataset.find(tiny(validation=0.5), 4, 10, str(tmp_path / "own.npz")).partition
    assert (len(held_back.train[0]), len(held_back.test[0]), held_back.held_out) == (6, 6, True)
    own = Participant(experiment, 4, found, CPU, tmp_path / "model")
    own.train(1, nothing(experiment, mnist))
    assert own.engine.shares.counts == (12,)
    assert own.held_1J[0].nonzero().flatten().tolist() == [2, 7]
    # No other client has these test samples, and so there is no test on all classes.
    last = own.test(experiment.rounds, nothing(experiment, mnist))
    assert (last.accuracy_all, last.accuracy_unheld) == (None, None)


def test_own_samples_of_other_classes_are_refused(mnist: Dataset, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **(some(mnist, [1, 2]) | {"classes": np.array(["1", "cat"])}))
    with pytest.raises(UserError, match="'cat' of own is none of the federation's"):
        local_dataset.find(tiny(), 0, 10, str(tmp_path / "own.npz"))


def test_a_dataset_is_the_experiments(mnist: Dataset) -> None:
    with pytest.raises(UserError, match="on mnist5k"):
        local_dataset.find(tiny(), 0, 10, "femnist")
    with pytest.raises(UserError, match="10 classes, the federation 12"):
        local_dataset.find(tiny(), 0, 12, "mnist5k")
    share = local_dataset.find(tiny(), 3, 10, "mnist5k").partition
    loop = RoundLoop([tiny()], mnist, CPU)
    assert np.array_equal(share.train[0], loop.partitions[0].train[3])
    assert np.array_equal(share.test[0], loop.partitions[0].test[3])


def test_own_samples_need_tests_of_what_they_train(mnist: Dataset, tmp_path: Path) -> None:
    arrays = some(mnist, [1, 2])
    arrays |= {"train_y": np.zeros(12, np.int64), "test_y": np.ones(4, np.int64)}
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(UserError):
        local_dataset.find(tiny(), 0, 10, str(tmp_path / "own.npz"))


# The public map


def test_what_it_learned_on_the_map_is_kept_and_learned_once(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = alone(**OPEN)
    known = rounds(experiment, mnist)[0][0].public[0]
    assert known is not None
    own = participant(experiment, 1, mnist, tmp_path)
    own.train(1, nothing(experiment, mnist))
    # Nothing was certified yet: the own head speaks alone.
    assert own.test(1, nothing(experiment, mnist)).combined is None
    assert load_classifier(tmp_path, 0) is None
    before = own.test(1, nothing(experiment, mnist), known)
    found = load_classifier(tmp_path, 0)
    assert found is not None
    made, held_J = found
    assert held_J.tolist() == own.held_1J[0].tolist()
    # An image of every class: others have taught it those that it does not hold.
    z_NV = vectors(experiment.public, mnist, "test", np.arange(len(mnist.test_y)), CPU)
    guess_N = made.log_probabilities(z_NV).argmax(-1).numpy()
    assert len(set(guess_N[guess_N == mnist.test_y])) > held_J.sum()
    (tmp_path / CLASSIFIERS).unlink()
    same = Globals(known.present_J.copy(), known.values_JV.copy())
    assert own.test(1, nothing(experiment, mnist), same) == before
    assert not (tmp_path / CLASSIFIERS).exists()
    # Other statistics are learned anew, and so are all after a restart.
    fewer = Globals(known.present_J & (np.arange(len(known.present_J)) > 4), known.values_JV)
    own.test(1, nothing(experiment, mnist), fewer)
    assert (tmp_path / CLASSIFIERS).exists()
    (tmp_path / CLASSIFIERS).unlink()
    again = participant(experiment, 1, mnist, tmp_path)
    assert again.test(1, nothing(experiment, mnist), known) == before
    assert (tmp_path / CLASSIFIERS).exists()
    # One that comes late has no model on its disk yet.
    late = participant(experiment, 1, mnist, tmp_path / "late")
    assert late.test(1, nothing(experiment, mnist), known).combined is not None
    assert (tmp_path / "late" / CLASSIFIERS).exists()


def test_an_empty_folder_is_a_class_that_the_client_does_not_hold(
    mnist: Dataset, tmp_path: Path
) -> None:
    from PIL import Image

    for digit in range(3):
        folder = tmp_path / "scans" / str(digit)
        folder.mkdir(parents=True)
        # Of the class 1 there are none.
        for row in np.flatnonzero(mnist.train_y == digit)[: 5 * (digit != 1)]:
            Image.fromarray(mnist.train_x[row, 0]).save(folder / f"{row}.png")
    experiment = tiny(data={"name": str(tmp_path / "scans")}, public=MAP)
    local = local_dataset.find(experiment, 0, 3, experiment.data.name)
    own = Participant(experiment, 0, local, CPU, tmp_path / "model")
    assert own.held_1J[0].tolist() == [True, False, True]
    sent = admit(
        1, {0: own.train(1, Globals.none(3, experiment.prototype_size()))}, 3, 64, Precision(8)
    )
    assert sent.counts_KJ.tolist() == [[4, 0, 4]]
    with pytest.raises(UserError, match="3 classes, the federation 4, which are fixed"):
        local_dataset.find(experiment, 0, 4, experiment.data.name)


def test_everybody_takes_part_in_an_exchange_also_after_a_change_of_the_federation(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(**{**OPEN, "clients": 6}, participation=0.34)
    for before in (0, 2):
        clients = [
            Participant(
                experiment,
                k,
                local_dataset.share(experiment, k, mnist),
                CPU,
                tmp_path / str(k),
                before=before,
            )
            for k in range(6)
        ]
        assert [sum(own.takes_part(n) for own in clients) for n in (1, 2)] == [6, 2]


def test_a_client_replaces_its_statistics_until_that_has_counted(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(public={**MAP, "revocable": True}, participation=0.34)
    local = local_dataset.share(experiment, 0, mnist)
    own = Participant(experiment, 0, local, CPU, tmp_path, renew=True)
    assert all(own.takes_part(number) for number in range(2, 20))
    known = nothing(experiment, mnist)
    content = own.train(2, known)
    assert content.startswith(MARK)
    # A round that left it out, and what it sent before its samples were changed.
    own.heard(2, b"")
    own.heard(1, content.removeprefix(MARK))
    again = own.train(3, known)
    assert again.startswith(MARK)
    own.heard(3, again)
    assert not own.train(4, known).startswith(MARK)
    assert not all(own.takes_part(number) for number in range(2, 20))


def test_a_classifier_goes_when_all_statistics_were_taken_back(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(public={**MAP, "revocable": True})
    own = participant(experiment, 0, mnist, tmp_path)
    loop = RoundLoop([experiment], mnist, CPU)
    state, _ = loop.advance(loop.start())
    known = nothing(experiment, mnist)
    assert own.test(1, known, state.public[0]).combined is not None
    (file,) = tmp_path.rglob(CLASSIFIERS)
    assert own.test(2, known, None).combined is None
    assert not file.exists()


def test_missing_weights_are_reported_at_the_start(
    mnist: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "empty"))
    experiment = tiny(public={"name": "resnet18"})
    with pytest.raises(UserError, match="run: fedrfq data get resnet18"):
        participant(experiment, 0, mnist, tmp_path)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_client_takes_noise_out_exactly_where_it_adds_some(
    noisy: bool, mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(public=MAP)
    map_ = experiment.public
    local = local_dataset.share(experiment, 0, mnist)
    labels = [mnist.train_y[index] for index in local.partition.train]
    exchange = PublicExchange.of(map_, local.partition, labels, mnist, CPU, noisy=noisy)
    privacy = None
    if noisy:
        task = public_task(map_, 10, Privacy(noise=2.0))
        assert task is not None
        privacy = ClientPrivacy(task, np.ones(10, np.bool_), DrawnUploads(), "")
    held_1J = torch.ones(1, 10).bool()
    own = PublicKnowledge(map_, local, held_1J, CPU, tmp_path, privacy=privacy)
    sent = exchange.uploads([0])
    known = Globals(sent.counts_KJ[0] > 0, sent.values_KJV[0])
    own.learn(known)
    found = load_classifier(tmp_path, 0)
    assert found is not None
    expected = exchange.classifiers(known)[0].weight_VJ
    assert torch.allclose(found[0].weight_VJ, expected.double(), atol=1e-5)


def test_images_that_are_none_of_the_maps_are_refused(mnist: Dataset, tmp_path: Path) -> None:
    experiment = tiny(public=MAP)
    arrays = some(mnist, [1, 2])
    colour = {name: np.repeat(arrays[name], 3, 1) for name in ("train_x", "test_x")}
    np.savez(tmp_path / "colour.npz", **(arrays | colour))
    with pytest.raises(UserError, match=r"3 channels, and on the federation's public map.* 1"):
        local_dataset.find(experiment, 0, 10, str(tmp_path / "colour.npz"))
    small = {name: arrays[name][:, :, :12, :12] for name in ("train_x", "test_x")}
    np.savez(tmp_path / "small.npz", **(arrays | small))
    local = local_dataset.find(experiment, 0, 10, str(tmp_path / "small.npz"))
    with pytest.raises(UserError, match="at least 14 pixels"):
        PublicKnowledge(experiment.public, local, torch.ones(1, 10).bool(), CPU, tmp_path)
    broken = {"train_x": np.full(arrays["train_x"].shape, np.nan)}
    np.savez(tmp_path / "nan.npz", **(arrays | broken))
    with pytest.raises(UserError, match="found values that are NaN"):
        local_dataset.find(experiment, 0, 10, str(tmp_path / "nan.npz"))


def test_without_a_sample_that_nobody_trains_on_there_is_no_common_test(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(public=MAP, checkpoint=1)
    local = local_dataset.share(experiment, 0, mnist)
    assert local.common is not None
    empty = replace(local.common, test=(np.zeros(0, np.int64),))
    own = Participant(experiment, 0, replace(local, common=empty), CPU, tmp_path)
    assert own.test(1, nothing(experiment, mnist)).accuracy_all is None
