"""example-dataset: noisy stripes at five angles, made on the spot; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.progress import Progress

import fedrfq
from fedrfq.data import Source, array_file
from fedrfq.data.content import Content, checked
from fedrfq.data.origins import Origin

CLASSES = ("0°", "36°", "72°", "108°", "144°")
SIDE = 16


def made() -> Content:
    """Return 150 training and 50 test images of each class, always the same."""
    rng = np.random.default_rng(0)
    train_y = np.repeat(np.arange(len(CLASSES)), 150)
    test_y = np.repeat(np.arange(len(CLASSES)), 50)
    content = Content(stripes(train_y, rng), train_y, stripes(test_y, rng), test_y, CLASSES)
    # Checks shapes, types and labels, with errors that say what is wrong.
    return checked(content, "example-dataset")


def stripes(labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:  # type: ignore[type-arg]
    """Return an image for each label: N × channels × height × width, whole numbers 0 to 255."""
    down, right = np.mgrid[:SIDE, :SIDE]
    angle_N = np.pi * labels / len(CLASSES)
    along = np.cos(angle_N)[:, None, None] * right + np.sin(angle_N)[:, None, None] * down
    phase = rng.uniform(0, 6, (len(labels), 1, 1))
    noise = rng.normal(0, 20, (len(labels), SIDE, SIDE))
    images = 128 + 80 * np.sin(along + phase) + noise
    return images.clip(0, 255).astype(np.uint8)[:, None]


def fetch(work: Path, bar: Progress) -> Content:
    """Return the data from their place; a real dataset downloads into the folder `work`."""
    return made()


def from_file(path: Path) -> Content:
    """Return the data from what `fedrfq data get NAME --from PATH` names: here an .npz file."""
    return array_file.read(path)


fedrfq.register(
    "dataset",
    "example-dataset",
    Source(
        name="example-dataset",
        description="noisy stripes at five angles, 16×16 grey",
        classes=CLASSES,
        images=1000,
        shots=20,  # defaults of experiments on this data
        test_shots=10,
        model="cnn",
        mean=(0.5,),  # of each channel, of values from 0 to 1
        std=(0.25,),
        places=(Origin("made here", fetch),),
        from_file=from_file,
        from_what="an .npz file",
        sha256=None,  # noted when the data are fetched; pin it here once they are final
        built_in=True,  # needs no network, so it is made on first use
    ),
)
