"""Load, get and describe datasets, by name or by path."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrfq.data import array_file, cached_dataset, image_folder
from fedrfq.data.cache import folder, tell_cached
from fedrfq.data.catalogue import DATASETS
from fedrfq.data.content import Content, sha256
from fedrfq.data.contract import CONTRACT, Contract
from fedrfq.data.dataset import GIVEN, Dataset, is_given, is_on_hub
from fedrfq.data.image_form import AS_FOUND, ImageForm
from fedrfq.data.origins import first
from fedrfq.data.source import Source
from fedrfq.data.split import Split, by_content
from fedrfq.data.survey import Survey
from fedrfq.errors import UserError, did_you_mean
from fedrfq.plugins.known import owner_of

# Characters of a name for which a known one is suggested.
_MAX_NAME = 100


def load(
    name_or_path: str,
    form: ImageForm = AS_FOUND,
    partial: bool = False,
    split: Split = by_content,
) -> Dataset:
    """Return a known dataset from the cache, or the user's own at a path, in this form.

    At a path there is an .npz or a folder of images, which is split if it is not yet; with
    `partial`, of a client that may lack classes. A known dataset is checked against its hash each
    time; one that needs no network is created on first use.
    """
    if is_given(name_or_path):
        raise UserError(
            f"the data '{name_or_path.removeprefix(GIVEN)}' were given to fedrfq.run as Python "
            "objects and cannot be loaded by name: go on in Python with "
            "fedrfq.resume(PATH, data=…) and the same data; commands need data in a file, as .npz"
        )
    if is_on_hub(name_or_path):
        from fedrfq.data.huggingface import load_from_hub

        return load_from_hub(name_or_path)
    source = DATASETS.get(name_or_path)
    if source is None:
        return _own(name_or_path, form, partial, split)
    _check_as_found(name_or_path, form)
    if source.built_in and cached_dataset.is_outdated(source):
        get(source.name, progress=False)
    content = cached_dataset.read(source)
    return _dataset(source.name, content, source.mean, source.std, source.name)


def _check_as_found(name: str, form: ImageForm) -> None:
    if form != AS_FOUND:
        raise UserError(
            f"{name} has a form of its own: leave shape, window, resize and recolour out, which are"
            " for your own data"
        )


def is_there(name_or_path: str) -> bool:
    """Return whether a dataset of this name is known, or something is at this path."""
    if name_or_path in DATASETS or is_on_hub(name_or_path):
        return True
    return at_path(name_or_path) is not None


def at_path(name: str) -> Path | None:
    """Return the path of the user's own data, or None where there is nothing readable.

    Raises UserError for a name that cannot be a path at all.
    """
    try:
        path = Path(name).expanduser()
        path.stat()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    # A part too long, the home of an unknown user, a null byte.
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(
            f"dataset: expected a name or a path, found {name!r:.60} ({why}); "
            "check data.name or the path"
        ) from error
    return path


def load_agreed(name: str, contract: Contract, split: Split = by_content) -> Dataset:
    """Return a client's own samples at a path, with a federation's classes and form of images."""
    if name != CONTRACT and at_path(name) is None:
        raise UserError(
            f"--data: expected the path of your samples, found nothing at {name!r:.200}; check it"
        )
    path = _existing(name)
    if path.is_dir():
        # Names first: thousands of pictures may have to be read before a wrong one is found.
        contract.places(image_folder.class_names(path, partial=True), str(path))
    found = _content(path, contract.form, True, split)
    content = mapped(found, contract, str(path))
    _check_contrast(content, contract, str(path))
    channels = content.train_x.shape[1]
    mean = (contract.mean,) * channels
    std = (contract.std,) * channels
    return _dataset(path.stem, content, mean, std, str(path.resolve()))


def _check_contrast(content: Content, contract: Contract, what: str) -> None:
    """Refuse pictures of which the window has left nothing, such as floats to 1 in 0:4095."""
    darkest = content.train_x.min()
    if contract.form.window is not None and darkest == content.train_x.max():
        window = contract.form.settings()["window"]
        raise UserError(
            f"{what}: expected values inside the federation's window {window}, found none, so that"
            f" every pixel would be {darkest} of 255; scale them to the window, or"
            " found the federation with another"
        )


def mapped(content: Content, contract: Contract, what: str) -> Content:
    """Return a client's samples with the federation's classes, matched by name."""
    place_J = np.array(contract.places(content.classes, what))
    return replace(
        content,
        classes=contract.classes,
        train_y=place_J[content.train_y],
        test_y=place_J[content.test_y],
    )


def _own(name_or_path: str, form: ImageForm, partial: bool, split: Split) -> Dataset:
    path = _existing(name_or_path)
    # Converted images cannot be loaded again by the path alone.
    origin = str(path.resolve()) if form == AS_FOUND else ""
    return of_content(path.stem, _content(path, form, partial, split), origin)


def _content(path: Path, form: ImageForm, partial: bool, split: Split) -> Content:
    if path.is_dir():
        return image_folder.read(path, form, partial, split)
    return array_file.read(path, form=form, partial=partial, split=split)


def survey(name: str, form: ImageForm) -> Survey:
    """Return what the pictures at a path are like, before they are given this form."""
    path = _existing(name)
    if path.is_dir():
        return image_folder.survey(path, form, partial=True)
    return array_file.survey(path, form)


def _existing(name_or_path: str) -> Path:
    if name_or_path == CONTRACT:
        raise UserError(
            f'dataset: data.name = "{CONTRACT}" says that each client of a federation brings its'
            " own samples; give the path of some"
        )
    path = at_path(name_or_path)
    if path is None:
        known = ", ".join(DATASETS)
        raise UserError(
            f"dataset: expected one of {known} or the path of your own data, "
            f"found {name_or_path!r:.200}, which does not exist"
            f"{did_you_mean(name_or_path[:_MAX_NAME], DATASETS)}; check data.name or the path, "
            "or give the plugin that has it (--plugin FILE)"
        )
    return path


def of_content(name: str, content: Content, origin: str) -> Dataset:
    """Return a dataset of the user's own; `origin` is the path it was read from, if any."""
    # Of the training images only: test images must not influence training.
    mean, std = moments(content.train_x)
    return _dataset(name, content, mean, std, origin)


