"""Models: keys, starts and outputs of the stock ones; equal layouts; BatchNorm without padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedrfq.data import weights
from fedrfq.errors import UserError
from fedrfq.models import MODELS
from fedrfq.models.cnn import CNN
from fedrfq.models.fused.layout import FusedOnCPU
from fedrfq.models.mlp import MLP
from fedrfq.models.model import Model
from fedrfq.models.resnet18 import ResNet18
from fedrfq.models.stacked import (
    LAYOUTS,
    Batched,
    Grouped,
    Layout,
    Params,
    TrainingStep,
    batch_norm,
    stack,
    trained,
)
from support import reference

CLASSES = 4
# A model registered beside ours is tested with resnet18's shape.
SHAPES = {**dict.fromkeys(MODELS, (3, 32, 32)), "cnn": (2, 20, 24), "mlp": (2, 5, 6)}
LAYOUT = pytest.mark.parametrize("layout", [Grouped(), Batched()], ids=["grouped", "batched"])
# clients, channels in and out, batch, height, width, kernel, stride, padding
GEOMETRIES = [
    (2, 1, 3, 2, 7, 9, 5, 1, 0),
    (3, 2, 4, 2, 8, 7, 3, 1, 1),
    (2, 3, 2, 3, 9, 8, 3, 2, 1),
    (2, 3, 2, 1, 12, 11, 7, 2, 3),
    (1, 4, 5, 2, 5, 6, 1, 2, 0),
    (2, 2, 2, 2, 8, 6, 2, 2, 0),
]


def randn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def start(model: Model, shape: tuple[int, int, int], clients: int = 1, seed: int = 0) -> Params:
    starts = [
        model.start(shape, CLASSES, torch.Generator().manual_seed(seed + k)) for k in range(clients)
    ]
    return {name: p.double() for name, p in stack(starts).items()}


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


# The layers of both layouts


@LAYOUT
@pytest.mark.parametrize(("k", "i", "o", "b", "h", "w", "kernel", "stride", "padding"), GEOMETRIES)
@pytest.mark.parametrize("biased", [True, False])
def test_convolution_is_each_clients_own(
    layout: Layout,
    k: int,
    i: int,
    o: int,
    b: int,
    h: int,
    w: int,
    kernel: int,
    stride: int,
    padding: int,
    biased: bool,
) -> None:
    leaves = [
        randn(k, b, i, h, w).requires_grad_(),
        randn(k, o, i, kernel, kernel).requires_grad_(),
    ]
    leaves += [randn(k, o).requires_grad_()] * biased
    x, weight = leaves[:2]
    if biased:
        bias = leaves[2]
    else:
        bias = None
    rows = [
        F.conv2d(x[n], weight[n], None if bias is None else bias[n], stride, padding)
        for n in range(k)
    ]
    expected = torch.stack(rows).flatten(2)
    found = layout.leave(layout.conv(layout.enter(x), weight, bias, stride, padding), k)
    close(found, expected)
    upstream = randn(*expected.shape, seed=2)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    for grad, want in zip(torch.autograd.grad(found, leaves, upstream), wanted, strict=True):
        close(grad, want)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (2, 1), (3, 2)])
def test_gradient_of_the_batched_convolution(stride: int, padding: int) -> None:
    x, weight, bias = (
        t.requires_grad_() for t in (randn(2, 2, 2, 5, 6), randn(2, 3, 2, 3, 3), randn(2, 3))
    )
    assert torch.autograd.gradcheck(
        lambda h, w, b: Batched().conv(h, w, b, stride, padding), (x, weight, bias)
    )


@LAYOUT
@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 4, 1)])
def test_max_pool(layout: Layout, kernel: int, stride: int, padding: int) -> None:
    x = randn(2, 3, 4, 8, 9)
    expected = torch.stack([F.max_pool2d(own, kernel, stride, padding) for own in x]).flatten(2)
    assert torch.equal(
        layout.leave(layout.max_pool(layout.enter(x), kernel, stride, padding), 2), expected
    )


@pytest.mark.parametrize(
    "layout", [Grouped(), Batched(), FusedOnCPU()], ids=["grouped", "batched", "fused"]
)
def test_a_linear_layer_is_each_clients_own(layout: Layout) -> None:
    given = (randn(3, 4, 5), randn(3, 6, 5, seed=2), randn(3, 6, seed=3))
    leaves = [tensor.requires_grad_() for tensor in given]
    expected = torch.stack([F.linear(x, w, b) for x, w, b in zip(*given, strict=True)])
    found = layout.linear(*given)
    close(found, expected)
    upstream = randn(*found.shape, seed=4)
    wanted = torch.autograd.grad(expected, leaves, upstream)
    for grad, want in zip(torch.autograd.grad(found, leaves, upstream), wanted, strict=True):
        close(grad, want)
    assert torch.autograd.gradgradcheck(layout.linear, leaves)


def test_no_gradient_of_a_fused_linear_layer_is_to_be_copied() -> None:
    leaves = [t.requires_grad_() for t in (randn(3, 4, 5), randn(3, 6, 5), randn(3, 6))]
    grads = torch.autograd.grad(FusedOnCPU().linear(*leaves).sum(), leaves)
    assert all(grad.is_contiguous() for grad in grads)


@LAYOUT
def test_factors_and_sums_meet_their_clients_samples_and_channels(layout: Layout) -> None:
    x = randn(2, 3, 4, 5, 6)
    by_channel = randn(2, 4, seed=2)
    by_sample = randn(2, 3, 4, seed=3)
    h = layout.enter(x)
    close(
        layout.leave(h * layout.channels(by_channel), 2),
        (x * by_channel[:, None, :, None, None]).flatten(2),
    )
    close(
        layout.leave(h * layout.samples(by_sample), 2), (x * by_sample[..., None, None]).flatten(2)
    )
    close(layout.sum(h, 2), x.sum((1, 3, 4)))


def test_each_kind_of_machine_has_its_layout() -> None:
    assert isinstance(LAYOUTS["cpu"], Grouped)
    assert isinstance(LAYOUTS["cuda"], Batched)


# Every model


def forward_and_gradients(
    model: Model, layout: Layout, params: Params, x: Tensor, step: TrainingStep | None
) -> list[Tensor]:
    """Return C, the logits, the gradients of both in all trained parameters, and the buffers."""
    own = {name: p.clone().requires_grad_(trained(name)) for name, p in params.items()}
    c, logits = model.forward(layout, own, x, step)
    leaves = [p for name, p in own.items() if trained(name)]
    grads = torch.autograd.grad(
        (logits**2).sum() + (c * torch.linspace(0, 1, c.shape[-1])).sum(), leaves
    )
    return [
        c.detach(),
        logits.detach(),
        *grads,
        *(p for name, p in own.items() if not trained(name)),
    ]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_both_layouts_compute_the_same(name: str, training: bool) -> None:
    model = MODELS[name]()
    clients = 2
    batch = 3
    params = start(model, SHAPES[name], clients)
    x = randn(clients, batch, *SHAPES[name])
    rate, units = model.dropout()
    if rate:
        keep = (randn(clients, batch, units, seed=5) > 0).double() * 2
    else:
        keep = None
    if training:
        step = TrainingStep(torch.ones(clients, batch), keep)
    else:
        step = None
    grouped = forward_and_gradients(model, Grouped(), params, x, step)
    batched = forward_and_gradients(model, Batched(), params, x, step)
    for found, expected in zip(batched, grouped, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("cnn", {}),
    ("cnn", {"channels": 18, "hidden": 30}),
    ("mlp", {}),
    ("mlp", {"width": 20, "hidden": 10}),
    ("resnet18", {}),
    ("resnet18", {"stem": 1, "pool": 4}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_evaluation_is_the_stock_model_under_its_key_names(
    name: str, options: dict[str, Any]
) -> None:
    model = MODELS[name](**options)
    stock = reference.STOCK[name](SHAPES[name], CLASSES, **options).double().eval()
    params = start(model, SHAPES[name], clients=2)
    x = randn(2, 2, *SHAPES[name])
    assert {n: p[0].shape for n, p in params.items()} == {
        n: t.shape for n, t in reference.state(stock).items()
    }
    c_KBD, logits_KBJ = model.forward(Grouped(), params, x, None)
    assert c_KBD.shape[-1] == model.features()
    for k in range(2):
        stock.load_state_dict({n: p[k] for n, p in params.items()}, strict=False)
        c, logits = stock(x[k])
        close(c_KBD[k], c)
        close(logits_KBJ[k], logits)


@pytest.mark.parametrize("name", reference.STOCK)
def test_a_start_is_its_seeds_and_spread_like_pytorchs(name: str) -> None:
    model = MODELS[name]()
    params, again, other = (start(model, SHAPES[name], seed=seed) for seed in (0, 0, 1))
    for key, p in params.items():
        assert torch.equal(p, again[key])
        constant = "bn" in key or "downsample.1" in key
        assert torch.equal(p, other[key]) == constant
    torch.manual_seed(0)
    stock = reference.state(reference.STOCK[name](SHAPES[name], CLASSES))
    for key, p in params.items():
        if name == "resnet18" and p.dim() == 5:  # torchvision's: normal, scaled to the outputs
            nn.init.kaiming_normal_(stock[key], mode="fan_out", nonlinearity="relu")
        if stock[key].numel() > 900:
            torch.testing.assert_close(p.std(), stock[key].double().std(), rtol=0.1, atol=0)
            torch.testing.assert_close(
                p.abs().max(), stock[key].double().abs().max(), rtol=0.35, atol=0
            )
        elif not stock[key].std() > 0:
            assert torch.equal(p[0], stock[key].double())


def test_the_papers_cnn_has_its_number_of_parameters() -> None:
    params = CNN().start((1, 28, 28), 10, torch.Generator())
    assert sum(p.numel() for p in params.values()) == 21_840


def test_dropout_is_by_channel_and_after_the_prototype() -> None:
    model = CNN()
    x = randn(1, 2, *SHAPES["cnn"])
    params = start(model, SHAPES["cnn"])
    rate, units = model.dropout()
    assert (rate, units) == (0.5, 20 + 50)
    keep = torch.ones(1, 2, units, dtype=torch.float64)
    plain_c, plain = model.forward(Grouped(), params, x, None)
    whole_c, whole = model.forward(Grouped(), params, x, TrainingStep(torch.ones(1, 2), keep))
    close(whole_c, plain_c)
    close(whole, plain)
    late = keep.clone()
    late[..., 20:] = 0  # the decision layer sees nothing, the prototype all
    c, logits = model.forward(Grouped(), params, x, TrainingStep(torch.ones(1, 2), late))
    assert torch.equal(c, whole_c)
    close(logits, params["fc2.bias"][:, None].expand(-1, 2, -1))
    early = keep.clone()
    early[0, 0, :20] = 0  # the first sample loses every channel, the second none
    c, _ = model.forward(Grouped(), params, x, TrainingStep(torch.ones(1, 2), early))
    close(c[0, 0], F.relu(params["fc1.bias"][0]))
    close(c[0, 1], whole_c[0, 1])


@pytest.mark.parametrize("side", [(15, 28), (28, 15)])
def test_images_too_small_for_the_cnn_are_refused(side: tuple[int, int]) -> None:
    CNN().start((1, 16, 16), 2, torch.Generator())
    with pytest.raises(UserError, match="at least 16×16 pixels, but these have a side of 15"):
        CNN().start((1, *side), 2, torch.Generator())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (CNN, {"channels": 0}),
        (CNN, {"hidden": 0}),
        (CNN, {"drop": 1.0}),
        (CNN, {"drop": -0.5}),
        (CNN, {"drop": float("nan")}),
        (MLP, {"width": 0}),
        (MLP, {"hidden": -1}),
        (ResNet18, {"stem": 0}),
        (ResNet18, {"pool": 0}),
        (ResNet18, {"weights": "imagenet1k"}),
    ],
)
def test_impossible_models_are_refused(kind: type[Model], options: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"model.{next(iter(options))}"):
        kind(**options)


@pytest.mark.parametrize(
    ("name", "kept"), [("imagenet", ("conv1", "bn1", "fc")), ("imagenet-stem", ("fc",))]
)
def test_imagenets_weights_replace_all_but_the_first_and_last_layers(
    name: str, kept: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ResNet18().start((3, 32, 32), CLASSES, torch.Generator().manual_seed(0))
    stored = {name: torch.full_like(p, 0.125) for name, p in plain.items()} | {
        "fc.weight": torch.zeros(1000, 512)
    }
    monkeypatch.setattr(weights, "load_weights", lambda name: stored)
    params = ResNet18(weights=name).start((3, 32, 32), CLASSES, torch.Generator().manual_seed(0))
    assert list(params) == list(plain)
    for key, p in params.items():
        assert torch.equal(p, plain[key] if key.split(".")[0] in kept else stored[key])


# BatchNorm


def norm_params(clients: int, channels: int) -> Params:
    return {
        "bn.weight": randn(clients, channels, seed=2),
        "bn.bias": randn(clients, channels, seed=3),
        "bn.running_mean": randn(clients, channels, seed=4),
        "bn.running_var": randn(clients, channels, seed=5).abs() + 0.5,
    }


def stock_norm(params: Params, client: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(params["bn.weight"].shape[1]).double()
    norm.load_state_dict({key[3:]: p[client] for key, p in params.items()}, strict=False)
    return norm


@LAYOUT
def test_batch_norm_does_not_count_padding(layout: Layout) -> None:
    counts = (4, 1, 3)
    params = norm_params(3, 2)
    x = 3 * randn(3, 4, 2, 5, 6) + 1
    weight_KB = torch.tensor([[float(b < count) for b in range(4)] for count in counts])
    x = (x + 1e3 * (1 - weight_KB[..., None, None, None])).requires_grad_()  # padding would be seen
    norms = [stock_norm(params, k) for k in range(3)]
    expected = [
        norm(x[k, :count]).flatten(1)
        for k, (norm, count) in enumerate(zip(norms, counts, strict=True))
    ]
    h = layout.enter(x)
    found = layout.leave(batch_norm(layout, h, params, "bn", TrainingStep(weight_KB, None)), 3)
    upstream = randn(*found.shape, seed=9) * weight_KB[..., None]
    (grad,) = torch.autograd.grad(found, x, upstream)
    for k, count in enumerate(counts):
        close(found[k, :count], expected[k])
        (want,) = torch.autograd.grad(expected[k], x, upstream[k, :count])
        close(grad[k], want[k])
        close(params["bn.running_mean"][k], norms[k].running_mean)
        close(params["bn.running_var"][k], norms[k].running_var)


@LAYOUT
def test_batch_norm_in_evaluation_uses_the_running_moments(layout: Layout) -> None:
    params = norm_params(2, 3)
    x = randn(2, 4, 3, 5, 6)
    before = {name: p.clone() for name, p in params.items()}
    found = layout.leave(batch_norm(layout, layout.enter(x), params, "bn", None), 2)
    for k in range(2):
        close(found[k], stock_norm(params, k).eval()(x[k]).flatten(1))
    assert all(torch.equal(params[name], p) for name, p in before.items())


@LAYOUT
def test_a_single_value_is_normalised_to_nothing(layout: Layout) -> None:
    params = norm_params(1, 2)
    mean = params["bn.running_mean"].clone()
    var = params["bn.running_var"].clone()
    x = randn(1, 3, 2, 1, 1)
    step = TrainingStep(torch.tensor([[1.0, 0.0, 0.0]]), None)
    found = layout.leave(batch_norm(layout, layout.enter(x), params, "bn", step), 1)
    close(found[0, 0], params["bn.bias"][0])
    close(params["bn.running_mean"], 0.9 * mean + 0.1 * x[:, 0, :, 0, 0])
    close(params["bn.running_var"], 0.9 * var)
