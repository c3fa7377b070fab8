"""The engine's layout on a CPU: a stage is one operation, where there is a kernel for its sizes.

Between stages activations are K × B × C × H × W. Everything else is computed as by `Grouped`, and
so are stages without a kernel; then a warning says why, once.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedrfq.models.stacked import LAYOUTS, Grouped, Layout, Stage

if TYPE_CHECKING:
    from fedrfq.models.fused.kernels import Sizes
    from fedrfq.models.fused.machine_code import Kernel

_DTYPES = (torch.float32, torch.float64)
# Of larger ones the code that is unrolled would be too long.
_MAX_KERNEL = 7
_MAX_FILTER = 4096
_MAX_POOL = 4
# A kernel is made by the first thread that needs it, while the others wait.
_making = RLock()


class Fused(Grouped):
    """Stages are computed by kernels in machine code, which are made for their sizes."""

    def stages(self, x_KBCHW: Tensor, chain: Sequence[Stage]) -> Tensor:
        filters = tuple((*stage.w_KOCkk.shape[1:], stage.pool) for stage in chain)
        with _making:
            fitting = _fitting(x_KBCHW.dtype, tuple(x_KBCHW.shape[2:]), filters)
        if fitting is None:
            return super().stages(x_KBCHW, chain)
        h = x_KBCHW
        for stage, sizes in zip(chain, fitting, strict=True):
            h = _FusedStage.apply(h, stage.w_KOCkk, stage.b_KO, stage.keep_KBO, sizes)  # type: ignore[no-untyped-call]
        return h.flatten(2)


# How the engine computes on each kind of device.
ENGINE_LAYOUTS: Mapping[str, Layout] = {**LAYOUTS, "cpu": Fused()}


@cache
def _fitting(
    dtype: torch.dtype, image: tuple[int, ...], filters: tuple[tuple[int, ...], ...]
) -> list[Sizes] | None:
    """Return each stage's sizes; None, after a warning, if some stage has no kernel."""
    try:
        return _translated(dtype, image, filters)
    except (ImportError, NotImplementedError, RuntimeError) as error:
        warnings.warn(f"convolutions run layer by layer, more slowly: {error}", stacklevel=2)
        return None


def _translated(
    dtype: torch.dtype, image: tuple[int, ...], filters: tuple[tuple[int, ...], ...]
) -> list[Sizes]:
    """Return each stage's sizes, with kernels for them."""
    # Late, because LLVM is large, and is not there where fedrfq[train] was not installed whole.
    from fedrfq.models.fused.kernels import Sizes, forward_kernel

    _, height, width = image
    stages = []
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
        sizes = Sizes(torch.finfo(dtype).bits, inputs, outputs, height, width, rows, pool)
        forward_kernel(sizes)
        stages.append(sizes)
        height, width = sizes.rows, sizes.cols
    return stages


def _backward_kernel(sizes: Sizes, images: bool) -> Kernel:
    from fedrfq.models.fused.kernels import backward_kernel

    with _making:
        return backward_kernel(sizes, images)


class _FusedStage(torch.autograd.Function):
    """Convolution, dropout by channel, max-pooling and ReLU."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, b: Tensor, keep: Tensor | None, sizes: Sizes
    ) -> Tensor:
        from fedrfq.models.fused.kernels import forward_kernel

        clients, samples = x.shape[:2]
        if keep is None:
            keep = x.new_ones(clients, samples, sizes.outputs)
        x, w, b, keep = (t.to(x.dtype).contiguous() for t in (x, w, b, keep))
        out = x.new_empty(clients, samples, sizes.outputs, sizes.rows, sizes.cols)
        place = torch.empty(out.shape, dtype=torch.uint8)
        kept = torch.empty(sizes.outputs + 1, dtype=torch.int64)
        _call(forward_kernel(sizes), clients, samples, x, w, b, keep, kept, out, place)
        ctx.save_for_backward(x, w, keep, out, place)
        ctx.sizes = sizes
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, w, keep, out, place = ctx.saved_tensors
        clients, samples = x.shape[:2]
        floats, integers = ctx.sizes.scratch()
        scratch = (x.new_empty(floats), torch.empty(integers, dtype=torch.int64))
        grad_w = torch.empty_like(w)
        grad_b = w.new_empty(w.shape[:2])
        grad_x = None
        wanted = [grad_w, grad_b]
        if ctx.needs_input_grad[0]:  # not for the first stage, whose input is the images
            grad_x = torch.empty_like(x)
            wanted.append(grad_x)
        kernel = _backward_kernel(ctx.sizes, grad_x is not None)
        given = (x, w, keep, out, place, grad_out.contiguous())
        _call(kernel, clients, samples, *given, *scratch, *wanted)
        return grad_x, grad_w, grad_b, None, None


def _call(kernel: Kernel, clients: int, samples: int, *tensors: Tensor) -> None:
    """Run a kernel on tensors that lie in memory without gaps."""
    kernel(clients, samples, *[tensor.data_ptr() for tensor in tensors])