def moments(images: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, of values scaled to [0, 1].

    A channel whose values are all the same has deviation 1, because images are divided by it.
    """
    if images.dtype != np.uint8:
        means_C = images.mean((0, 2, 3), dtype=np.float64) / 255
        deviations_C = images.std((0, 2, 3), dtype=np.float64) / 255
        return tuple(means_C.tolist()), tuple(std or 1.0 for std in deviations_C.tolist())
    values = np.arange(256) / 255
    means = []
    deviations = []
    for channel in range(images.shape[1]):
        # A histogram instead of a float copy of all images.
        counts = np.bincount(images[:, channel].ravel(), minlength=256)
        mean = float(np.average(values, weights=counts))
        variance = float(np.average((values - mean) ** 2, weights=counts))
        means.append(mean)
        deviations.append(variance**0.5 or 1.0)
    return tuple(means), tuple(deviations)


def _dataset(
    name: str, content: Content, mean: tuple[float, ...], std: tuple[float, ...], origin: str
) -> Dataset:
    arrays = vars(content)
    digest = sha256(content)
    return Dataset(name=name, **arrays, mean=mean, std=std, sha256=digest, origin=origin)


def get(name: str, source: Path | None = None, progress: bool = True) -> Path:
    """Fetch the dataset (or convert it from `source`), check it, store it and return its path.

    A valid copy in the cache is kept, and a line says so.
    """
    known = DATASETS.get(name)
    if known is None:
        raise UserError(
            f"data get: expected one of {', '.join(DATASETS)}, found {name!r}"
            f"{did_you_mean(name, DATASETS)}; name one of these"
        )
    if source is not None and at_path(str(source)) is None:
        raise UserError(
            f"{source}: expected {known.from_what}, found nothing there; check the path"
        )
    # Without a pinned hash, a given file may well be meant to replace what is in the cache.
    if (source is None or known.sha256) and _is_cached(known):
        tell_cached(name, cached_dataset.path(name), progress)
        return cached_dataset.path(name)
    if source:
        content, origin = _from_file(known, source)
        return cached_dataset.write(name, content, origin)
    content, origin = _from_places(known, progress)
    plugin = owner_of(known)
    return cached_dataset.write(name, content, origin, plugin.sha256 if plugin else "")


def _is_cached(source: Source) -> bool:
    if cached_dataset.is_outdated(source):
        return False
    try:
        cached_dataset.read(source)
    except UserError:
        return False
    return True


def _from_file(known: Source, path: Path) -> tuple[Content, str]:
    content = known.from_file(path.expanduser())
    if known.sha256:
        remedy = f"use the original files ({known.from_what})"
        cached_dataset.check(content, known.sha256, str(path), remedy)
    return content, path.name


def _from_places(known: Source, progress: bool) -> tuple[Content, str]:
    def check(content: Content) -> None:
        if known.sha256:
            cached_dataset.check(content, known.sha256, known.name, "this is not the original")

    files = f"{known.name}.npz"
    if not known.sha256:
        files = f"{known.name}.npz and {known.name}.json"
    hint = (
        f"Run: fedrfq data get {known.name} --from FILE ({known.from_what}), "
        f"or copy {files} into {folder()}"
    )
    try:
        return first(known.places, check, hint, progress)
    except UserError as error:
        raise UserError(f"{known.name}: {error}") from error


def info(name: str, form: ImageForm = AS_FOUND) -> dict[str, Any]:
    """Return what is known about a dataset by name, or at a path in this form.

    Counts, shape and size are included only if it is in the cache (or at a path).
    """
    known = DATASETS.get(name)
    if known:
        _check_as_found(name, form)
    if known and not cached_dataset.path(name).is_file():
        return {"name": name, "cached": False, "classes": known.classes, "sha256": known.sha256}
    data = load(name, form)
    if known:
        path = cached_dataset.path(name)
        origin = cached_dataset.note(name).get("source")
    else:
        path = Path(name).expanduser()
        origin = str(path)
    size = path.stat().st_size if path.is_file() else None
    writers = None
    if data.train_groups is not None:
        writers = len(np.unique(data.train_groups))
    return {
        "name": data.name,
        "cached": known is not None,
        "path": str(path),
        "bytes": size,
        "classes": data.classes,
        "shape": data.shape,
        "train": _counts(data.train_y, data.classes),
        "test": _counts(data.test_y, data.classes),
        "writers": writers,
        "sha256": data.sha256,
        "source": origin,
    }


def _counts(labels: NDArray[np.int64], classes: tuple[str, ...]) -> dict[str, int]:
    counts = np.bincount(labels, minlength=len(classes))
    return {name: int(count) for name, count in zip(classes, counts, strict=True)}
