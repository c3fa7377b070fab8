"""How a dataset's samples are dealt to clients: which training and test samples, of which classes, each one holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from fedrfq.data.dataset import Dataset
from fedrfq.errors import UserError
from fedrfq.files.options import option

Ints = NDArray[np.int64]

HELD_OUT = 0.2  # of a writer's samples, where the dataset has no test samples of that writer


@dataclass(frozen=True, eq=False)
class Partition:
    """Per client, sorted indices of its training and test samples, and the sorted classes among the training samples.

    Every test sample is of a class its client holds. `test` indexes the dataset's test arrays; with `held_out`, it
    indexes the training arrays, and no client trains on its test samples.
    """

    train: tuple[Ints, ...]
    test: tuple[Ints, ...]
    classes: tuple[Ints, ...]
    held_out: bool = False

    def validated(self, share: float, y: Ints, rng: Generator) -> Partition:
        """Tested, instead of on test samples, on a share of each client's training samples of each class, held back."""
        back = [
            np.concatenate([_some(own[y[own] == j], share, rng) for j in np.unique(y[own])])
            for own in self.train
        ]
        train = tuple(np.setdiff1d(own, held) for own, held in zip(self.train, back, strict=True))
        for k, (own, held) in enumerate(zip(train, back, strict=True)):
            if not len(held) or set(y[held]) - set(y[own]):
                raise UserError(
                    f"validation = {share} leaves client {k} nothing to train on or to test: change it"
                )
        return Partition(train, tuple(np.sort(held) for held in back), self.classes, held_out=True)

    @property
    def realised(self) -> dict[str, float | bool]:
        """Mean and standard deviation of classes per client, fewest and most training samples, any of them shared."""
        held = [len(classes) for classes in self.classes]
        sizes = [len(train) for train in self.train]
        return {
            "classes_mean": float(np.mean(held)),
            "classes_std": float(np.std(held)),
            "samples_min": min(sizes),
            "samples_max": max(sizes),
            "shared": len(np.unique(np.concatenate(self.train))) < sum(sizes),
        }


def _some(samples: Ints, share: float, rng: Generator) -> Ints:
    return rng.permutation(samples)[: round(share * len(samples))]


@dataclass(frozen=True)
class Classes:
    """The paper's: each client holds about `ways` classes, and `shots` training samples of each.

    `draw` "uniform" takes FedProto's range, max(2, ways − spread) to min(J, ways + spread); "normal" rounds a normal
    number of mean `ways` and standard deviation `spread`, clipped to 1 to J. Training samples are disjoint across
    clients unless `share`; test samples may always be shared.
    """

    ways: int = option(3, "Classes that a client holds on average", "1 to the dataset's classes")
    spread: int = option(
        2,
        "How far a client's number of classes may be from ways: half-range or deviation, by draw",
        "0 or more",
    )
    shots: int = option(100, "Training samples of each class that a client holds", "1 or more")
    test_shots: int = option(40, "Test samples of each class that a client holds", "1 or more")
    draw: str = option(
        "uniform", "Distribution of the number of classes a client holds", "uniform or normal"
    )
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        _check_positive(self, "ways", "shots", "test_shots")
        if self.spread < 0:
            raise UserError(f"partition.spread = {self.spread} must not be negative")
        if self.draw not in ("uniform", "normal"):
            raise UserError(f"partition.draw = {self.draw!r} is unknown; choose uniform or normal")

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Each client's samples; equal generators give equal partitions."""
        total = len(dataset.classes)
        if self.ways > total:
            raise UserError(
                f"partition.ways = {self.ways} exceeds the {total} classes of {dataset.name}; lower it"
            )
        _check_shots(dataset, dataset.train_y, "training", "shots", self.shots)
        _check_shots(dataset, dataset.test_y, "test", "test_shots", self.test_shots)
        return _deal(
            dataset,
            clients,
            rng,
            self.share,
            count=lambda left: self.shots * self._held(total, rng),
            count_test=lambda counts, left: self.test_shots * (counts > 0),
        )

    def _held(self, total: int, rng: Generator) -> Ints:
        """1 for each of the `total` classes that a client holds, 0 for the others."""
        held = np.zeros(total, np.int64)
        held[rng.choice(total, self._number(total, rng), replace=False)] = 1
        return held

    def _number(self, total: int, rng: Generator) -> int:
        if self.draw == "normal":
            return int(np.clip(np.rint(rng.normal(self.ways, self.spread)), 1, total))
        high = min(total, self.ways + self.spread)
        low = min(high, max(2, self.ways - self.spread))
        return int(rng.integers(low, high, endpoint=True))


