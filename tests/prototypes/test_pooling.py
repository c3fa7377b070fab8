"""Pooling against plain loops over windows: its limits, its gradient, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fedrfq.errors import UserError
from fedrfq.prototypes.pooling import POOLS, Pool

# rows, kernel, stride, values of C
GEOMETRIES = [
    (2, 2, 1, 50),
    (2, 2, 2, 50),
    (2, 2, 1, 512),
    (4, 2, 1, 24),
    (5, 3, 2, 40),
    (3, 1, 2, 21),
    (6, 4, 3, 60),
]
WINDOWED = ["softpool", "avg", "max"]
ADAPTIVE = ["adaptive-avg", "adaptive-max"]


def values(*shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(
        *shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )


def naive_softpool(window: list[float]) -> float:
    top = max(window)
    weights = [math.exp(value - top) for value in window]
    return sum(w * value for w, value in zip(weights, window, strict=True)) / sum(weights)


NAIVE: dict[str, Callable[[list[float]], float]] = {
    "softpool": naive_softpool,
    "avg": lambda window: sum(window) / len(window),
    "max": max,
}


def naive(c: list[float], pool: Pool) -> list[float]:
    columns = len(c) // pool.rows
    grid = [c[row * columns : (row + 1) * columns] for row in range(pool.rows)]
    pooled = []
    for top in range(0, pool.rows - pool.kernel + 1, pool.stride):
        for left in range(0, columns - pool.kernel + 1, pool.stride):
            window = [
                value
                for row in grid[top : top + pool.kernel]
                for value in row[left : left + pool.kernel]
            ]
            pooled.append(NAIVE[pool.name](window))
    return pooled


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize(("rows", "kernel", "stride", "d"), GEOMETRIES)
def test_against_loops_over_windows(name: str, rows: int, kernel: int, stride: int, d: int) -> None:
    pool = Pool(name, rows, kernel, stride)
    c = values(2, 3, d)
    expected = torch.tensor(
        [[naive(row.tolist(), pool) for row in block] for block in c], dtype=torch.float64
    )
    assert pool(c).shape == (2, 3, pool.size(d))
    torch.testing.assert_close(pool(c), expected, rtol=1e-12, atol=1e-12)


def test_by_hand() -> None:
    c = torch.tensor(
        [0.0, math.log(2), math.log(3), math.log(4)], dtype=torch.float64
    )  # weights 1, 2, 3, 4 tenths
    expected = (2 * math.log(2) + 3 * math.log(3) + 4 * math.log(4)) / 10
    assert Pool()(c).tolist() == pytest.approx([expected], abs=1e-14)


@pytest.mark.parametrize(
    ("pool", "d", "v"),
    [
        (Pool(), 50, 24),
        (Pool(), 512, 255),
        (Pool(stride=2), 50, 12),
        (Pool(rows=4, kernel=3), 40, 16),
        (Pool("adaptive-max"), 50, 24),
        (Pool("none", rows=7, kernel=9, stride=3), 50, 50),
    ],
)
def test_sizes(pool: Pool, d: int, v: int) -> None:
    assert pool.size(d) == v
    assert pool(values(3, d)).shape == (3, v)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("shape", [(50,), (0, 50), (4, 50), (5, 4, 50), (2, 0, 3, 50)])
def test_any_leading_shape(name: str, shape: tuple[int, ...]) -> None:
    pool = Pool(name)
    assert pool(values(*shape)).shape == (*shape[:-1], pool.size(50))


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_kernel_one_stride_one_is_the_identity(name: str, rows: int) -> None:
    c = values(4, 50)
    torch.testing.assert_close(Pool(name, rows=rows, kernel=1)(c), c, rtol=0, atol=1e-15)


def test_none_is_the_identity_whatever_the_windows() -> None:
    c = values(4, 50)
    assert torch.equal(Pool("none", rows=7, kernel=9)(c), c)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("value", [0.0, -3.5, 1e4, -1e4])
def test_equal_values_stay(name: str, value: float) -> None:
    c = torch.full((3, 50), value)
    torch.testing.assert_close(Pool(name)(c), c[:, : Pool(name).size(50)], rtol=1e-6, atol=0)


@pytest.mark.parametrize("shift", [-1e4, -1.0, 5.0, 1e4])
def test_softpool_follows_shifts(shift: float) -> None:
    c = values(3, 50)
    torch.testing.assert_close(Pool()(c + shift), Pool()(c) + shift, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("rows", "kernel", "stride", "d"), GEOMETRIES)
def test_softpool_lies_between_mean_and_maximum(
    rows: int, kernel: int, stride: int, d: int
) -> None:
    c = values(20, d)
    low, mid, top = (Pool(name, rows, kernel, stride)(c) for name in ("avg", "softpool", "max"))
    assert (low - 1e-12 <= mid).all()
    assert (mid <= top + 1e-12).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_softpool_of_large_values_and_its_gradient_are_finite(dtype: torch.dtype) -> None:
    c = torch.tensor([1e4, -1e4, 0.0, 1e4, -1e4, -1e4], dtype=dtype, requires_grad=True)
    pooled = Pool()(c)
    pooled.sum().backward()
    assert pooled.tolist() == [c[0].item(), 0.0]
    assert c.grad is not None
    assert c.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", POOLS)
def test_half_types_lose_no_more_than_the_last_rounding(name: str, dtype: torch.dtype) -> None:
    c = values(8, 50).to(dtype).requires_grad_()
    pooled = Pool(name)(c)
    assert pooled.dtype == dtype
    exact = Pool(name)(c.detach().double())
    torch.testing.assert_close(pooled.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)
    pooled.sum().backward()
    assert c.grad is not None
    assert c.grad.dtype == dtype


def test_softpool_of_half_types_accumulates_in_float32() -> None:
    c = values(64, 50).half()
    assert torch.equal(Pool()(c), Pool()(c.float()).half())


@pytest.mark.parametrize("name", ["softpool", "avg", "adaptive-avg"])
@pytest.mark.parametrize(("rows", "kernel", "stride", "d"), [g for g in GEOMETRIES if g[-1] < 512])
def test_gradcheck(name: str, rows: int, kernel: int, stride: int, d: int) -> None:
    assert torch.autograd.gradcheck(
        Pool(name, rows, kernel, stride), (values(2, d).requires_grad_(),)
    )


def test_softpool_has_no_second_derivative_and_says_so() -> None:
    c = values(2, 10).requires_grad_()
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(Pool()(c).sum(), c, create_graph=True)


def test_softpool_gradient_of_views_and_of_expanded_gradients() -> None:
    base = values(50, 6).requires_grad_()
    torch.autograd.gradcheck(lambda b: Pool()(b.T), (base,))
    torch.autograd.gradcheck(lambda b: Pool()(b.T[1:]).sum(), (base,))


def test_softpool_reads_views_with_an_offset() -> None:
    c = values(4, 100)
    assert torch.equal(Pool()(c[1:, 50:]), Pool()(c[1:, 50:].clone()))


@pytest.mark.parametrize(("rows", "kernel", "stride", "d"), GEOMETRIES)
def test_parity_with_torch(rows: int, kernel: int, stride: int, d: int) -> None:
    c = values(3, d)
    maps = c.view(3, 1, rows, -1)
    size = ((rows - kernel) // stride + 1, (d // rows - kernel) // stride + 1)
    expected = {
        "avg": F.avg_pool2d(maps, kernel, stride),
        "max": F.max_pool2d(maps, kernel, stride),
        "adaptive-avg": F.adaptive_avg_pool2d(maps, size),
        "adaptive-max": F.adaptive_max_pool2d(maps, size),
    }
    for name, pooled in expected.items():
        assert torch.equal(Pool(name, rows, kernel, stride)(c), pooled.flatten(1)), name


def test_adaptive_pools_cover_values_the_stride_leaves_out() -> None:
    c = torch.zeros(50)
    c[24] = c[49] = 1.0  # the last column, which 2×2 windows every 2 columns never reach
    assert Pool("max", stride=2)(c).max() == 0
    assert Pool("adaptive-max", stride=2)(c).max() == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Pool("median"), "pool.name must be one of softpool, avg"),
        (lambda: Pool(rows=0), "pool.rows must be 1 or more; divides the prototype, not 0"),
        (lambda: Pool(kernel=-1), "pool.kernel must be 1 or more.*, not -1"),
        (lambda: Pool(stride=0), "pool.stride must be 1 or more, not 0"),
        (lambda: Pool(rows=3).check(50), "50 values cannot be folded into 3 rows"),
        (lambda: Pool(rows=3).size(50), "50 values cannot be folded into 3 rows"),
        (lambda: Pool(rows=3)(torch.zeros(2, 50)), "50 values cannot be folded into 3 rows"),
        (lambda: Pool(kernel=3).check(50), "3×3 pooling kernel is larger than the 2×25 map"),
        (
            lambda: Pool(rows=25, kernel=3).check(50),
            "3×3 pooling kernel is larger than the 25×2 map",
        ),
    ],
)
def test_refusals(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", POOLS)
def test_forward_and_backward_inside_a_cuda_graph(name: str) -> None:
    c = values(20, 4, 50).float().cuda().requires_grad_()
    pool = Pool(name)
    expected = torch.autograd.grad(pool(c).square().sum(), c)[0]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = torch.autograd.grad(pool(c).square().sum(), c)[0]
    graph.replay()
    torch.testing.assert_close(found, expected)
