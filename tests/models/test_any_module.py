"""Plain modules as clients' models: the same numbers as ours, in a stack or in a loop."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from fedrfq.data.client_data import ClientData
from fedrfq.engine import counter_rng
from fedrfq.engine.engine import Engine, Program, TrainingOptions
from fedrfq.errors import UserError
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.local import Local
from fedrfq.models.any_module import AnyModule, give, give_again
from fedrfq.models.cnn import CNN
from fedrfq.models.model import Model
from fedrfq.models.stacked import Params, stack
from fedrfq.prototypes.pooling import Pool
from support.outside import typed
from support.plain_modules import Branching, Noisy, Normed, PlainCNN

# A module as it is typed into a notebook, up to what it returns.
_CELL = """
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(60, 3)
    def forward(self, x):
"""
SMALL = (2, 5, 6)
GREY = (1, 20, 24)
TRAIN = TrainingOptions(epochs=2, batch_size=4, lr=0.05, momentum=0.5)


def data(shape: tuple[int, ...], counts: tuple[int, ...]) -> ClientData:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(16, *shape, dtype=torch.float64, generator=rng)
    y = torch.randint(3, (16,), generator=rng)
    index = torch.stack([torch.randperm(16, generator=rng)[: max(counts)] for _ in counts])
    return ClientData(x, y, index, counts)


def params(model: Model, shape: tuple[int, int, int], clients: int) -> Params:
    seeds = [torch.Generator().manual_seed(k) for k in range(clients)]
    models = [model.start(shape, 3, seed) for seed in seeds]
    return {name: p.double() for name, p in stack(models).items()}


def trained(model: Model, own: ClientData, start: Params, method: Any, **train: Any) -> Any:
    program = Program(model, method, Pool("none"), replace(TRAIN, **train))
    engine = Engine(program, own, own)
    clients = len(own.counts)
    guide = {
        "values_KJV": torch.ones(clients, 3, model.features(), dtype=torch.float64),
        "present_KJ": torch.ones(clients, 3, dtype=torch.float64),
        "lam_K": torch.full((clients,), 0.5, dtype=torch.float64),
    }
    after, losses = engine.train(
        start, guide, counter_rng.key(7, torch.arange(clients), 1), range(clients)
    )
    return after, losses, engine.features(after, own)


def equal(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_our_cnn_as_a_plain_module_trains_to_the_same_parameters() -> None:
    """Dropout, padding and the prototype loss included, in float64."""
    ours = CNN(channels=6, drop=0.75)
    theirs = give(PlainCNN, GREY, 3, settings={"feature_layer": "act"})
    assert theirs.program().stacked
    assert theirs.drops() == ((0.75, 6), (0.75, 50))
    own = data(GREY, (5, 9, 12, 3))
    start = params(ours, GREY, 4)
    method = FedProto(lam=0.5)
    equal(trained(theirs, own, dict(start), method), trained(ours, own, dict(start), method))


@pytest.mark.parametrize("stacked", [True, False])
def test_batch_norm_counts_real_samples_as_torch_does(stacked: bool) -> None:
    """One step of clients with 5 and 3 samples, beside the same module trained by torch alone."""
    model = give(Normed, SMALL, 3)
    program = model.program()
    assert program.stacked
    program.stacked = stacked
    own = data(SMALL, (5, 3))
    start = params(model, SMALL, 2)
    after, _, _ = trained(model, own, dict(start), Local(), epochs=1, batch_size=8)
    program.stacked = True
    for k, count in enumerate(own.counts):
        module = program.rebuilt({name: p[k] for name, p in start.items()}).double().train()
        rows = own.index_KN[k, :count]
        loss = nn.functional.cross_entropy(module(own.x[rows]), own.y[rows])
        loss.backward()
        torch.optim.SGD([p for p in module.parameters() if p.grad is not None], 0.05).step()
        state = module.state_dict()
        equal({name: p[k] for name, p in after.items()}, {name: state[name] for name in after})


def test_only_what_is_trained_belongs_to_a_client() -> None:
    names = set(give(Normed, SMALL, 3).program().names)
    assert {name.split(".")[0] for name in names} == {"conv", "norm", "norm1", "out"}
    assert {"norm.running_mean", "norm1.running_var"} <= names


def test_what_vmap_refuses_is_computed_in_a_loop() -> None:
    model = give(Branching, SMALL, 3)
    assert not model.program().stacked
    assert (model.head_layer, model.width) == ("last", 8)
    own = data(SMALL, (5, 3))
    start = params(model, SMALL, 2)
    after, _, (features, _) = trained(model, own, start, Local())
    assert not torch.equal(after["last.weight"], start["last.weight"])
    assert features.shape == (2, 5, 8)


def test_a_class_starts_every_client_anew_and_a_module_from_its_weights() -> None:
    fresh = give(Branching, SMALL, 3)
    start = params(fresh, SMALL, 2)["first.weight"]
    assert not torch.equal(start[0], start[1])
    assert torch.equal(start, params(fresh, SMALL, 2)["first.weight"])
    module = Branching()
    given = params(give(module, SMALL, 3), SMALL, 2)["first.weight"]
    assert torch.equal(given[0].float(), module.first.weight)
    assert torch.equal(given[0], given[1])


def test_making_modules_leaves_torchs_generator_as_it_was() -> None:
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    params(give(Branching, SMALL, 3), SMALL, 2)
    assert torch.equal(torch.rand(3), expected)


def test_the_hash_is_of_code_structure_and_given_weights() -> None:
    class Other(Branching):
        """The same layers, other code."""

    first = give(Branching, SMALL, 3, "mine")
    assert give(Branching, SMALL, 3, "mine") == first
    assert give(Other, SMALL, 3, "mine").sha256 != first.sha256
    assert give(Branching(), SMALL, 3).sha256 != give(Branching(), SMALL, 3).sha256
    assert first.source == "mine"


def test_code_in_a_notebooks_cell_is_hashed_too() -> None:
    scope: dict[str, Any] = {"__name__": "__main__"}
    hashes = []
    for factor in (1, 1, 2):
        typed(f"{_CELL}        return {factor} * self.last(x.flatten(1))\n", scope)
        hashes.append(give(scope["Net"], SMALL, 3, "mine").sha256)
    assert hashes[0] == hashes[1] != hashes[2]


def frozen(value: float) -> nn.Sequential:
    first = nn.Linear(60, 60)
    nn.init.constant_(first.weight, value)
    first.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.Linear(60, 3))


def test_the_hash_is_of_what_clients_do_not_train_too() -> None:
    def sha256(value: float) -> str:
        return give(lambda: frozen(value), SMALL, 3, "mine").sha256

    assert sha256(0.0) == sha256(0.0) != sha256(5.0)


def test_a_source_is_named_by_its_module() -> None:
    assert give(PlainCNN, GREY, 3).source == "support.plain_modules:PlainCNN"


class Tuple(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(60, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.last(x.flatten(1)), x


class Drawing(nn.Module):
    """What adds a number of its own to all that passes."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        return x + self.draw()


