"""Fused stages against PyTorch's own layers: values, all gradients, and the same bytes always."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrfq.engine import counter_rng
from fedrfq.engine.counter_rng import Purpose
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.methods.local import Local
from fedrfq.models.cnn import CNN
from fedrfq.models.fused import layout as fused_layout
from fedrfq.models.fused import on_cpu
from fedrfq.models.fused.layout import FusedOnCPU
from fedrfq.models.model import keep_factors
from fedrfq.models.stacked import Stage, TrainingStep, stack
from fedrfq.prototypes.pooling import Pool


@dataclass(frozen=True)
class Case:
    """The sizes of a stage, what it computes with, and the seed of the numbers."""

    clients: int
    samples: int
    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    pool: int
    rate: float
    # Multiples of ⅛ of at most 1: all sums are exact, and many maxima are shared.
    exact: bool
    seed: int


@st.composite
def cases(draw: st.DrawFn, *, exact: bool | None = None) -> Case:
    kernel = draw(st.integers(1, 5))
    pool = draw(st.integers(1, 3))
    sides = st.integers(kernel + pool - 1, kernel + pool + 20)
    return Case(
        clients=draw(st.integers(1, 3)),
        # More than are computed together.
        samples=draw(st.integers(1, 6)),
        inputs=draw(st.integers(1, 5)),
        outputs=draw(st.integers(1, 6)),
        height=draw(sides),
        width=draw(sides),
        kernel=kernel,
        pool=pool,
        rate=draw(st.sampled_from([0.0, 0.5, 0.75])),
        exact=draw(st.booleans()) if exact is None else exact,
        seed=draw(st.integers(0, 2**16)),
    )


@dataclass(frozen=True)
class Numbers:
    """Images, filters, biases, factors of dropout, and the outputs' gradients."""

    x: Tensor
    w: Tensor
    b: Tensor
    keep: Tensor | None
    grad: Tensor
    pool: int


def numbers(case: Case, dtype: torch.dtype) -> Numbers:
    generator = torch.Generator().manual_seed(case.seed)

    def some(*shape: int) -> Tensor:
        if case.exact:
            return torch.randint(-8, 9, shape, generator=generator).to(dtype) / 8
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    k, b, o = case.clients, case.samples, case.outputs
    rows = (case.height - case.kernel + 1) // case.pool
    cols = (case.width - case.kernel + 1) // case.pool
    keep = None
    if case.rate:
        # As the engine draws them.
        keys = counter_rng.key(case.seed, torch.arange(k))
        chances = counter_rng.uniform(keys, Purpose.DROPOUT, b * o).view(k, b, o)
        keep = keep_factors([(case.rate, o)], chances)
    return Numbers(
        x=some(k, b, case.inputs, case.height, case.width),
        w=some(k, o, case.inputs, case.kernel, case.kernel),
        b=some(k, o),
        keep=keep,
        grad=some(k, b, o * rows * cols),
        pool=case.pool,
    )


def computed(given: Numbers, *, fused: bool) -> list[Tensor]:
    """Return the outputs and the gradients of images, filters and biases."""
    leaves = [t.clone().requires_grad_() for t in (given.x, given.w, given.b)]
    if fused:
        out = FusedOnCPU().stages(leaves[0], [Stage(leaves[1], leaves[2], given.pool, given.keep)])
    else:
        out = by_pytorch(*leaves, given)
    return [out.detach(), *torch.autograd.grad(out, leaves, given.grad)]


def by_pytorch(x: Tensor, w: Tensor, b: Tensor, given: Numbers) -> Tensor:
    """Return what stock layers make of each client by itself."""
    outputs = []
    for k in range(len(x)):
        h = F.conv2d(x[k], w[k], b[k])
        if given.keep is not None:
            h = h * given.keep[k][..., None, None]
        outputs.append(F.relu(F.max_pool2d(h, given.pool)).flatten(1))
    return torch.stack(outputs)


@settings(deadline=None, max_examples=15)
@given(case=cases())
def test_a_stage_is_pytorchs_layers_in_float64(case: Case) -> None:
    given = numbers(case, torch.float64)
    for found, expected in zip(
        computed(given, fused=True), computed(given, fused=False), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None, max_examples=8)
@given(case=cases(exact=True))
def test_a_stage_is_pytorchs_layers_in_float32(case: Case) -> None:
    """Where all sums are exact nothing is left to rounding: each bit is the same."""
    given = numbers(case, torch.float32)
    for found, expected in zip(
        computed(given, fused=True), computed(given, fused=False), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


# The CNN's second stage.
PAPER = Case(5, 4, 10, 20, 12, 12, 5, 2, 0.5, exact=False, seed=1)


def test_the_papers_stage_in_float32_is_near_float64() -> None:
    single = computed(numbers(PAPER, torch.float32), fused=True)
    double = computed(numbers(PAPER, torch.float64), fused=False)
    for found, expected in zip(single, double, strict=True):
        size = float(expected.abs().max())
        torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6 * size)


