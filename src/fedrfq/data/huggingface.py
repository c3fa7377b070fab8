"""Datasets of Hugging Face: objects of the `datasets` package, and `hf:owner/name` from the hub.

From the hub only Parquet files are read, which hold data and nothing else: no script of a
repository is run, nothing is unpickled, and a folder of the same name beside the user is never
looked at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fedrfq.data.dataset import HUB, Dataset
from fedrfq.data.given_arrays import Array, from_arrays
from fedrfq.data.image_decoding import values_of
from fedrfq.data.image_form import MAX_BYTES, MAX_PIXELS
from fedrfq.errors import UserError

_EXTRA = "pip install 'fedrfq[huggingface]'"
# A repository on the hub, and perhaps one of its configurations. Nothing that could be a path.
_NAME = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<config>[\w-][\w.-]*))?")
_PARQUET = "refs/convert/parquet"
_TEST_SPLITS = ("test", "validation", "valid", "val")
_LABELS = ("label", "labels", "y", "class")


def load_from_hub(name: str) -> Dataset:
    """Return the dataset of a name such as hf:ylecun/mnist, from the hub or the hub's cache."""
    repo, config = _parsed(name)
    files = _downloaded(repo, config)
    return from_huggingface(_read(files), name=repo.split("/")[1], origin=name)


def _parsed(name: str) -> tuple[str, str]:
    """Return the repository and the configuration, which is empty for the first one."""
    text = name.removeprefix(HUB)
    found = _NAME.fullmatch(text)
    if found is None or not text.isascii() or ".." in text:
        raise UserError(
            f"data.name: expected hf:OWNER/NAME or hf:OWNER/NAME@CONFIG, found {name!r:.100}; "
            "for files of your own give their path, without hf:"
        )
    return found["repo"], found["config"] or ""


def _downloaded(repo: str, config: str) -> dict[str, list[str]]:
    """Return the local copies of a repository's Parquet files, by split."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise UserError(f"data of the hub need Hugging Face's packages: {_EXTRA}") from error
    where = {"repo_type": "dataset", "revision": _PARQUET}
    try:
        chosen = _chosen(repo, config, _listed(repo, where))
        return {
            split: [hf_hub_download(repo, file, **where) for file in files]
            for split, files in chosen.items()
        }
    except UserError:
        raise
    # Without a network, or without such a repository, it raises errors of several libraries.
    except Exception as error:
        why = (str(error).splitlines() or [repr(error)])[0]
        raise UserError(
            f"hf:{repo}: cannot get it from the hub ({why[:200]}); check the name and the network, "
            "or load it elsewhere and use Dataset.from_huggingface"
        ) from error


def _listed(repo: str, where: Mapping[str, str]) -> list[str]:
    """Return a repository's Parquet files; without a network, those that were downloaded before."""
    from huggingface_hub import list_repo_files

    try:
        listed = list_repo_files(repo, **where)
    except Exception:
        listed = _downloaded_before(repo, where)
        if not listed:
            raise
    return [file for file in listed if file.endswith(".parquet")]


def _downloaded_before(repo: str, where: Mapping[str, str]) -> list[str]:
    from huggingface_hub import snapshot_download

    with suppress(Exception):
        folder = Path(snapshot_download(repo, local_files_only=True, **where))
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")]
    return []


def _chosen(repo: str, config: str, files: Sequence[str]) -> dict[str, list[str]]:
    """Return the files CONFIG/SPLIT/N.parquet of one configuration, by split."""
    parts = [file.split("/") for file in sorted(files) if file.count("/") == 2]
    configs = list(dict.fromkeys(part[0] for part in parts))
    wanted = config or (configs[0] if configs else "")
    if wanted not in configs:
        raise UserError(
            f"hf:{repo}: there is no configuration '{wanted}' in Parquet; "
            f"there are: {', '.join(configs) or 'none'}"
        )
    splits: dict[str, list[str]] = {}
    for part in parts:
        if part[0] == wanted:
            splits.setdefault(part[1], []).append("/".join(part))
    return splits


