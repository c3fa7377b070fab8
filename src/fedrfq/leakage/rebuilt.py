"""Pictures made from a run's uploads, and how near they come to the client's own images."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from fedrfq.data import Dataset
from fedrfq.data.partition import Ints, Partition
from fedrfq.leakage.candidates import Candidates
from fedrfq.leakage.inversion import (
    PublicImages,
    ToVectors,
    Wanted,
    decoded,
    optimised,
    psnr,
    ssim,
)
from fedrfq.leakage.record import InversionRow

# Public images that a decoder learns from.
_MAX_PUBLIC = 4000
# The ways in which a picture came about, in the order of the columns of leakage.png.
NEAREST = "the client's own image that is nearest to the optimised one"
OWN_MEAN = "the mean of the client's own images"
AVERAGE = "baseline: the average public image of the class"
OPTIMISED = "optimised pixels"
DECODED = "decoder"
COLUMNS = (NEAREST, OWN_MEAN, AVERAGE, OPTIMISED, DECODED)
# Each pixel of an image is drawn as a square of so many.
_ZOOM = 3
_GAP = 2


@dataclass(frozen=True)
class PublicPool:
    """Images that no client holds, sorted by class."""

    images: Tensor
    labels_P: Ints

    @staticmethod
    def of(dataset: Dataset, partition: Partition, rng: np.random.Generator) -> PublicPool:
        """Return training images that nobody holds, and test images, which nobody trains on."""
        nobodys = np.setdiff1d(np.arange(len(dataset.train_y)), np.concatenate(partition.train))
        images = np.concatenate([dataset.train_x[nobodys], dataset.test_x])
        labels = np.concatenate([dataset.train_y[nobodys], dataset.test_y])
        chosen = rng.permutation(len(labels))[:_MAX_PUBLIC]
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
        return PublicPool(torch.from_numpy(images[chosen]).float(), labels[chosen])

    def average(self, label: int) -> Tensor:
        """Return the mean image of a class, or of all where nobody else has any of it."""
        of_class = self.images[torch.from_numpy(self.labels_P == label)]
        if not len(of_class):
            of_class = self.images
        return of_class.mean(0)

    def with_vectors(self, vectors_RPV: Tensor) -> PublicImages:
        """Return the images with their vectors."""
        _, first_J, size_J = np.unique(self.labels_P, return_index=True, return_counts=True)
        return PublicImages(
            self.images, vectors_RPV, torch.from_numpy(first_J), torch.from_numpy(size_J)
        )


@dataclass(frozen=True)
class Rebuilt:
    """Columns of pictures, with a row for each upload that was inverted."""

    rows: list[InversionRow]
    columns: list[Tensor]


def rebuilt(
    name: str,
    wanted: Wanted,
    asked: Sequence[Candidates],
    to_vectors: ToVectors,
    public: PublicImages,
    pool: PublicPool,
    dataset: Dataset,
    rng: Generator,
) -> Rebuilt:
    """Invert the wanted means, each a client's upload of a class, in both ways."""
    own = [torch.from_numpy(dataset.train_x[one.index_C[: one.members]]).float() for one in asked]
    made = {
        AVERAGE: torch.stack([pool.average(one.label) for one in asked]),
        OPTIMISED: optimised(to_vectors, wanted.means_RV, dataset.shape, rng),
        DECODED: decoded(wanted, public, rng),
    }
    nearest = [_nearest(image, images) for image, images in zip(made[OPTIMISED], own, strict=True)]
    columns = [torch.stack(nearest), torch.stack([images.mean(0) for images in own])]
    rows = [_row(name, way, images, own) for way, images in made.items()]
    return Rebuilt(rows, [*columns, *made.values()])


def _nearest(image: Tensor, own: Tensor) -> Tensor:
    return own[psnr(image[None], own).argmax()]


def _row(name: str, way: str, made: Tensor, own: list[Tensor]) -> InversionRow:
    """Return how near the images come, as means over all of them."""
    means = torch.stack([images.mean(0) for images in own])
    pairs = list(zip(made, own, strict=True))
    return InversionRow(
        upload=name,
        way=way,
        images=len(made),
        psnr_mean=float(psnr(made, means).mean()),
        psnr_nearest=float(
            torch.stack([psnr(one[None], many).max() for one, many in pairs]).mean()
        ),
        ssim_mean=float(ssim(made, means).mean()),
        ssim_nearest=float(torch.stack([_most_alike(one, many) for one, many in pairs]).mean()),
    )


def _most_alike(one: Tensor, many: Tensor) -> Tensor:
    return ssim(one[None].expand_as(many), many).max()


def drawn(parts: Sequence[Rebuilt]) -> bytes:
    """Return all pictures as one PNG file: a row for each upload, in the order of COLUMNS."""
    from PIL import Image

    rows = [
        np.concatenate([_framed(column[r]) for column in part.columns], 1)
        for part in parts
        for r in range(len(part.columns[0]))
    ]
    if not rows:
        return b""
    file = io.BytesIO()
    Image.fromarray(np.concatenate(rows)).save(file, "PNG", optimize=True)
    return file.getvalue()


def _framed(image: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """Return an image as colour pixels, enlarged, with a white frame."""
    pixels_HWC = image.clamp(0, 255).round().byte().permute(1, 2, 0).numpy()
    if pixels_HWC.shape[2] != 3:
        pixels_HWC = np.repeat(pixels_HWC[..., :1], 3, 2)
    large = pixels_HWC.repeat(_ZOOM, 0).repeat(_ZOOM, 1)
    return np.pad(large, ((_GAP, _GAP), (_GAP, _GAP), (0, 0)), constant_values=255)
