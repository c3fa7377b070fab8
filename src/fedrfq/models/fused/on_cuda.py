"""A stage on CUDA: `stage.cu`, compiled for its sizes at run time.

NVIDIA's cuda-core (the extra `cuda`) compiles and launches it; no compiler is needed. What it
compiled is kept in the user's folder for caches. One block of threads computes one client.

A kernel is tried before it is used: on this device, against PyTorch's layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.models.fused.layout import StageKernel

# Samples in shared memory at a time, at most.
_TILE = 4
# The most outputs that a thread computes together: it has as many sums for each pixel of a window.
_GROUP = 5
# A filter up to here is summed up by each lane of a warp, a larger one by the lanes together.
_SMALL = 32
# Bytes of an int on the device.
_INT_BYTES = 4
# How far a kernel may be from PyTorch's layers, relative to the largest value.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Layout:
    """How a stage of these sizes is laid out in a block of threads and its shared memory."""

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    pool: int
    floats: int  # bytes of a number
    shared: int  # bytes of shared memory that a block may have
    # Threads of a block.
    forward_threads: int = 320
    backward_threads: int = 640

    @property
    def rows(self) -> int:
        """The rows after pooling."""
        return (self.height - self.kernel + 1) // self.pool

    @property
    def cols(self) -> int:
        """The columns after pooling."""
        return (self.width - self.kernel + 1) // self.pool

    @property
    def image(self) -> int:
        """The numbers of an image."""
        return self.inputs * self.height * self.width

    @property
    def filter(self) -> int:
        """The numbers of a filter."""
        return self.inputs * self.kernel**2

    @property
    def group(self) -> int:
        """The outputs that a thread computes together: if possible, none is left over."""
        return max((g for g in range(2, _GROUP + 1) if self.outputs % g == 0), default=_GROUP - 1)

    @cached_property
    def tile(self) -> int:
        """The samples that lie in shared memory at a time."""
        for tile in range(_TILE, 0, -1):
            if max(self.forward_bytes(tile), self.backward_bytes(tile)) <= self.shared:
                return tile
        raise NotImplementedError(
            f"{self.inputs} × {self.height} × {self.width} pixels and {self.outputs} filters need "
            f"more shared memory than this device has ({self.shared:,} bytes)"
        )

    def forward_bytes(self, tile: int) -> int:
        """Return the shared memory of a block in the forward pass."""
        wide = -(-self.outputs // self.group) * self.group
        return (tile * self.image + self.filter * wide + wide) * self.floats

    def backward_bytes(self, tile: int) -> int:
        """Return the shared memory of a block in the backward pass, with the images' gradients."""
        gradients = tile * self.outputs * self.rows * self.cols
        parts = 0
        if self.filter <= _SMALL:
            warps = self.backward_threads // 32
            parts = self.outputs * max(warps // self.outputs, 1) * (self.filter + 1)
        numbers = 2 * tile * self.image + gradients + parts + self.outputs * self.filter
        return numbers * self.floats + gradients * _INT_BYTES

    def macros(self, threads: int) -> dict[str, str]:
        """Return what `stage.cu` is compiled with."""
        sizes = {
            "INPUTS": self.inputs,
            "OUTPUTS": self.outputs,
            "HEIGHT": self.height,
            "WIDTH": self.width,
            "KERNEL": self.kernel,
            "POOL": self.pool,
            "TILE": self.tile,
            "GROUP": self.group,
            "THREADS": threads,
        }
        real = {4: "float", 8: "double"}[self.floats]
        return {"REAL": real, **{name: str(value) for name, value in sizes.items()}}


class CudaKernel:
    """A stage of these sizes on one device."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.layout = layout
        self.device = device
        self._forward = _Launched("stage_forward", layout.macros(layout.forward_threads), device)
        self._backward = _Launched("stage_backward", layout.macros(layout.backward_threads), device)

    @staticmethod
    def made(
        dtype: torch.dtype, device: torch.device, shape: tuple[int, int, int, int, int, int]
    ) -> CudaKernel:
        """Return the kernel of a shape: inputs, outputs, height, width, filter, pooling window.

        Raise NotImplementedError where it does not fit the device, RuntimeError where it fails.
        """
        try:
            properties: Any = torch.cuda.get_device_properties(device)
            shared = properties.shared_memory_per_block_optin
            layout = Layout(*shape, floats=dtype.itemsize, shared=shared)
            kernel = CudaKernel(layout, device)
            errors = errors_beside_layers(kernel, layout, dtype, device)
        except NotImplementedError:
            raise
        except Exception as error:  # compiler, driver and device have exceptions of their own
            raise RuntimeError(f"the CUDA kernel cannot be used: {error}") from error
        # Also false for what is not a number.
        if not all(error < _TOLERANCE for error in errors):
            raise RuntimeError(
                f"the CUDA kernel is off PyTorch's layers here, by {max(errors):.1e}"
            )
        return kernel

    def forward(self, x: Tensor, w: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        layout = self.layout
        out = x.new_empty(*x.shape[:2], layout.outputs, layout.rows, layout.cols)
        place = torch.empty_like(out, dtype=torch.uint8)
        self._forward(layout.forward_bytes(layout.tile), x, w, b, keep, out, place)
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
        grad_w = torch.empty_like(w)
        grad_b = w.new_empty(w.shape[:2])
        grad_x = torch.empty_like(x) if images else None
        given = (x, w, keep, out, place, grad_out, grad_w, grad_b, grad_x)
        self._backward(self.layout.backward_bytes(self.layout.tile), *given)
        return grad_w, grad_b, grad_x


class _Launched:
    """One of the functions of `stage.cu`, compiled for a device."""

    def __init__(self, name: str, macros: Mapping[str, str], device: torch.device) -> None:
        from cuda.core import Device

        self.threads = int(macros["THREADS"])
        self.device = device
        Device(device.index).set_current()
        self.kernel = program(macros, _architecture(device)).get_kernel(name)
        self.shared = 0

    def __call__(self, shared: int, x: Tensor, *tensors: Tensor | None) -> None:
        from cuda.core import LaunchConfig, Stream, launch

        if shared > self.shared:
            _allow_shared_memory(self.kernel, shared, self.device)
            self.shared = shared
        stream = Stream.from_handle(torch.cuda.current_stream(self.device).cuda_stream)
        config = LaunchConfig(grid=x.shape[0], block=self.threads, shmem_size=shared)
        pointers = [0 if tensor is None else tensor.data_ptr() for tensor in (x, *tensors)]
        launch(stream, config, self.kernel, np.int32(x.shape[1]), *pointers)


def source() -> str:
    """Return the kernels' source."""
    return files(__package__).joinpath("stage.cu").read_text(encoding="utf-8")


def program(macros: Mapping[str, str], architecture: str) -> Any:
    """Return `stage.cu`, compiled for an architecture such as "sm_90"; no device is needed."""
    from cuda.core import Program, ProgramOptions
    from cuda.core.utils import FileStreamProgramCache

    options = ProgramOptions(arch=architecture, define_macro=list(macros.items()))
    made = Program(source(), "c++", options)
    try:
        with FileStreamProgramCache() as kept:
            return made.compile("cubin", cache=kept)
    except OSError:  # a folder that cannot be written to
        return made.compile("cubin")


def _architecture(device: torch.device) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def _allow_shared_memory(kernel: Any, size: int, device: torch.device) -> None:
    """Let a kernel have more shared memory than the 48 kB that need no leave."""
    from cuda.bindings import driver

    what = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (error,) = driver.cuKernelSetAttribute(what, size, kernel.handle, device.index)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{size:,} bytes of shared memory were refused: {error.name}")


def errors_beside_layers(
    kernel: StageKernel, layout: Layout, dtype: torch.dtype, device: torch.device
) -> list[float]:
    """Return how far outputs and gradients are from those of PyTorch's layers.

    Each is relative to its largest value; two clients with a tile and a sample each.
    """
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype).to(device)

    samples = layout.tile + 1
    x = some(2, samples, layout.inputs, layout.height, layout.width)
    w = some(2, layout.outputs, layout.inputs, layout.kernel, layout.kernel)
    b = some(2, layout.outputs)
    keep = (some(2, samples, layout.outputs) > 0).to(dtype) * 2
    out, place = kernel.forward(x, w, b, keep)
    grads = kernel.backward(x, w, keep, out, place, torch.ones_like(out), images=True)
    # On a CPU, where convolutions of float32 are not shortened to TF32.
    expected = _by_layers(x.cpu(), w.cpu(), b.cpu(), keep.cpu(), layout.pool)
    errors = []
    for found, wanted in zip((out, *grads), expected, strict=True):
        assert found is not None
        apart = (found.cpu() - wanted).abs().max()
        errors.append(float(apart / wanted.abs().max().clamp_min(1)))
    return errors


def _by_layers(x: Tensor, w: Tensor, b: Tensor, keep: Tensor, pool: int) -> list[Tensor]:
    """Return outputs and gradients as PyTorch computes them, one client after the other."""
    leaves = [tensor.clone().requires_grad_() for tensor in (x, w, b)]
    outputs = []
    for images, filters, bias, kept in zip(*leaves, keep, strict=True):
        h = F.conv2d(images, filters, bias) * kept[..., None, None]
        outputs.append(F.relu(F.max_pool2d(h, pool)))
    out = torch.stack(outputs)
    grad_x, grad_w, grad_b = torch.autograd.grad(out.sum(), leaves)
    return [out.detach(), grad_w, grad_b, grad_x]
