"""Fashion-MNIST by name: 70,000 pictures of clothes, in the format of MNIST.

Xiao, Rasul and Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking Machine Learning
Algorithms", 2017. `fedrfq data get fashion-mnist --plugin fashion_mnist.py` downloads it, and with
`--from FOLDER` it takes the four files from a folder.
"""

from __future__ import annotations

from pathlib import Path

from rich.progress import Progress

import fedrfq
from fedrfq.data import Source, idx
from fedrfq.data.content import Content, checked
from fedrfq.data.fetch import download
from fedrfq.data.origins import Origin

CLASSES = (
    "T-shirt",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Boot",
)
# The files, and the published digests of their gzipped form.
FILES = {
    "train-images-idx3-ubyte": "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "md5:25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "md5:bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "md5:bb300cfdad3c16e7a12a480ee83cd310",
}
HOST = "fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MAX_BYTES = 1 << 26


def from_file(folder: Path) -> Content:
    """Return the dataset from a folder with the four IDX files, gzipped or not."""
    train_x, train_y, test_x, test_y = FILES
    content = Content(
        train_x=idx.images(idx.read(folder, train_x), train_x),
        train_y=idx.labels(idx.read(folder, train_y), train_y),
        test_x=idx.images(idx.read(folder, test_x), test_x),
        test_y=idx.labels(idx.read(folder, test_y), test_y),
        classes=CLASSES,
    )
    return checked(content, "fashion-mnist")


def fetch(work: Path, bar: Progress) -> Content:
    """Download the four files into a work folder and read them."""
    for stem, digest in FILES.items():
        download(f"http://{HOST}/{stem}.gz", work / f"{stem}.gz", MAX_BYTES, digest, bar)
    return from_file(work)


fedrfq.register(
    "dataset",
    "fashion-mnist",
    Source(
        name="fashion-mnist",
        description="pictures of clothes, 28×28 grey",
        classes=CLASSES,
        images=70_000,
        shots=100,
        test_shots=40,
        model="cnn",
        mean=(0.2860,),
        std=(0.3530,),
        places=(Origin(HOST, fetch),),
        from_file=from_file,
        from_what="a folder with the four IDX files, gzipped or not",
        sha256=None,  # noted when the data are fetched
    ),
)
