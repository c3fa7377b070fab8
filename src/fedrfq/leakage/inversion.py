"""Images from uploads: what an attacker makes of a class's mean vector.

Two ways: pixels that are changed until their vector is the uploaded one, and a decoder, which has
learned from public images what vectors look like. Both need the map from images to vectors. A
public map is everybody's; a client's own model is not, so there the attacker has stolen it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedrfq.leakage.candidates import Candidates
from fedrfq.leakage.roc import Floats

# Images R × C × H × W of values 0 to 255 become vectors R × V: a row may have a model of its own.
ToVectors = Callable[[Tensor], Tensor]

_STEPS = 150
_RATE = 0.1
# How much neighbouring pixels are kept alike: real images are smooth.
_SMOOTH = 0.02
_HIDDEN = 256
_DECODER_STEPS = 250
_DECODER_RATE = 2e-3
_BATCH = 32
# Samples behind one mean while a decoder learns.
_MAX_MEAN = 25
# Two images that are alike to the last bit have no finite signal-to-noise ratio.
_LEAST_ERROR = 0.065  # 60 dB
_WINDOW = 7


def optimised(
    to_vectors: ToVectors, wanted_RV: Tensor, shape: tuple[int, ...], rng: Generator
) -> Tensor:
    """Return images whose vectors are near the wanted ones, by gradient descent on their pixels."""
    start = 0.1 * torch.randn((len(wanted_RV), *shape), generator=rng) - 1
    free = start.to(wanted_RV.device).requires_grad_()
    optimiser = torch.optim.Adam([free], _RATE)
    scale_R = wanted_RV.square().sum(1).clamp_min(1e-12)
    for _ in range(_STEPS):
        optimiser.zero_grad()
        images = torch.sigmoid(free)
        error_R = (to_vectors(255 * images) - wanted_RV).square().sum(1) / scale_R
        (error_R.sum() + _SMOOTH * _roughness(images)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return 255 * torch.sigmoid(free.detach())


def _roughness(images: Tensor) -> Tensor:
    """Return the mean difference of neighbouring pixels, summed over images (total variation)."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().mean((1, 2, 3))
    right = (images[..., 1:] - images[..., :-1]).abs().mean((1, 2, 3))
    return (down + right).sum()


@dataclass(frozen=True)
class Wanted:
    """Uploaded means, how many samples are behind each, and how much noise is in its values."""

    means_RV: Tensor
    counts_R: Tensor
    noise_R: Tensor  # standard deviations; 0: none

    @staticmethod
    def of(means_RV: Floats, asked: Sequence[Candidates], deviation: float = 0.0) -> Wanted:
        """Return means of candidates' samples; `deviation` is that of the noise in their sums."""
        counts_R = torch.tensor([one.members for one in asked])
        return Wanted(torch.from_numpy(means_RV).float(), counts_R, deviation / counts_R)


@dataclass(frozen=True)
class PublicImages:
    """Images that no client holds, sorted by class, with their vectors for each row."""

    images: Tensor  # P × C × H × W, 0 to 255
    vectors_RPV: Tensor
    first_J: Tensor  # where each class begins
    size_J: Tensor  # classes without images are not listed


def decoded(wanted: Wanted, public: PublicImages, rng: Generator) -> Tensor:
    """Return what decoders make of the wanted means, one decoder for each row.

    Each learns to turn the mean vector of as many images of a class as the row counts, with as much
    noise, into the mean of these images.
    """
    rows, _, values = public.vectors_RPV.shape
    noise_R11 = wanted.noise_R[:, None, None]
    centre_R1V = public.vectors_RPV.mean(1, keepdim=True)
    scale_R1V = (public.vectors_RPV.var(1, keepdim=True) + noise_R11**2).sqrt() + 1e-3
    pixels = public.images.flatten(1) / 255
    sizes = (values, _HIDDEN, pixels.shape[1])
    layers = [_linear(rows, i, o, rng) for i, o in pairwise(sizes)]
    leaves = [tensor.requires_grad_() for pair in layers for tensor in pair]
    optimiser = torch.optim.Adam(leaves, _DECODER_RATE)
    for _ in range(_DECODER_STEPS):
        optimiser.zero_grad()
        drawn_RBN, weight_RBN = _draw(wanted.counts_R, public, rng)
        input_RBV = _means(public.vectors_RPV, drawn_RBN, weight_RBN)
        input_RBV += noise_R11 * torch.randn(input_RBV.shape, generator=rng)
        target_RBX = _means(pixels.expand(rows, -1, -1), drawn_RBN, weight_RBN)
        made_RBX = _decode((input_RBV - centre_R1V) / scale_R1V, leaves)
        loss = (made_RBX - target_RBX).square().mean((1, 2)).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    with torch.no_grad():
        made_R1X = _decode((wanted.means_RV[:, None] - centre_R1V) / scale_R1V, leaves)
    return 255 * made_R1X.view(rows, *public.images.shape[1:])


def _linear(rows: int, inputs: int, outputs: int, rng: Generator) -> tuple[Tensor, Tensor]:
    weight = torch.randn((rows, inputs, outputs), generator=rng) / inputs**0.5
    return weight, torch.zeros(rows, 1, outputs)


def _decode(input_RBV: Tensor, leaves: list[Tensor]) -> Tensor:
    hidden_RBH = F.relu(torch.baddbmm(leaves[1], input_RBV, leaves[0]))
    return torch.sigmoid(torch.baddbmm(leaves[3], hidden_RBH, leaves[2]))


def _draw(counts_R: Tensor, public: PublicImages, rng: Generator) -> tuple[Tensor, Tensor]:
    """Draw batches of images of one class each, as many as each row counts."""
    counts_R = counts_R.clamp(1, _MAX_MEAN)
    shape = (len(counts_R), _BATCH, int(counts_R.max()))
    class_RB1 = torch.randint(len(public.first_J), (*shape[:2], 1), generator=rng)
    within = (torch.rand(shape, generator=rng) * public.size_J[class_RB1]).long()
    weight_RBN = (torch.arange(shape[2]) < counts_R[:, None, None]).expand(shape).float()
    return public.first_J[class_RB1] + within, weight_RBN / counts_R[:, None, None]


def _means(rows_RPX: Tensor, drawn_RBN: Tensor, weight_RBN: Tensor) -> Tensor:
    """Return the weighted sums of the drawn rows."""
    row_R11 = torch.arange(len(rows_RPX))[:, None, None]
    return torch.einsum("rbnx,rbn->rbx", rows_RPX[row_R11, drawn_RBN], weight_RBN)


def psnr(one: Tensor, other: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of images, in dB; 60 where they are the same."""
    error = (one - other).square().mean((-3, -2, -1)).clamp_min(_LEAST_ERROR)
    return 10 * torch.log10(255**2 / error)


def ssim(one: Tensor, other: Tensor) -> Tensor:
    """Return the structural similarity of images (Wang et al., 2004), by square windows."""
    side = min(_WINDOW, *one.shape[-2:])
    mean_a, mean_b = _blurred(one, side), _blurred(other, side)
    var_a = _blurred(one**2, side) - mean_a**2
    var_b = _blurred(other**2, side) - mean_b**2
    both = _blurred(one * other, side) - mean_a * mean_b
    c1 = (0.01 * 255) ** 2
    c2 = (0.03 * 255) ** 2
    similar = (2 * mean_a * mean_b + c1) * (2 * both + c2)
    return (similar / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))).mean((-3, -2, -1))


def _blurred(images: Tensor, side: int) -> Tensor:
    return F.avg_pool2d(images, side, 1)
