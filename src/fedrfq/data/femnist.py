"""FEMNIST: handwritten digits and letters in 62 classes.

The data come from EMNIST's byclass files, or from LEAF's JSON, which also names the writers.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedrfq.data import array_file, idx, leaf
from fedrfq.data.archives import gunzip, read_zip
from fedrfq.data.content import Content, checked
from fedrfq.data.fetch import download
from fedrfq.data.origins import Origin
from fedrfq.data.source import Source
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

CLASSES = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
PARTS = ("train-images-idx3", "train-labels-idx1", "test-images-idx3", "test-labels-idx1")
STEMS = tuple(f"emnist-byclass-{part}-ubyte" for part in PARTS)
URL = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
DIGEST = "md5:58c8d27c78d21e728a6bc7b3cc06412e"
# The archive has 562 MB.
LIMIT = 1 << 30
WHAT = (
    "an .npz, EMNIST's gzip.zip, a folder with its four byclass files, "
    "or LEAF's JSON (file or folder)"
)


def from_file(path: Path) -> Content:
    """Return the dataset from any of the forms it comes in; the name tells which."""
    read = _reader(path)
    content = read(path)
    shape = content.train_x.shape[1:]
    if content.classes != CLASSES or shape != (1, 28, 28):
        raise UserError(
            f"{path}: expected the 62 classes 0-9, A-Z, a-z of grey 28×28 images, "
            f"found {len(content.classes)} classes of shape {shape}; "
            "to use other data, give its path as data.name"
        )
    return content


def _reader(path: Path) -> Callable[[Path], Content]:
    readers = {".npz": _arrays, ".zip": _zip, ".json": _leaf}
    if path.is_dir():
        if (path / "train").is_dir():
            return _leaf
        return _folder
    if path.is_file() and path.suffix in readers:
        return readers[path.suffix]
    if path.is_file() and path.name.removesuffix(".gz") in STEMS:
        # One of the four files was named: the others lie beside it.
        return lambda one_of_four: _folder(one_of_four.parent)
    raise UserError(f"{path}: expected {WHAT}, found none of these; check the path")


def _arrays(path: Path) -> Content:
    return array_file.read(path, CLASSES)


def _leaf(path: Path) -> Content:
    return leaf.read(path, CLASSES)


def _folder(path: Path) -> Content:
    return _emnist(lambda stem: idx.read(path, stem))


def _zip(path: Path) -> Content:
    packed = read_zip(path, {f"gzip/{stem}.gz": LIMIT for stem in STEMS})
    return _emnist(lambda stem: gunzip(packed[f"gzip/{stem}.gz"], idx.LIMIT, stem))


def _emnist(read: Callable[[str], bytes]) -> Content:
    train_x, train_y, test_x, test_y = STEMS
    # EMNIST stores its images transposed.
    content = Content(
        train_x=idx.images(read(train_x), train_x).swapaxes(2, 3),
        train_y=idx.labels(read(train_y), train_y),
        test_x=idx.images(read(test_x), test_x).swapaxes(2, 3),
        test_y=idx.labels(read(test_y), test_y),
        classes=CLASSES,
    )
    return checked(content, "femnist")


def _official(work: Path, bar: Progress) -> Content:
    download(URL, work / "gzip.zip", LIMIT, DIGEST, bar)
    return _zip(work / "gzip.zip")


FEMNIST = Source(
    name="femnist",
    description="handwritten digits and letters (EMNIST byclass), 28×28 grey",
    classes=CLASSES,
    images=814_255,
    shots=100,
    test_shots=15,
    model="cnn",
    protocol={"rounds": 120, "partition": {"spread": 1}},
    mean=(0.1307,),
    std=(0.3081,),
    places=(Origin("biometrics.nist.gov", _official),),
    from_file=from_file,
    from_what=WHAT,
    # Not pinned: its forms (EMNIST, LEAF, arrays) differ in content.
    sha256=None,
)
