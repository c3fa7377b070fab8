"""Vectors on a public map: a slow pass is done once, and what is on the disk is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.learning.public import features
from fedrfq.learning.public.exchange import PublicExchange
from fedrfq.learning.public.features import vectors
from fedrfq.models.public_maps import RandomMap
from support.small import CPU

CHUNK = 20
SOME = np.arange(0, 100, 2)


@dataclass(frozen=True)
class SlowMap(RandomMap):
    """A random map that is kept on the disk, and says how many images it was given."""

    first: int = 4
    second: int = 2

    slow: ClassVar[bool] = True
    passes: ClassVar[list[int]] = []
    stops_after: ClassVar[int] = 1_000_000  # passes, and then it is interrupted

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        if len(self.passes) >= self.stops_after:
            raise KeyboardInterrupt
        self.passes.append(len(pixels_NCHW))
        return super().raw(pixels_NCHW)


@dataclass(frozen=True)
class FastMap(SlowMap):
    """The same, but kept in memory alone."""

    slow: ClassVar[bool] = False


class BrokenMap(RandomMap):
    """A map with broken weights."""

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        return super().raw(pixels_NCHW) * torch.nan


@dataclass(frozen=True)
class BesideMap(RandomMap):
    """A map on which an image's vector depends on those that are computed beside it."""

    first: int = 4
    second: int = 2

    def raw(self, pixels_NCHW: Tensor) -> Tensor:
        return super().raw(pixels_NCHW) + pixels_NCHW.float().mean()

    def scaled(self, raw_NW: Tensor) -> Tensor:
        return super().scaled(raw_NW) + raw_NW.mean()


@dataclass(frozen=True)
class SlowBesideMap(BesideMap):
    """The same, but kept on the disk."""

    slow: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path))
    monkeypatch.setattr(features, "_CHUNK", CHUNK)
    monkeypatch.setattr(SlowMap, "passes", [])


def slow(mnist: Dataset, index_N: Ints, part: str = "train") -> Tensor:
    return vectors(SlowMap(), mnist, part, index_N, CPU)


def fast(mnist: Dataset, index_N: Ints, part: str = "train") -> Tensor:
    """Return what nothing on the disk, or in memory, has touched."""
    features._memory.cache_clear()
    return vectors(RandomMap(first=4, second=2), mnist, part, index_N, CPU)


def test_every_image_passes_the_map_once(mnist: Dataset) -> None:
    assert torch.equal(slow(mnist, SOME), fast(mnist, SOME))
    assert SlowMap.passes == [20, 20, 10]
    # In another order, and with five images that are new.
    again = np.concatenate([SOME[::-1], np.arange(1, 11, 2)])
    assert torch.equal(slow(mnist, again), fast(mnist, again))
    assert SlowMap.passes == [20, 20, 10, 5]
    assert slow(mnist, SOME[:0]).shape == (0, 32)


def test_a_fast_map_is_kept_in_memory_alone(mnist: Dataset, tmp_path: Path) -> None:
    features._memory.cache_clear()
    for index_N in (SOME, SOME[::-1], SOME[3:9]):
        found = vectors(FastMap(), mnist, "train", index_N, CPU)
        assert torch.equal(found, slow(mnist, index_N))
    # Once from memory, and once for the comparison.
    assert sum(SlowMap.passes) == 2 * len(SOME)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("map_", [BesideMap(), SlowBesideMap()])
def test_an_image_alone_has_the_same_vector_whatever_others_there_are(
    mnist: Dataset, map_: BesideMap
) -> None:
    """One sample more then changes a sum by its own vector, and by nothing else."""
    features._memory.cache_clear()

    def alone(index_N: Ints, name: str) -> Tensor:
        """Return what a client with noise takes, of a dataset of which nothing is kept yet."""
        dataset = replace(mnist, sha256=name)
        everything = Partition((index_N,), (), ())
        labels = [mnist.train_y[index_N]]
        return PublicExchange.of(map_, everything, labels, dataset, CPU, noisy=True).vectors[0]

    together = vectors(map_, mnist, "train", SOME, CPU)
    fewer = alone(SOME[1:], "fewer")
    assert not torch.equal(together[1:], fewer)
    assert torch.equal(alone(SOME, "all")[1:], fewer)
    # What was computed together is not taken for it.
    assert torch.equal(alone(SOME, mnist.sha256)[1:], fewer)


def test_parts_and_maps_are_kept_apart(mnist: Dataset) -> None:
    train = slow(mnist, SOME)
    test = slow(mnist, SOME, "test")
    other = vectors(SlowMap(filter_seed=1), mnist, "train", SOME, CPU)
    assert torch.equal(test, fast(mnist, SOME, "test"))
    assert not torch.equal(train, test)
    assert not torch.equal(train, other)
    assert torch.equal(slow(mnist, SOME), train)
    assert sum(SlowMap.passes) == 3 * len(SOME)


def test_a_map_that_is_scaled_in_another_way_passes_no_image_again(mnist: Dataset) -> None:
    """Norm and projection come after the map."""
    slow(mnist, SOME)
    projected = vectors(SlowMap(projection=8, norm=2.0), mnist, "train", SOME, CPU)
    assert projected.shape == (len(SOME), 8)
    assert sum(SlowMap.passes) == len(SOME)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 100])


def _overwrite(path: Path) -> None:
    path.write_bytes(b"not what it was")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _change_header(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        assert content.count(old) == 1
        assert len(new) == len(old)
        path.write_bytes(content.replace(old, new))

    return change


HEADERS = [
    _change_header(b"(4000,", b"(True,"),
    _change_header(b"32), }", b"32,   "),
    _change_header(b"32), }" + 20 * b" ", b"32" + 20 * b"9" + b"), }"),
]


@pytest.mark.parametrize("damage", HEADERS)
def test_a_damaged_header_is_written_again(
    mnist: Dataset, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    slow(mnist, SOME)
    (path,) = tmp_path.glob("features-*.npy")
    damage(path)
    assert torch.equal(slow(mnist, SOME), fast(mnist, SOME))


def test_a_row_that_is_no_longer_numbers_is_computed_again(mnist: Dataset, tmp_path: Path) -> None:
    slow(mnist, SOME)
    (path,) = tmp_path.glob("features-*.npy")
    np.lib.format.open_memmap(path, mode="r+")[SOME[3], 1] = np.nan
    assert torch.equal(slow(mnist, SOME), fast(mnist, SOME))
    assert SlowMap.passes == [20, 20, 10, 1]


@pytest.mark.parametrize("damage", [_cut, _overwrite, _empty, Path.unlink])
@pytest.mark.parametrize("suffix", ["npy", "done"])
def test_a_damaged_file_is_computed_again(
    mnist: Dataset, tmp_path: Path, suffix: str, damage: Callable[[Path], None]
) -> None:
    slow(mnist, SOME)
    (path,) = tmp_path.glob(f"features-*.{suffix}")
    damage(path)
    assert torch.equal(slow(mnist, SOME), fast(mnist, SOME))
    assert sum(SlowMap.passes) == 2 * len(SOME)


def test_an_interrupt_loses_only_the_images_in_work(
    mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(SlowMap, "stops_after", 2)
        with pytest.raises(KeyboardInterrupt):
            slow(mnist, SOME)
    assert torch.equal(slow(mnist, SOME), fast(mnist, SOME))
    assert SlowMap.passes == [20, 20, 10]


def test_values_that_are_not_numbers_are_refused(mnist: Dataset) -> None:
    with pytest.raises(UserError, match=r"mnist5k: the public map makes .* not numbers"):
        vectors(BrokenMap(), mnist, "train", SOME, CPU)