def _read(files: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return the splits in Parquet files as objects of `datasets`."""
    datasets = _package()
    return {split: datasets.Dataset.from_parquet(paths) for split, paths in files.items()}


def _package() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise UserError(f"Hugging Face datasets need their package: {_EXTRA}") from error
    return datasets


def from_huggingface(
    dataset: Any,
    image: str = "",
    label: str = "",
    groups: str = "",
    columns: Sequence[str] = (),
    name: str = "huggingface",
    origin: str = "",
) -> Dataset:
    """Return the dataset of a `Dataset` or `DatasetDict`; see `Dataset.from_huggingface`."""
    train, test = _splits(dataset, name)
    label = label or _label_column(train, name)
    if isinstance(columns, str) or label in columns or (columns and image):
        raise UserError(
            f"{name}: columns are a list of those with numbers, without the label '{label}', and "
            f"instead of image; found columns={columns!r:.100}, image={image!r:.100}"
        )
    if not columns:
        image = image or _image_column(train, name)

    def samples(split: Any) -> Array:
        return _rows(split, columns, name) if columns else _images(split, image, name)

    pair = None
    owners: tuple[Any, Any] = (_column(train, groups, name) if groups else None, None)
    if test is not None:
        pair = (samples(test), _column(test, label, name))
        owners = (owners[0], _column(test, groups, name) if groups else None)
    y = _column(train, label, name)
    classes = getattr(train.features[label], "names", None)
    return from_arrays(samples(train), y, pair, classes, owners, name, origin)


def _splits(dataset: Any, name: str) -> tuple[Any, Any]:
    """Return the training and the test split; None for a test split that is not there."""
    if not isinstance(dataset, Mapping):
        if not hasattr(dataset, "features"):
            raise UserError(
                f"{name}: expected a Dataset or DatasetDict of Hugging Face's datasets, "
                f"found {type(dataset).__name__}: use datasets.load_dataset(…)"
            )
        return dataset, None
    if "train" not in dataset:
        raise UserError(
            f"{name}: expected a split 'train', found {', '.join(map(str, dataset))}; "
            "give one split, such as dataset['a']"
        )
    tests = [dataset[split] for split in _TEST_SPLITS if split in dataset]
    return dataset["train"], tests[0] if tests else None


def _image_column(split: Any, name: str) -> str:
    """Return the first column of images."""
    for column, feature in split.features.items():
        if type(feature).__name__ in ("Image", "Array2D", "Array3D"):
            return str(column)
    raise UserError(
        f"{name}: none of the columns {', '.join(split.features)} has images; "
        "name it: image='…', or those of numbers: columns=['…', '…']"
    )


def _label_column(split: Any, name: str) -> str:
    """Return the first column of class labels, or one with a usual name."""
    for column, feature in split.features.items():
        if type(feature).__name__ == "ClassLabel":
            return str(column)
    for column in _LABELS:
        if column in split.features:
            return column
    raise UserError(
        f"{name}: it is not clear which of the columns {', '.join(split.features)} has the labels; "
        "name it: from_huggingface(dataset, label='…')"
    )


def _column(split: Any, column: str, name: str) -> list[Any]:
    if column not in split.features:
        raise UserError(
            f"{name}: there is no column '{column}'; there are: {', '.join(split.features)}"
        )
    return list(split[column])


def _images(split: Any, column: str, name: str) -> Array:
    """Return the images of a split as one array; pictures become grey or RGB."""
    if column not in split.features:
        _column(split, column, name)
    images: list[Array] = []
    size = 0
    for i, row in enumerate(split.select_columns([column])):
        images.append(_pixels(row[column], f"{name}: image {i}"))
        size += images[-1].nbytes
        if images[-1].size > 3 * MAX_PIXELS or size > MAX_BYTES:
            raise UserError(f"{name}: more than {MAX_BYTES} bytes of images; use fewer or smaller")
    if len({image.shape for image in images}) > 1:
        raise UserError(f"{name}: the images are of several sizes or colours; make them alike")
    return np.stack(images)


def _pixels(image: Any, what: str) -> Array:
    # A picture, which is read as one in a file is; other columns hold arrays.
    if hasattr(image, "getbands"):
        return values_of(image, what)
    return np.asarray(image)


def _rows(split: Any, columns: Sequence[str], name: str) -> Array:
    """Return a row of numbers for each sample, from several columns."""
    found = [np.asarray(_column(split, column, name)) for column in columns]
    for column, values in zip(columns, found, strict=True):
        if values.ndim != 1 or values.dtype.kind not in "uifb":
            raise UserError(
                f"{name}: expected a number for each sample in the column '{column}', found "
                f"{values.dtype} {values.shape}: leave the column out, or fill in what is missing"
            )
    return np.stack(found, 1)
