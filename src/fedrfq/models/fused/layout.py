"""The engine's layouts: a stage is one operation, where there is a kernel for its sizes.

Between stages activations are K × B × C × H × W. Everything else is computed as by the layout of
layers on the same device, and so are stages without a kernel; then a warning says why, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from threading import RLock
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrfq.models.stacked import LAYOUTS, Batched, Grouped, Layout, Stage, linear
from fedrfq.prototypes.pooling import check_first_derivative

# A stage's inputs, outputs, height, width, the side of a filter, and that of a pooling window.
Shape = tuple[int, int, int, int, int, int]

_DTYPES = (torch.float32, torch.float64)
# Of larger ones the code that is unrolled would be too long.
_MAX_KERNEL = 7
_MAX_FILTER = 4096
_MAX_POOL = 4
# A kernel is made by the first thread that needs it, while the others wait.
_making = RLock()


class StageKernel(Protocol):
    """A stage's forward and backward pass for given sizes, on tensors without gaps in memory."""

    def forward(self, x: Tensor, w: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs, and from which pixel of its pooling window each of them comes."""

    def backward(
        self,
        x: Tensor,
        w: Tensor,
        keep: Tensor,
        out: Tensor,
        place: Tensor,
        grad_out: Tensor,
        *,
        images: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the gradients of filters, biases and, if `images`, of the images."""


# Makes the kernel of a shape; raises where there is none.
MakeKernel = Callable[[torch.dtype, torch.device, Shape], StageKernel]


class FusedOnCPU(Grouped):
    """Stages are computed by kernels in the processor's machine code."""

    def linear(self, x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
        out: Tensor = _Linear.apply(x_KBI, w_KOI, b_KO)  # type: ignore[no-untyped-call]
        return out

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        kernels = _fitting(_for_cpu, x_KBCHW, chain)
        if kernels is None:
            return super().stages(x_KBCHW, chain)
        return _fused(x_KBCHW, chain, kernels)


class FusedOnCuda(Batched):
    """Stages are computed by CUDA kernels, where the extra `cuda` is installed."""

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        kernels = _fitting(_for_cuda, x_KBCHW, chain)
        if kernels is None:
            return super().stages(x_KBCHW, chain)
        return _fused(x_KBCHW, chain, kernels)


# How the engine computes on each kind of device.
ENGINE_LAYOUTS: Mapping[str, Layout] = {**LAYOUTS, "cpu": FusedOnCPU(), "cuda": FusedOnCuda()}


def _for_cpu(dtype: torch.dtype, device: torch.device, shape: Shape) -> StageKernel:
    # Late, because LLVM is large, and is not there where fedrfq[train] was not installed whole.
    from fedrfq.models.fused.on_cpu import CPUKernel

    return CPUKernel.made(dtype, shape)


def _for_cuda(dtype: torch.dtype, device: torch.device, shape: Shape) -> StageKernel:
    from fedrfq.models.fused.on_cuda import CudaKernel

    try:
        import cuda.core  # noqa: F401
    except ImportError as error:
        raise ImportError("to fuse them, pip install 'fedrfq[cuda]'") from error
    return CudaKernel.made(dtype, device, shape)


def _fitting(make: MakeKernel, x: Tensor, chain: Sequence[Stage]) -> list[StageKernel] | None:
    filters = tuple((*stage.w_KOCkk.shape[1:], stage.pool) for stage in chain)
    with _making:
        return _made(make, x.dtype, x.device, tuple(x.shape[2:]), filters)


@cache
def _made(
    make: MakeKernel,
    dtype: torch.dtype,
    device: torch.device,
    image: tuple[int, ...],
    filters: tuple[tuple[int, ...], ...],
) -> list[StageKernel] | None:
    """Return a kernel for each stage; None, after a warning, if some stage has none."""
    try:
        return [make(dtype, device, shape) for shape in _shapes(dtype, image, filters)]
    except (ImportError, NotImplementedError, RuntimeError) as error:
        warnings.warn(f"convolutions run layer by layer, more slowly: {error}", stacklevel=2)
        return None


def _shapes(
    dtype: torch.dtype, image: tuple[int, ...], filters: tuple[tuple[int, ...], ...]
) -> list[Shape]:
    """Return each stage's shape; raise NotImplementedError where no kernel can be made."""
    _, height, width = image
    shapes = []
    for outputs, inputs, rows, cols, pool in filters:
        if dtype not in _DTYPES:
            raise NotImplementedError(f"there are kernels for float32 and float64, not for {dtype}")
        if rows != cols or rows > _MAX_KERNEL or inputs * rows * cols > _MAX_FILTER:
            raise NotImplementedError(
                f"there are kernels for square filters of up to {_MAX_KERNEL} pixels a side and "
                f"{_MAX_FILTER:,} weights, not for {inputs} × {rows} × {cols}"
            )
        if pool > _MAX_POOL:
            raise NotImplementedError(
                f"there are kernels for pooling by up to {_MAX_POOL} pixels, not for {pool}"
            )
        shapes.append((inputs, outputs, height, width, rows, pool))
        height = (height - rows + 1) // pool
        width = (width - cols + 1) // pool
    return shapes


def _fused(x: Tensor, chain: Sequence[Stage], kernels: Sequence[StageKernel]) -> Tensor:
    for stage, kernel in zip(chain, kernels, strict=True):
        x = _FusedStage.apply(x, stage.w_KOCkk, stage.b_KO, stage.keep_KBO, kernel)  # type: ignore[no-untyped-call]
    return x.flatten(2)


class _FusedStage(torch.autograd.Function):
    """Convolution, dropout by channel, max-pooling and ReLU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, keep: Tensor | None, kernel: StageKernel
    ) -> Tensor:
        if keep is None:
            keep = x.new_ones(*x.shape[:2], w.shape[1])
        x, w, b, keep = (t.to(x.dtype).contiguous() for t in (x, w, b, keep))
        out, place = kernel.forward(x, w, b, keep)
        ctx.save_for_backward(x, w, keep, out, place)
        ctx.kernel = kernel
        return out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        check_first_derivative()
        # The images themselves, the inputs of the first stage, have no gradients.
        images = ctx.needs_input_grad[0]
        grad_w, grad_b, grad_x = ctx.kernel.backward(
            *ctx.saved_tensors, grad_out.contiguous(), images=images
        )
        return grad_x, grad_w, grad_b, None, None


class _Linear(torch.autograd.Function):
    """A linear layer whose weights' gradient lies in memory as they do.

    PyTorch's own is transposed, and copying it takes a CPU as long as computing it.
    """

    @staticmethod
    def forward(ctx: Any, x_KBI: Tensor, w_KOI: Tensor, b_KO: Tensor) -> Tensor:
        ctx.save_for_backward(x_KBI, w_KOI)
        return linear(x_KBI, w_KOI, b_KO)

    @staticmethod
    def backward(ctx: Any, grad_KBO: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x_KBI, w_KOI = ctx.saved_tensors
        grad_KBI = None
        if ctx.needs_input_grad[0]:  # not for images
            grad_KBI = torch.bmm(grad_KBO, w_KOI)
        return grad_KBI, torch.bmm(grad_KBO.mT, x_KBI), grad_KBO.sum(1)