@dataclass(frozen=True)
class Dirichlet:
    """Each client draws class proportions from Dir(`alpha`), then `samples` training samples by them.

    Where a class is used up, the others' proportions are scaled up (as Hsu et al. 2019 do). Test samples follow the
    proportions of the client's training samples.
    """

    alpha: float = option(
        0.5,
        "Concentration of the Dirichlet distribution: the smaller, the more clients differ",
        "above 0",
    )
    samples: int = option(300, "Training samples of each client", "1 or more")
    test_samples: int = option(100, "Test samples of each client", "1 or more")
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        _check_positive(self, "samples", "test_samples")
        if not 0 < self.alpha < np.inf:
            raise UserError(f"partition.alpha = {self.alpha} must be positive and finite")

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Each client's samples; equal generators give equal partitions."""
        _check_samples(dataset, self.samples)
        alphas = np.full(len(dataset.classes), self.alpha)
        return _deal(
            dataset,
            clients,
            rng,
            self.share,
            count=lambda left: _apportion(self.samples, rng.dirichlet(alphas), left, rng),
            count_test=lambda counts, left: _apportion(
                self.test_samples, counts / counts.sum(), left, rng
            ),
        )


@dataclass(frozen=True)
class Iid:
    """Each client holds `samples` training samples, drawn uniformly, and test samples drawn so from its classes."""

    samples: int = option(300, "Training samples of each client", "1 or more")
    test_samples: int = option(100, "Test samples of each client", "1 or more")
    share: bool = option(False, "Whether several clients may hold the same training sample")

    def __post_init__(self) -> None:
        _check_positive(self, "samples", "test_samples")

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Each client's samples; equal generators give equal partitions."""
        _check_samples(dataset, self.samples)
        return _deal(
            dataset,
            clients,
            rng,
            self.share,
            count=lambda left: _uniform(self.samples, left, rng),
            count_test=lambda counts, left: _uniform(self.test_samples, left, rng),
        )


@dataclass(frozen=True)
class Groups:
    """Each client is `groups_per_client` writers, with all their samples.

    It is tested on the same writers' test samples; where any client has none, every client instead holds back a fifth
    of its own samples, drawn at random.
    """

    groups_per_client: int = option(1, "Writers whose samples make up one client", "1 or more")

    def __post_init__(self) -> None:
        _check_positive(self, "groups_per_client")

    def deal(self, dataset: Dataset, clients: int, rng: Generator) -> Partition:
        """Each client's samples; equal generators give equal partitions."""
        _check_clients(clients)
        train, test = _piles_by_writer(dataset)
        most = len(train) // self.groups_per_client
        if clients > most:
            raise UserError(
                f"{dataset.name} has writers for {most} such clients, not {clients}; "
                "lower clients or partition.groups_per_client"
            )
        chosen = rng.permutation(len(train))[: clients * self.groups_per_client].reshape(
            clients, -1
        )
        own = _gather(train, chosen)
        own_test = _gather(test, chosen)
        kept = [
            _of_classes(dataset.test_y, t, dataset.train_y[o])
            for o, t in zip(own, own_test, strict=True)
        ]
        if all(len(indices) for indices in kept):
            return _partition(dataset, own, kept)
        pairs = [_hold_out(dataset.train_y, indices, rng) for indices in own]
        return _partition(dataset, [a for a, _ in pairs], [b for _, b in pairs], held_out=True)


Kind = Classes | Dirichlet | Groups | Iid

PARTITIONS: dict[str, type[Kind]] = {
    "classes": Classes,
    "dirichlet": Dirichlet,
    "groups": Groups,
    "iid": Iid,
}


class _Exhausted(Exception):
    """No samples are left for one more client (or, of test samples, for this one)."""


class _Stock:
    """Samples of every class in random order, handed out once each; or, if shared, afresh at every request."""

    def __init__(self, labels: Ints, classes: int, share: bool, rng: Generator) -> None:
        self.piles = [rng.permutation(pile) for pile in _piles(labels, classes)]
        self.left = np.array([len(pile) for pile in self.piles])
        self.share = share
        self.rng = rng

    def take(self, counts: Ints) -> Ints:
        """As many samples of each class as `counts` says; _Exhausted where fewer are left."""
        if (counts > self.left).any():
            raise _Exhausted
        held = np.flatnonzero(counts)
        return np.sort(np.concatenate([self._take(label, counts[label]) for label in held]))

    def _take(self, label: np.int64, count: int) -> Ints:
        if self.share:
            return self.rng.choice(self.piles[label], count, replace=False, shuffle=False)
        self.left[label] -= count
        return self.piles[label][self.left[label] : self.left[label] + count]


def _deal(
    dataset: Dataset,
    clients: int,
    rng: Generator,
    share: bool,
    count: Callable[[Ints], Ints],
    count_test: Callable[[Ints, Ints], Ints],
) -> Partition:
    """Deals client after client, so that fewer clients get what the first of more clients would.

    `count` says how many training samples of each class the next client takes of those left; `count_test` the same of
    test samples, from the client's training counts and the test samples there are of the classes it holds.
    """
    _check_clients(clients)
    stock = _Stock(dataset.train_y, len(dataset.classes), share, rng)
    train = []
    counts = []
    for client in range(clients):
        try:
            counts.append(count(stock.left))
            train.append(stock.take(counts[-1]))
        except _Exhausted:
            raise UserError(
                f"{dataset.name} has samples for {client} of these {clients} clients without repetition; "
                f"lower clients to {client} or set partition.share = true"
            ) from None
    return _partition(dataset, train, _deal_test(dataset, counts, count_test, rng))