def test_a_client_gets_the_same_bytes_in_any_stack_and_on_any_thread() -> None:
    whole = numbers(PAPER, torch.float32)
    together = computed(whole, fused=True)

    def alone(k: int) -> list[Tensor]:
        assert whole.keep is not None
        own = Numbers(
            whole.x[k : k + 1],
            whole.w[k : k + 1],
            whole.b[k : k + 1],
            whole.keep[k : k + 1],
            whole.grad[k : k + 1],
            whole.pool,
        )
        return computed(own, fused=True)

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(alone, range(PAPER.clients)))
    for k, own in enumerate(found):
        for mine, among_all in zip(own, together, strict=True):
            assert torch.equal(mine[0], among_all[k])


def test_the_first_of_equal_maxima_gets_the_gradient() -> None:
    x = torch.ones(1, 1, 1, 4, 4, requires_grad=True)
    stage = Stage(torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1), 2)
    (grad,) = torch.autograd.grad(FusedOnCPU().stages(x, [stage]).sum(), x)
    expected = torch.tensor([[1.0, 0, 1, 0], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]])
    assert torch.equal(grad[0, 0, 0], expected)


def test_a_stage_has_no_second_derivative_and_says_so() -> None:
    x = torch.ones(1, 1, 1, 4, 4)
    w = torch.ones(1, 1, 1, 1, 1).requires_grad_()
    out = FusedOnCPU().stages(x, [Stage(w, torch.zeros(1, 1), 2)])
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(out.sum(), w, create_graph=True)


def test_what_has_no_gradient_is_not_looked_at() -> None:
    """In PyTorch's own layers 0 times what is not a number would not be 0."""
    x = torch.ones(1, 3, 1, 6, 6)
    x[0, 1:] = torch.nan
    w = torch.ones(1, 1, 1, 3, 3, requires_grad=True)
    # The second sample's channel is dropped, and nothing depends on the third's outputs.
    kept = torch.tensor([[[1.0], [0.0], [1.0]]])
    for bias, expected in ((0.0, 36.0), (-100.0, 0.0)):
        out = FusedOnCPU().stages(x, [Stage(w, torch.full((1, 1), bias), 2, kept)])
        assert out[:, :2].isfinite().all()
        (grad,) = torch.autograd.grad(out[:, :2].sum(), w)
        assert float(grad.sum()) == expected


def test_what_is_not_a_number_is_passed_on_as_by_pytorch() -> None:
    """A run that diverges must be noticed."""
    for place in range(4):
        x = torch.ones(1, 1, 1, 2, 2)
        x.view(-1)[place] = torch.nan
        stage = Stage(torch.ones(1, 1, 1, 1, 1), torch.zeros(1, 1), 2)
        assert FusedOnCPU().stages(x, [stage]).isnan().all()


@pytest.fixture
def nothing_made() -> Iterator[None]:
    """Whether stages have kernels is found out again."""
    fused_layout._made.cache_clear()
    yield
    fused_layout._made.cache_clear()


def test_without_llvm_the_layers_are_computed_and_a_line_says_so(
    nothing_made: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = numbers(PAPER, torch.float32)
    for name in ("on_cpu", "kernels", "machine_code"):
        monkeypatch.delitem(sys.modules, f"fedrfq.models.fused.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    with pytest.warns(UserWarning, match="layer by layer, more slowly: .*llvmlite"):
        out = computed(given, fused=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        computed(given, fused=True)  # it is said once
    torch.testing.assert_close(out, computed(given, fused=False), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "pool", "dtype", "match"),
    [
        (9, 2, torch.float32, "not for 1 × 9 × 9"),
        (3, 5, torch.float32, "pooling by up to 4 pixels, not for 5"),
        (3, 2, torch.bfloat16, "not for torch.bfloat16"),
    ],
)
def test_stages_without_a_kernel_are_computed_by_layers(
    kernel: int, pool: int, dtype: torch.dtype, match: str, nothing_made: None
) -> None:
    case = Case(2, 2, 1, 2, 14, 14, kernel, pool, 0.0, exact=True, seed=3)
    given = numbers(case, dtype)
    with pytest.warns(UserWarning, match=match):
        found = computed(given, fused=True)
    torch.testing.assert_close(found, computed(given, fused=False), rtol=1e-2, atol=1e-2)


def test_the_engine_computes_the_cnn_by_fused_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    call = on_cpu._call

    def counted(kernel: object, x: Tensor, *tensors: Tensor) -> None:
        calls.append(len(x))
        call(kernel, x, *tensors)  # type: ignore[arg-type]

    monkeypatch.setattr(on_cpu, "_call", counted)
    model = CNN(channels=4)
    one = Program(model, Local(), Pool(name="none"), TrainingOptions())
    generator = torch.Generator().manual_seed(0)
    params = stack([model.start((1, 16, 16), 3, generator) for _ in range(2)])
    step = TrainingStep(torch.ones(2, 3), None)
    one.batch(params, torch.zeros(2, 3, 1, 16, 16), torch.zeros(2, 3, dtype=torch.int64), step)
    assert calls == [2, 2]
