"""The vectors of a dataset's images on a public map, computed once.

A pass of a large map over many images takes minutes. Its result is kept in the cache folder, row by
row: what one run has computed, the next one finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track
from torch import Tensor

from fedrfq.data import Dataset, cache
from fedrfq.data.partition import Ints, Partition
from fedrfq.errors import UserError
from fedrfq.files.atomic import write_atomically
from fedrfq.models.public_maps import PublicMap

# Images between two writes to the disk: what an interrupt may lose.
_CHUNK = 256


def vectors(
    map_: PublicMap,
    dataset: Dataset,
    part: str,
    index_N: Ints,
    device: torch.device,
    *,
    alone: bool = False,
) -> Tensor:
    """Return the vectors of some of a dataset's images; `part` is "train" or "test".

    With `alone`, each image is computed by itself, which takes twice as long. Otherwise the last
    bits of its vector depend on the images beside it, which noise for privacy does not reckon with.
    """
    if map_.slow:
        raw_NW = _kept(map_, dataset, part, index_N, device, alone)
    else:
        raw_NW = _remembered(map_, dataset, part, index_N, alone)
    if not torch.isfinite(raw_NW).all():
        raise UserError(
            f"{dataset.name}: the public map makes of an image values that are not numbers; "
            "check the map's weights with `fedrfq data get`"
        )
    return _of_each(map_.scaled, raw_NW, alone).to(device)


def _of_each(function: Callable[[Tensor], Tensor], rows: Tensor, alone: bool) -> Tensor:
    if not alone or not len(rows):
        return function(rows)
    return torch.cat([function(row) for row in torch.split(rows, 1)])


def vectors_of_tests(
    map_: PublicMap, dataset: Dataset, partition: Partition, device: torch.device
) -> Tensor:
    """Return the vectors of the samples that a partition's first client is tested on."""
    part = "test"
    if partition.held_out:
        # Validation samples are training samples that were held back.
        part = "train"
    return vectors(map_, dataset, part, partition.test[0], device)


def _remembered(map_: PublicMap, dataset: Dataset, part: str, index_N: Ints, alone: bool) -> Tensor:
    """Return vectors of a fast map: several runs of one process share images."""
    images = getattr(dataset, f"{part}_x")
    about = _about(map_, dataset, part, alone)
    rows_NW, done_N = _memory(about, len(images), map_.width())
    missing = np.setdiff1d(index_N, np.flatnonzero(done_N))
    if len(missing):
        # On the CPU everywhere, so that every machine has nearly the same vectors.
        pixels = torch.from_numpy(images[missing])
        rows_NW[missing] = _of_each(map_.raw, pixels, alone).numpy()
        done_N[missing] = True
    return torch.from_numpy(rows_NW[index_N])


def _about(map_: PublicMap, dataset: Dataset, part: str, alone: bool) -> str:
    """Return the name of the vectors of a dataset's part on a map."""
    return f"{map_.fingerprint()} {dataset.sha256} {part}" + " alone" * alone


# `about` names a map and images; an array of zeros takes no memory until it is written to.
@lru_cache(4)
def _memory(about: str, images: int, width: int) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    return np.zeros((images, width), np.float32), np.zeros(images, np.bool_)


def _kept(
    map_: PublicMap,
    dataset: Dataset,
    part: str,
    index_N: Ints,
    device: torch.device,
    alone: bool,
) -> Tensor:
    """Return vectors from the disk, after computing those that are not there yet."""
    images = getattr(dataset, f"{part}_x")
    about = _about(map_, dataset, part, alone)
    name = f"features-{hashlib.sha256(about.encode()).hexdigest()[:32]}"
    stem = cache.ensure_folder() / name
    rows_NW = _rows(stem, len(images), map_.width())
    done_N = _done(stem, len(images))
    # A row that a disk has damaged is computed anew; where the map is to blame, it stays as it is.
    done_N[index_N] &= np.isfinite(rows_NW[index_N]).all(1)
    missing = np.setdiff1d(index_N, np.flatnonzero(done_N))
    for chunk in _progress(missing):
        pixels = torch.from_numpy(images[chunk]).to(device)
        rows_NW[chunk] = _of_each(map_.raw, pixels, alone).cpu().numpy()
        rows_NW.flush()
        done_N[chunk] = True
        # Only now: a row that is marked as done is on the disk.
        write_atomically(stem.with_suffix(".done"), np.packbits(done_N).tobytes())
    return torch.from_numpy(rows_NW[index_N])


def _progress(missing: Ints) -> Iterator[Ints]:
    """Return the missing images in chunks, with a progress bar where there are many."""
    chunks = [missing[i : i + _CHUNK] for i in range(0, len(missing), _CHUNK)]
    console = Console(stderr=True)
    yield from track(chunks, "public map", console=console, disable=len(chunks) < 2, transient=True)


def _rows(stem: Path, images: int, width: int) -> np.memmap[Any, Any]:
    """Return the file of all rows, as an array on the disk; rows not yet computed are 0."""
    path = stem.with_suffix(".npy")
    with cache.reporting_disk_errors(path):
        if path.is_file():
            rows = _opened(path)
            if rows is not None and rows.shape == (images, width) and rows.dtype == np.float32:
                return rows
        # Damaged, or not there: begin anew.
        stem.with_suffix(".done").unlink(missing_ok=True)
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(images, width))


def _opened(path: Path) -> np.memmap[Any, Any] | None:
    try:
        # First for reading alone: writing, numpy fills a file that was cut short with zeros.
        np.lib.format.open_memmap(path, mode="r")
        return np.lib.format.open_memmap(path, mode="r+")
    except (ValueError, OSError, OverflowError, TypeError, TokenError):
        # All of these come of a damaged header.
        return None


def _done(stem: Path, images: int) -> NDArray[np.bool_]:
    """Return which rows are computed."""
    path = stem.with_suffix(".done")
    done = np.zeros(images, np.bool_)
    if path.is_file():
        bits = np.frombuffer(path.read_bytes(), np.uint8)
        if len(bits) == -(-images // 8):
            done = np.unpackbits(bits, count=images).astype(np.bool_)
    return done