class Shifted(nn.Module):
    """What begins with a number from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.full((60,), np.random.uniform()))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Centred(nn.Module):
    """What takes the others of a batch from each."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class BatchAsTime(nn.Module):
    """A recurrent layer that takes one image after the other for a series."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(60, 60)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Squeezed(nn.Module):
    """What loses the batch where there is one image."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze() @ torch.ones(60, 60)[:, : x.squeeze().shape[1]]


def flat(layer: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), layer, nn.Linear(60, 3))


def test_attention_without_dropout_trains_to_the_same_parameters() -> None:
    def attending() -> nn.Module:
        layer = nn.TransformerEncoderLayer(30, 2, 8, dropout=0.0, batch_first=True)
        return nn.Sequential(nn.Flatten(2), layer, nn.Flatten(), nn.Linear(60, 3))

    model = give(attending, SMALL, 3)
    own = data(SMALL, (5, 3))
    start = params(model, SMALL, 2)
    first, _, _ = trained(model, own, dict(start), Local())
    torch.manual_seed(5)
    again, _, _ = trained(model, own, dict(start), Local())
    assert not torch.equal(first["3.weight"], start["3.weight"])
    equal(again, first)


@pytest.mark.parametrize(
    ("module", "settings", "said"),
    [
        (Noisy, {}, "draws random numbers by randn_like"),
        (lambda: flat(nn.RReLU()), {}, "from PyTorch's generator"),
        (lambda: flat(Drawing(lambda: np.random.uniform())), {}, "from NumPy's generator"),
        (lambda: flat(Drawing(lambda: random.random())), {}, "from Python's generator"),
        (lambda: flat(Shifted()), {}, "from NumPy's generator"),
        (lambda: flat(nn.LSTM(60, 60, 2, dropout=0.1)), {}, "'1' drops out inside its LSTM"),
        (lambda: flat(nn.MultiheadAttention(60, 2, 0.1)), {}, "'1' drops out inside its Multi"),
        (lambda: flat(nn.TransformerEncoderLayer(60, 2)), {}, r"'1\.self_attn' drops out inside"),
        (Tuple, {}, "expected the logits as one tensor"),
        (lambda: flat(Centred()), {}, "depends on the others of its batch"),
        (lambda: flat(BatchAsTime()), {}, "depends on the others of its batch.*batch_first"),
        (lambda: flat(Squeezed()), {}, "fails on one image"),
        (PlainCNN, {}, "fails on a batch of two images"),
        (Branching, {"head_layer": "fc"}, "no layer 'fc'"),
        (lambda: Branching(4), {}, r"shape \(2, 4\).*expected \(2, 3\)"),
        (lambda: frozen(0.0)[:2].append(nn.Flatten()), {"head_layer": "1"}, "nothing to train"),
        (lambda: nn.Conv2d(2, 3, 3), {}, "not clear which layer decides"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), {}, "'1.weight' is of a lazy"),
        (lambda: Branching().half(), {}, "is torch.float16: expected float32"),
        ("cnn", {}, 'in the settings: {"model": {"name": "cnn"}}'),
        (lambda width: Branching(width), {}, "needs the argument 'width'"),
        (nn.LSTM, {}, "cannot be made"),
        (
            lambda: nn.Sequential(nn.Flatten(), spectral_norm(nn.Linear(60, 3))),
            {},
            r"changes its buffer '1\.parametrizations",
        ),
        (3, {}, "expected an nn.Module"),
        (lambda: 3, {}, "expected an nn.Module"),
        (
            lambda: nn.Sequential(
                nn.Flatten(), nn.BatchNorm1d(60, momentum=None), nn.Linear(60, 3)
            ),
            {},
            "BatchNorm without running moments",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(2, 3, (5, 6)), nn.Flatten(), nn.Identity()),
            {"head_layer": "0"},
            "expected a vector for each",
        ),
    ],
)
def test_what_cannot_be_used_is_told(module: Any, settings: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        give(module, SMALL, 3, settings=settings)


def test_probabilities_are_taken_with_a_warning() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(60, 3), nn.Softmax(-1))

    with pytest.warns(UserWarning, match="leave the softmax out"):
        give(model, SMALL, 3)


def test_a_module_that_was_not_given_is_asked_for_and_never_imported() -> None:
    with pytest.raises(UserError, match="--module os:system"):
        AnyModule("os:system", "0" * 64, "fc", "", 5).program()
    for source in ("__main__:Net", "train.py:<lambda>", "small"):
        with pytest.raises(UserError, match=r"--module FILE\.py:NAME"):
            AnyModule(source, "0" * 64, "fc", "", 5).program()
    model = give(Branching, SMALL, 3, "changed")
    give_again(model, Branching, SMALL, 3)
    with pytest.raises(UserError, match="not the one that the run began with"):
        give_again(replace(model, sha256="0" * 64), Branching, SMALL, 3)
    with pytest.raises(UserError, match="give it with --module"):
        AnyModule()
