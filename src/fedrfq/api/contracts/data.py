"""The contracts of datasets and partitions: what they hold, who holds it, and clear refusals."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from fedrfq.api.contracts.contract import Broken, expect, read_only, same_bytes
from fedrfq.api.contracts.example_runs import many_samples
from fedrfq.data import DATASETS, load
from fedrfq.data.cached_dataset import path as cache_path
from fedrfq.data.partition import PARTITIONS, Partition
from fedrfq.errors import UserError
from fedrfq.experiment import from_table

_NONSENSE = b"this is no dataset\n"


# Datasets


def its_experiment_can_be_made(name: str) -> None:
    """An experiment that names the dataset can be made, with the defaults that it sets."""
    experiment = from_table({"data": {"name": name}})
    expect(experiment.data.name == name, f"data.name is {experiment.data.name}")


def it_says_what_it_is(name: str) -> None:
    """It has words on itself, at least two classes, and moments for each channel."""
    source = DATASETS[name]
    expect(source.description, "it has no description")
    expect(len(source.classes) >= 2, f"it has {len(source.classes)} classes: at least 2")
    expect(len(set(source.classes)) == len(source.classes), "two classes have the same name")
    expect(len(source.mean) == len(source.std) > 0, "mean and std must have a number per channel")
    expect(min(source.std) > 0, f"std is {min(source.std)}: it must be above 0")


def nonsense_is_refused_clearly(name: str) -> None:
    """A file that is not the dataset is refused in one line, never with another error."""
    source = DATASETS[name]
    with tempfile.TemporaryDirectory() as folder:
        nonsense = Path(folder) / "nonsense"
        nonsense.write_bytes(_NONSENSE)
        for path in (nonsense, Path(folder), Path(folder) / "missing"):
            try:
                source.from_file(path)
                raise Broken(f"from_file takes a {path.name} for the dataset: check what it reads")
            except (UserError, OSError, Broken) as error:
                if isinstance(error, Broken):
                    raise
            except Exception as error:
                raise Broken(
                    f"from_file({path.name!r}) fails with {type(error).__name__}: {error}; raise "
                    "a UserError that says what was found, what was expected, what to do"
                ) from error


def its_samples_are_as_they_should(name: str) -> str | None:
    """Images are N×C×H×W and finite, labels are of the classes, and a hash stands for them."""
    source = DATASETS[name]
    if not source.built_in and not cache_path(name).is_file():
        return f"not here: fedrfq data get {name}"
    dataset = load(name)
    for part, x, y in (
        ("train", dataset.train_x, dataset.train_y),
        ("test", dataset.test_x, dataset.test_y),
    ):
        expect(x.ndim == 4 and len(x) == len(y) > 0, f"{part} images have the shape {x.shape}")
        expect(np.isfinite(x).all(), f"a value of a {part} image is not finite")
        expect(y.min() >= 0 and y.max() < len(dataset.classes), f"a {part} label is no class")
    expect(len(dataset.mean) == dataset.shape[0], "mean must have a number for each channel")
    expect(dataset.classes == source.classes, "the classes are not those that the Source names")
    expect(dataset.sha256 == load(name).sha256, "loaded again, it is other data")
    return None


DATASET_CHECKS = (
    its_experiment_can_be_made,
    it_says_what_it_is,
    nonsense_is_refused_clearly,
    its_samples_are_as_they_should,
)


# Partitions

CLIENTS = 4


def _dealt(name: str, seed: int = 0) -> Partition:
    dataset = many_samples()
    read_only(dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)
    return PARTITIONS[name]().deal(dataset, CLIENTS, np.random.default_rng(seed))


def every_client_has_samples(name: str) -> None:
    """Each client has training and test samples of the dataset, sorted and each once."""
    dataset = many_samples()
    dealt = _dealt(name)
    expect(len(dealt.train) == CLIENTS, f"{len(dealt.train)} of {CLIENTS} clients have samples")
    tested = dataset.train_y if dealt.held_out else dataset.test_y
    for client in range(CLIENTS):
        for part, own, labels in (
            ("training", dealt.train[client], dataset.train_y),
            ("test", dealt.test[client], tested),
        ):
            who = f"client {client}'s {part} samples"
            expect(len(own), f"{who} are none")
            expect(own.dtype == np.int64, f"{who} are {own.dtype}, not int64")
            expect((np.diff(own) > 0).all(), f"{who} are not sorted, or one is there twice")
            expect(own[0] >= 0 and own[-1] < len(labels), f"{who} are not all of the dataset")


def only_held_classes_are_tested(name: str) -> None:
    """A client's test samples are of classes that it holds, and no sample is in both parts."""
    dataset = many_samples()
    dealt = _dealt(name)
    tested = dataset.train_y if dealt.held_out else dataset.test_y
    for client in range(CLIENTS):
        held = np.unique(dataset.train_y[dealt.train[client]])
        expect(np.array_equal(dealt.classes[client], held), f"client {client}'s classes are others")
        asked = np.unique(tested[dealt.test[client]])
        expect(np.isin(asked, held).all(), f"client {client} is tested on a class it does not hold")
        if dealt.held_out:
            both = np.intersect1d(dealt.train[client], dealt.test[client])
            expect(not len(both), f"client {client} trains on its test samples")


def the_seed_decides(name: str) -> None:
    """The same seed deals the same samples."""
    one, other = _dealt(name), _dealt(name)
    for client in range(CLIENTS):
        for part in ("train", "test"):
            mine, again = getattr(one, part)[client], getattr(other, part)[client]
            expect(same_bytes(mine, again), "the same seed deals otherwise: draw from rng alone")


def too_many_clients_are_refused_clearly(name: str) -> None:
    """Where there are more clients than samples, the refusal is one line, or all get some."""
    dataset = many_samples()
    partition = PARTITIONS[name]()
    many = len(dataset.train_y) + 1
    try:
        dealt = partition.deal(dataset, many, np.random.default_rng(0))
    except UserError:
        return
    except Exception as error:
        raise Broken(
            f"{many} clients fail with {type(error).__name__}: {error}; raise a UserError"
        ) from error
    expect(all(len(own) for own in dealt.train), f"of {many} clients one has no samples")


PARTITION_CHECKS = (
    every_client_has_samples,
    only_held_classes_are_tested,
    the_seed_decides,
    too_many_clients_are_refused_clearly,
)
