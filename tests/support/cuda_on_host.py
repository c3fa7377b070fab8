"""The CUDA kernels of a stage, compiled for a CPU: the same source, with threads for threads."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

from fedrfq.models.fused import on_cuda

HERE = Path(__file__).parent
# Bytes of shared memory, and as many again for what a kernel writes behind them.
SHARED = 1 << 18
HAS_COMPILER = shutil.which("g++") is not None


class HostKernel:
    """A stage of these sizes, computed by `stage.cu` on a CPU."""

    def __init__(self, layout: on_cuda.Layout, folder: Path) -> None:
        self.layout = layout
        self._forward = _built(layout.macros(layout.forward_threads), folder).forward
        self._backward = _built(layout.macros(layout.backward_threads), folder).backward

    def forward(self, x: Tensor, w: Tensor, b: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        layout = self.layout
        out = x.new_empty(*x.shape[:2], layout.outputs, layout.rows, layout.cols)
        place = torch.empty_like(out, dtype=torch.uint8)
        shared = layout.forward_bytes(layout.tile)
        assert _called(self._forward, shared, x, w, b, keep, out, place)
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
        grads = (torch.empty_like(w), w.new_empty(w.shape[:2]))
        grad_x = torch.empty_like(x) if images else None
        shared = self.layout.backward_bytes(self.layout.tile)
        given = (x, w, keep, out, place, grad_out, *grads, grad_x)
        assert _called(self._backward, shared, *given)
        return *grads, grad_x


def _called(function: ctypes._NamedFuncPointer, shared: int, *tensors: Tensor | None) -> bool:
    """Run a kernel; return whether it has written nothing behind its shared memory."""
    clients, samples = tensors[0].shape[:2]
    pointers = [ctypes.c_void_p(0 if t is None else t.data_ptr()) for t in tensors]
    function.restype = ctypes.c_bool
    return function(clients, ctypes.c_long(shared), samples, *pointers)


def _built(macros: dict[str, str], folder: Path) -> ctypes.CDLL:
    macros = {**macros, "MEMORY": str(2 * SHARED)}
    library = folder / ("-".join(macros.values()) + ".so")
    if not library.exists():
        sources = Path(on_cuda.__file__).parent
        defined = [f"-D{name}={value}" for name, value in macros.items()]
        options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-pthread"]
        options += [f"-I{HERE}", f"-I{sources}"]
        command = ["g++", *options, *defined, str(HERE / "cuda_on_host.cpp"), "-o", str(library)]
        subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))