def _deal_test(
    dataset: Dataset, counts: list[Ints], count_test: Callable[[Ints, Ints], Ints], rng: Generator
) -> list[Ints]:
    stock = _Stock(dataset.test_y, len(dataset.classes), True, rng)
    there = [stock.left * (own > 0) for own in counts]
    try:
        return [stock.take(count_test(own, left)) for own, left in zip(counts, there, strict=True)]
    except _Exhausted:
        fewest = min(int(left.sum()) for left in there)
        raise UserError(
            f"a client's classes have only {fewest} test samples in {dataset.name}; "
            f"set partition.test_samples to at most {fewest}"
        ) from None


def _partition(
    dataset: Dataset, train: Sequence[Ints], test: Sequence[Ints], held_out: bool = False
) -> Partition:
    classes = tuple(np.unique(dataset.train_y[indices]) for indices in train)
    return Partition(tuple(train), tuple(test), classes, held_out)


def _uniform(total: int, left: Ints, rng: Generator) -> Ints:
    """Class counts of `total` samples drawn from `left` without repetition."""
    if total > left.sum():
        raise _Exhausted
    return rng.multivariate_hypergeometric(left, total)


def _apportion(total: int, proportions: NDArray[np.float64], left: Ints, rng: Generator) -> Ints:
    """Class counts of `total` samples drawn by `proportions`, rescaled whenever a class of `left` is used up."""
    if total > left.sum():
        raise _Exhausted
    counts = np.zeros_like(left)
    while (missing := total - counts.sum()) > 0:
        room = left - counts
        weights = np.where(room > 0, proportions, 0.0)
        if weights.sum() == 0:  # the classes left have proportions too small for a float
            weights = room.astype(np.float64)
        counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), room)
    return counts


def _piles(labels: Ints, number: int) -> list[Ints]:
    """The indices of each label from 0 to `number` − 1."""
    ends = np.cumsum(np.bincount(labels, minlength=number))
    return np.split(np.argsort(labels, kind="stable"), ends[:-1])


def _piles_by_writer(dataset: Dataset) -> tuple[list[Ints], list[Ints]]:
    """Per writer of the training samples, the indices of its training and of its test samples."""
    if dataset.train_groups is None or dataset.test_groups is None:
        raise UserError(
            f'{dataset.name} does not say who wrote what, as partition "groups" needs; '
            "take a dataset in LEAF's format or an .npz file with train_groups and test_groups"
        )
    writers, train = np.unique(dataset.train_groups, return_inverse=True)
    known = np.flatnonzero(np.isin(dataset.test_groups, writers))
    test = np.searchsorted(writers, dataset.test_groups[known])
    return _piles(train, len(writers)), [known[pile] for pile in _piles(test, len(writers))]


def _gather(piles: list[Ints], chosen: Ints) -> list[Ints]:
    return [np.sort(np.concatenate([piles[writer] for writer in row])) for row in chosen]


def _of_classes(labels: Ints, indices: Ints, held: Ints) -> Ints:
    return indices[np.isin(labels[indices], held)]


def _hold_out(labels: Ints, indices: Ints, rng: Generator) -> tuple[Ints, Ints]:
    """Splits one client's samples into training and test; every class keeps a training sample."""
    shuffled = rng.permutation(indices)
    _, first = np.unique(labels[shuffled], return_index=True)
    free = np.delete(shuffled, first)
    if not len(free):
        raise UserError(
            "a client has no two samples of a class to test on; raise partition.groups_per_client"
        )
    test = np.sort(free[: max(1, round(HELD_OUT * len(indices)))])
    return np.setdiff1d(indices, test), test


def _check_positive(options: Kind, *fields: str) -> None:
    for field in fields:
        if getattr(options, field) < 1:
            raise UserError(f"partition.{field} = {getattr(options, field)} must be at least 1")


def _check_clients(clients: int) -> None:
    if clients < 1:
        raise UserError(f"clients = {clients} must be at least 1")


def _check_shots(dataset: Dataset, labels: Ints, part: str, field: str, shots: int) -> None:
    """Every class has at least `shots` samples, whichever classes a seed draws."""
    counts = np.bincount(labels, minlength=len(dataset.classes))
    rarest = int(counts.argmin())
    if counts[rarest] < shots:
        raise UserError(
            f"class {dataset.classes[rarest]!r} of {dataset.name} has {counts[rarest]} {part} samples, "
            f"fewer than partition.{field} = {shots}; set it to at most {counts[rarest]}"
        )


def _check_samples(dataset: Dataset, samples: int) -> None:
    found = len(dataset.train_y)
    if samples > found:
        raise UserError(
            f"{dataset.name} has {found} training samples; set partition.samples to at most {found}"
        )
