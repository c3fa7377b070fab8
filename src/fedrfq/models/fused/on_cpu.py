"""A stage on a CPU, in machine code that is made for its sizes."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import torch
from torch import Tensor

from fedrfq.models.fused.kernels import Sizes, backward_kernel, forward_kernel
from fedrfq.models.fused.machine_code import Kernel

# The first thread that needs a kernel makes it, while the others wait.
_making = Lock()


@dataclass(frozen=True)
class CPUKernel:
    """A stage of these sizes; each call is computed by one thread."""

    sizes: Sizes

    @staticmethod
    def made(dtype: torch.dtype, shape: tuple[int, int, int, int, int, int]) -> CPUKernel:
        """Return the kernel of a shape: inputs, outputs, height, width, filter, pooling window."""
        sizes = Sizes(torch.finfo(dtype).bits, *shape)
        with _making:
            forward_kernel(sizes)
        return CPUKernel(sizes)

    def forward(self, x: Tensor, w: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        out = x.new_empty(*x.shape[:2], sizes.outputs, sizes.rows, sizes.cols)
        place = torch.empty(out.shape, dtype=torch.uint8)
        kept = torch.empty(sizes.outputs + 1, dtype=torch.int64)
        _call(forward_kernel(sizes), x, w, b, keep, kept, out, place)
        return out, place

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
        with _making:
            kernel = backward_kernel(self.sizes, images)
        floats, integers = self.sizes.scratch()
        scratch = (x.new_empty(floats), torch.empty(integers, dtype=torch.int64))
        grad_w = torch.empty_like(w)
        grad_b = w.new_empty(w.shape[:2])
        grad_x = torch.empty_like(x) if images else None
        wanted = [grad for grad in (grad_w, grad_b, grad_x) if grad is not None]
        _call(kernel, x, w, keep, out, place, grad_out, *scratch, *wanted)
        return grad_w, grad_b, grad_x


def _call(kernel: Kernel, x: Tensor, *tensors: Tensor) -> None:
    """Run a kernel on images of K clients and B samples, and on what else it takes."""
    clients, samples = x.shape[:2]
    kernel(clients, samples, *[tensor.data_ptr() for tensor in (x, *tensors)])
