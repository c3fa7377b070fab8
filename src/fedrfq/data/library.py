"""Loading, getting and describing datasets, by name or by path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from fedrfq.data import array_file, cached_dataset, image_folder
from fedrfq.data.cache import folder
from fedrfq.data.catalogue import DATASETS
from fedrfq.data.content import Content, sha256
from fedrfq.data.dataset import Dataset
from fedrfq.data.origins import first
from fedrfq.data.source import Source
from fedrfq.errors import UserError


def load(name_or_path: str) -> Dataset:
    """The dataset of that name from the cache, or the user's own at that path (.npz or folder of class folders).

    A known one is checked against its hash each time; one that needs no network is made on first use.
    """
    source = DATASETS.get(name_or_path)
    if source is None:
        return _own(name_or_path)
    if source.built_in and not cached_dataset.path(source.name).is_file():
        get(source.name, progress=False)
    return _dataset(source.name, cached_dataset.read(source), source.mean, source.std)


def at_path(name: str) -> Path | None:
    """The user's own data of that name, where there are any that may be looked at. UserError of what can be no path."""
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # a part too long, nobody's home, a zero in it
        why = getattr(error, "strerror", None) or error
        what = f"{name!r:.60} ({why})"
        raise UserError(
            f"dataset: expected a name or a path, found {what}; check data.name or the path"
        ) from error
    return path


def _own(name_or_path: str) -> Dataset:
    path = at_path(name_or_path)
    if path is None:
        known = ", ".join(DATASETS)
        raise UserError(
            f"dataset: expected one of {known} or a path, found {name_or_path!r:.200}, which is not there"
        )
    if path.is_dir():
        content = image_folder.read(path)
    else:
        content = array_file.read(path)
    mean, std = moments(content.train_x)
    return _dataset(path.stem, content, mean, std)


def moments(images: NDArray[np.uint8]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of values scaled to [0, 1]; 1 where all values are the same."""
    values = np.arange(256) / 255
    counts = [
        np.bincount(images[:, channel].ravel(), minlength=256) for channel in range(images.shape[1])
    ]
    means = [float(np.average(values, weights=count)) for count in counts]
    spreads = [
        float(np.average((values - m) ** 2, weights=c)) ** 0.5
        for m, c in zip(means, counts, strict=True)
    ]
    return tuple(means), tuple(spread or 1.0 for spread in spreads)


def _dataset(
    name: str, content: Content, mean: tuple[float, ...], std: tuple[float, ...]
) -> Dataset:
    return Dataset(name=name, **vars(content), mean=mean, std=std, sha256=sha256(content))


def get(name: str, source: Path | None = None, progress: bool = True) -> Path:
    """Fetch the dataset (or convert it from `source`), check it and store it; says so if it is there already."""
    known = DATASETS.get(name)
    if known is None:
        raise UserError(
            f"data get: expected one of {', '.join(DATASETS)}, found {name!r}; name one of these"
        )
    if source is not None and at_path(str(source)) is None:
        raise UserError(
            f"{source}: expected {known.from_what}, found nothing there; check the path"
        )
    if (source is None or known.sha256) and _valid(known):
        Console(stderr=True, quiet=not progress, markup=False, highlight=False).print(
            f"{name} is there and valid: {cached_dataset.path(name)}", soft_wrap=True
        )
        return cached_dataset.path(name)
    if source:
        content, origin = _from_file(known, source)
    else:
        content, origin = _from_places(known, progress)
    return cached_dataset.write(name, content, origin)


def _valid(source: Source) -> bool:
    try:
        cached_dataset.read(source)
    except UserError:
        return False
    return True


def _from_file(known: Source, path: Path) -> tuple[Content, str]:
    content = known.from_file(path.expanduser())
    if known.sha256:
        cached_dataset.check(
            content, known.sha256, str(path), f"use the original files ({known.from_what})"
        )
    return content, path.name


def _from_places(known: Source, progress: bool) -> tuple[Content, str]:
    def check(content: Content) -> None:
        if known.sha256:
            cached_dataset.check(content, known.sha256, known.name, "not the original")

    if known.sha256:
        files = f"{known.name}.npz"
    else:
        files = f"{known.name}.npz and {known.name}.json"
    hint = f"Run: fedrfq data get {known.name} --from FILE ({known.from_what}), or copy {files} into {folder()}"
    try:
        return first(known.places, check, hint, progress)
    except UserError as error:
        raise UserError(f"{known.name}: {error}") from error


def info(name: str) -> dict[str, Any]:
    """What is known of a dataset by name or path; counts, shape and size only if it is in the cache (or a path)."""
    known = DATASETS.get(name)
    if known and not cached_dataset.path(name).is_file():
        return {"name": name, "cached": False, "classes": known.classes, "sha256": known.sha256}
    data = load(name)
    if known:
        at = cached_dataset.path(name)
    else:
        at = Path(name).expanduser()
    return {
        "name": data.name,
        "cached": known is not None,
        "path": str(at),
        "bytes": at.stat().st_size if at.is_file() else None,
        "classes": data.classes,
        "shape": data.shape,
        "train": _counts(data.train_y, data.classes),
        "test": _counts(data.test_y, data.classes),
        "writers": None if data.train_groups is None else len(np.unique(data.train_groups)),
        "sha256": data.sha256,
        "source": cached_dataset.note(name).get("source") if known else str(at),
    }


def _counts(labels: NDArray[np.int64], classes: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}
