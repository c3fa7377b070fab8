"""The layers of many models at once: every tensor has a row for each client (K).

One call computes a layer for all clients. There are two layouts, one for each kind of machine, with
the same functions. A model is written once over them and, for K = 1, is the ordinary model.

- `Grouped` (CPU): a client is a group of channels, B × K·C × H × W, channels last in memory, where
  oneDNN's grouped convolutions and the pooling are faster than on K·C planes
  (`bench/engine_layouts.py`).
- `Batched` (CUDA): K × C × B × H × W, and a convolution is im2col and one batched matrix product
  instead of cuDNN's grouped convolutions.

Shapes are named in the suffix: K clients, B samples, C channels, I/O inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

Params = dict[str, Tensor]
# The ends of the names of state that is not trained.
BUFFERS = ("running_mean", "running_var")
# As in torch.nn.BatchNorm2d.
_EPS = 1e-5
_MOMENTUM = 0.1


@dataclass(frozen=True)
class TrainingStep:
    """What a training step needs besides its samples."""

    weight_KB: Tensor  # 1 for a real sample, 0 for padding
    keep_KBU: Tensor | None  # the factors of dropout; None for a model without it


@dataclass(frozen=True)
class Stage:
    """A stage of a convolutional network: convolution, dropout by channel, max-pooling, ReLU.

    The convolution moves by one pixel and pads nothing; windows of the pooling do not overlap.
    """

    w_KOCkk: Tensor
    b_KO: Tensor
    pool: int  # the side of a window
    keep_KBO: Tensor | None = None  # the factors of dropout; None without it


class Layout(Protocol):
    """How activations of K clients lie in memory, and the operations that depend on it."""

    def enter(self, x_KBCHW: Tensor) -> Tensor:
        """Bring images into the layout."""

    def conv(
        self, h: Tensor, w_KOIHW: Tensor, b_KO: Tensor | None, stride: int, padding: int
    ) -> Tensor:
        """Convolve each client's activations with its own filters."""

    def max_pool(self, h: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        """Take the maximum of each window."""

    def channels(self, v_KC: Tensor) -> Tensor:
        """Shape one value per client and channel so that it broadcasts over activations."""

    def samples(self, v_KBC: Tensor) -> Tensor:
        """Shape one value per client, sample and channel so that it broadcasts over activations."""

    def sum(self, h: Tensor, clients: int) -> Tensor:
        """Sum over samples and pixels: K × C."""

    def leave(self, h: Tensor, clients: int) -> Tensor:
        """Flatten each sample's activations: K × B × features."""

    def linear(self, x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
        """Apply each client's linear layer to its samples."""

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        """Apply stages to images one after the other, and flatten: K × B × features."""


class Grouped:
    """Activations are B × K·C × H × W, channels last."""

    def enter(self, x_KBCHW: Tensor) -> Tensor:
        k, b, c, h, w = x_KBCHW.shape
        x_BHWN = x_KBCHW.permute(1, 3, 4, 0, 2).reshape(b, h, w, k * c).contiguous()
        return x_BHWN.permute(0, 3, 1, 2)

    def conv(
        self, h: Tensor, w_KOIHW: Tensor, b_KO: Tensor | None, stride: int, padding: int
    ) -> Tensor:
        bias = None
        if b_KO is not None:
            bias = b_KO.flatten()
        return F.conv2d(h, w_KOIHW.flatten(0, 1), bias, stride, padding, groups=w_KOIHW.shape[0])

    def max_pool(self, h: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        return F.max_pool2d(h, kernel, stride, padding)

    def channels(self, v_KC: Tensor) -> Tensor:
        return v_KC.reshape(1, -1, 1, 1)

    def samples(self, v_KBC: Tensor) -> Tensor:
        return v_KBC.transpose(0, 1).flatten(1)[..., None, None]

    def sum(self, h: Tensor, clients: int) -> Tensor:
        return h.sum((0, 2, 3)).view(clients, -1)

    def leave(self, h: Tensor, clients: int) -> Tensor:
        return h.reshape(h.shape[0], clients, -1).transpose(0, 1)

    def linear(self, x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
        return linear(x_KBI, w_KOI, b_KO)

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        return layer_by_layer(self, x_KBCHW, chain)


class Batched:
    """Activations are K × C × B × H × W."""

    def enter(self, x_KBCHW: Tensor) -> Tensor:
        return x_KBCHW.transpose(1, 2).contiguous()

    def conv(
        self, h: Tensor, w_KOIHW: Tensor, b_KO: Tensor | None, stride: int, padding: int
    ) -> Tensor:
        out: Tensor = _Convolution.apply(h, w_KOIHW, stride, padding)  # type: ignore[no-untyped-call]
        if b_KO is None:
            return out
        return out + self.channels(b_KO)

    def max_pool(self, h: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        pooled = F.max_pool2d(h.flatten(0, 1), kernel, stride, padding)
        return pooled.view(*h.shape[:2], *pooled.shape[1:])

    def channels(self, v_KC: Tensor) -> Tensor:
        return v_KC[:, :, None, None, None]

    def samples(self, v_KBC: Tensor) -> Tensor:
        return v_KBC.transpose(1, 2)[..., None, None]

    def sum(self, h: Tensor, clients: int) -> Tensor:
        return h.sum((2, 3, 4))

    def leave(self, h: Tensor, clients: int) -> Tensor:
        return h.transpose(1, 2).flatten(2)

    def linear(self, x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
        return linear(x_KBI, w_KOI, b_KO)

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        return layer_by_layer(self, x_KBCHW, chain)


class _Convolution(torch.autograd.Function):
    """Convolution of K × C × B × H × W by K sets of filters.

    It is one batched product of the filters with the columns of windows (im2col).
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, w_KOIHW: Tensor, stride: int, padding: int) -> Tensor:
        kernel = w_KOIHW.shape[-1]
        clients, _, batch = h.shape[:3]
        padded = h
        if padding:
            padded = F.pad(h, (padding,) * 4)
        windows = padded.unfold(3, kernel, stride).unfold(4, kernel, stride)  # K C B H' W' k k
        rows, cols = windows.shape[3:5]
        columns = windows.permute(0, 1, 5, 6, 2, 3, 4).reshape(clients, -1, batch * rows * cols)
        ctx.save_for_backward(columns, w_KOIHW)
        ctx.geometry = (h.shape, stride, padding)
        out = torch.bmm(w_KOIHW.flatten(2), columns)
        return out.view(*w_KOIHW.shape[:2], batch, rows, cols)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        columns, w_KOIHW = ctx.saved_tensors
        grad = grad.flatten(2)
        grad_w = torch.bmm(grad, columns.mT).view_as(w_KOIHW)
        grad_h = None
        if ctx.needs_input_grad[0]:  # not for the first layer, whose input is the images
            grad_h = _fold(torch.bmm(w_KOIHW.flatten(2).mT, grad), w_KOIHW, *ctx.geometry)
        return grad_h, grad_w, None, None


def _fold(columns: Tensor, w_KOIHW: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Add each window's gradients back where the window stood."""
    clients, channels, batch, height, width = shape
    kernel = w_KOIHW.shape[-1]
    columns = columns.view(clients, channels, kernel * kernel, batch, -1).transpose(2, 3)
    planes = columns.reshape(clients * channels * batch, kernel * kernel, -1)
    return F.fold(planes, (height, width), kernel, padding=padding, stride=stride).view(shape)


# On "mps", Apple's GPUs, nothing has been tried: it has what needs the fewest operations.
LAYOUTS: Mapping[str, Layout] = {"cpu": Grouped(), "cuda": Batched(), "mps": Grouped()}


def layer_by_layer(layout: Layout, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
    """Apply stages by the layout's own layers."""
    h = layout.enter(x_KBCHW)
    for stage in chain:
        h = layout.conv(h, stage.w_KOCkk, stage.b_KO, 1, 0)
        if stage.keep_KBO is not None:
            h = h * layout.samples(stage.keep_KBO)
        h = F.relu(layout.max_pool(h, stage.pool, stage.pool, 0))
    return layout.leave(h, x_KBCHW.shape[0])


def linear(x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
    """Apply each client's linear layer to its samples."""
    if x_KBI.is_cuda:
        # The same, such that the weights' gradient is not transposed: copying it takes time.
        return torch.baddbmm(b_KO[..., None], w_KOI, x_KBI.mT).mT
    return torch.baddbmm(b_KO[:, None], x_KBI, w_KOI.mT)


def batch_norm(
    layout: Layout, h: Tensor, params: Params, name: str, step: TrainingStep | None
) -> Tensor:
    """Apply BatchNorm2d, in which padding samples do not count.

    In training it updates the running moments in place.
    """
    gain = params[f"{name}.weight"]
    shift = params[f"{name}.bias"]
    running_mean = params[f"{name}.running_mean"]
    running_var = params[f"{name}.running_var"]
    if step is None:
        scale = gain / torch.sqrt(running_var + _EPS)
        return h * layout.channels(scale) + layout.channels(shift - running_mean * scale)
    clients, channels = gain.shape
    weight = layout.samples(step.weight_KB[..., None].expand(-1, -1, channels))
    pixels = h.shape[-1] * h.shape[-2]
    count_K1 = step.weight_KB.sum(1, keepdim=True) * pixels
    mean_KC = layout.sum(h * weight, clients) / count_K1
    centred = h - layout.channels(mean_KC)
    var_KC = layout.sum(centred * centred * weight, clients) / count_K1
    with torch.no_grad():
        running_mean.lerp_(mean_KC, _MOMENTUM)
        # PyTorch normalises by the biased variance, and remembers the unbiased one.
        running_var.lerp_(var_KC * count_K1 / (count_K1 - 1).clamp_min(1), _MOMENTUM)
    return centred * layout.channels(gain * torch.rsqrt(var_KC + _EPS)) + layout.channels(shift)


def mean_pixels(layout: Layout, h: Tensor, clients: int) -> Tensor:
    """Average over the pixels of each channel: K × B × C."""
    return layout.leave(h.mean((-2, -1), keepdim=True), clients)


def stack(models: list[Params]) -> Params:
    """Stack clients' parameters, so that each tensor has a row for each client."""
    return {name: torch.stack([model[name] for model in models]) for name in models[0]}


def trained(name: str) -> bool:
    """Return whether SGD trains a parameter of this name, or it is state of BatchNorm."""
    return not name.endswith(BUFFERS)
