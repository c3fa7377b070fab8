"""The CUDA kernels of a stage: their source on a CPU, and what is done where they do not fit."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from fedrfq.models.fused import layout as fused_layout
from fedrfq.models.fused.on_cuda import Layout, errors_beside_layers, program
from fedrfq.models.stacked import Stage
from support.cuda_on_host import HAS_COMPILER, SHARED, HostKernel

on_host = pytest.mark.skipif(not HAS_COMPILER, reason="needs g++")
# Inputs, outputs, height, width, the side of a filter, that of a pooling window.
SHAPES = {
    "small filters, as of the paper's first stage": (1, 10, 14, 14, 5, 2),
    "the paper's second stage": (10, 20, 12, 12, 5, 2),
    "odd sizes, no pooling, more than 32 taps": (2, 3, 9, 8, 7, 1),
    "a group that is not full, and pixels that are left over": (3, 7, 11, 13, 3, 3),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def layout_of(shape: tuple[int, ...], dtype: torch.dtype, shared: int = SHARED) -> Layout:
    # Fewer threads than on a device, so that some have several tasks.
    return Layout(*shape, dtype.itemsize, shared, forward_threads=64, backward_threads=64)


@on_host
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernels_are_pytorchs_layers(name: str, folder: Path) -> None:
    layout = layout_of(SHAPES[name], torch.float64)
    kernel = HostKernel(layout, folder)
    errors = errors_beside_layers(kernel, layout, torch.float64, torch.device("cpu"))
    assert max(errors) < 1e-13


@on_host
def test_clients_and_tiles_change_no_byte(folder: Path) -> None:
    """Five samples are more than a tile of four; alone, a client is another block."""
    layout = layout_of((3, 7, 11, 13, 3, 3), torch.float64)
    kernel = HostKernel(layout, folder)
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = some(2, 5, 3, 11, 13)
    w = some(2, 7, 3, 3, 3)
    b = some(2, 7)
    keep = (some(2, 5, 7) > 0).double() * 2

    def computed(k: slice) -> list[torch.Tensor]:
        own = [tensor[k].contiguous() for tensor in (x, w, b, keep)]
        out, place = kernel.forward(*own)
        own.pop(2)
        grads = kernel.backward(*own, out, place, torch.ones_like(out), images=True)
        return [out, *(grad for grad in grads if grad is not None)]

    together = computed(slice(0, 2))
    for k in range(2):
        for mine, among_all in zip(computed(slice(k, k + 1)), together, strict=True):
            assert torch.equal(mine[0], among_all[k])


@on_host
def test_ties_and_what_is_not_a_number_are_as_in_pytorch(folder: Path) -> None:
    shape = (1, 1, 4, 4, 1, 2)
    kernel = HostKernel(layout_of(shape, torch.float32), folder)
    one = torch.ones(1, 1, 1, 1, 1)
    x = torch.ones(1, 3, 1, 4, 4)
    x[0, 1, 0, 1, 1] = torch.nan
    x[0, 2] = torch.nan
    keep = torch.tensor([[[1.0], [1.0], [0.0]]])
    out, place = kernel.forward(x, one, torch.zeros(1, 1), keep)
    assert out[0, 1].isnan().flatten().tolist() == [True, False, False, False]
    assert not out[0, 2].any()  # a dropped channel is 0, whatever it was made of
    grads = kernel.backward(x, one, keep, out, place, torch.ones_like(out), images=True)
    first_of_each = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    assert grads[2] is not None
    assert torch.equal(grads[2][0, 0, 0], first_of_each)
    assert not grads[2][0, 2].any()


def test_a_tile_is_what_fits_shared_memory() -> None:
    shape = SHAPES["the paper's second stage"]
    whole = layout_of(shape, torch.float32, shared=227 * 1024)
    assert whole.tile == 4
    less = layout_of(shape, torch.float32, shared=64 * 1024)
    assert 1 <= less.tile < 4
    assert less.backward_bytes(less.tile) <= 64 * 1024 < less.backward_bytes(less.tile + 1)
    with pytest.raises(NotImplementedError, match=r"more shared memory .* \(1,024 bytes\)"):
        _ = layout_of(shape, torch.float32, shared=1024).tile


def test_without_the_extra_layers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would make them faster is said once."""
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    fused_layout._made.cache_clear()
    x = torch.ones(1, 1, 1, 4, 4)
    stage = Stage(torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1), 2)
    with pytest.warns(UserWarning, match=r"more slowly: .* pip install 'fedrfq\[cuda\]'") as said:
        found = [fused_layout.FusedOnCuda().stages(x, [stage]) for _ in range(2)]
    assert len(said) == 1
    assert all(torch.equal(out, torch.ones(1, 1, 4)) for out in found)
    fused_layout._made.cache_clear()


def test_a_kernel_that_fails_is_said_once_and_layers_are_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Here there is no device to ask for its memory."""
    for name in ("cuda", "cuda.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    fused_layout._made.cache_clear()
    x = torch.ones(1, 1, 1, 4, 4)
    stage = Stage(torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1), 2)
    with pytest.warns(UserWarning, match="layer by layer, more slowly: the CUDA kernel cannot"):
        found = fused_layout.FusedOnCuda().stages(x, [stage])
    assert torch.equal(found, torch.ones(1, 1, 4))
    fused_layout._made.cache_clear()


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_120"])
@pytest.mark.parametrize("name", SHAPES)
def test_the_source_compiles_for_devices(name: str, architecture: str) -> None:
    pytest.importorskip("cuda.core")
    layout = Layout(*SHAPES[name], 4, 99 * 1024)
    for threads in (layout.forward_threads, layout.backward_threads):
        assert program(layout.macros(threads), architecture).code
