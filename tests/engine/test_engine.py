"""The stacked engine against its slow twin: what stacking and training must not change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrfq.data.client_data import ClientData
from fedrfq.engine import counter_rng, engine
from fedrfq.engine.engine import Engine
from fedrfq.engine.program import Program, TrainingOptions
from fedrfq.engine.schedule import augmented, schedule
from fedrfq.errors import UserError
from fedrfq.methods import METHODS
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.methods.method import Guide
from fedrfq.models import MODELS
from fedrfq.models.cnn import CNN
from fedrfq.models.mlp import MLP
from fedrfq.models.stacked import Layout, Params, TrainingStep, stack
from fedrfq.prototypes.fixed_point import FRACTION_BITS, Globals
from fedrfq.prototypes.pooling import Pool
from support import reference
from support.small import told

CLASSES = 5
TRAIN = TrainingOptions(batch_size=4, momentum=0.7)
# The images are not square, and the last batches of unequal clients are partial. A dropout rate of
# ¾ has a factor that float32 holds exactly. Stock BatchNorm refuses a batch of one, and over two of
# one pixel blows rounding up a billionfold. A model registered beside ours is tested with
# resnet18's settings.
SHAPES = {**dict.fromkeys(MODELS, (3, 32, 32)), "cnn": (1, 20, 24), "mlp": (2, 5, 6)}
COUNTS = {**dict.fromkeys(MODELS, (7, 4, 3)), "cnn": (5, 9, 12, 3), "mlp": (5, 9, 12, 3)}
RATES = {**dict.fromkeys(MODELS, 0.0005), "cnn": 0.05, "mlp": 0.05}
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {} for name in MODELS},
    "cnn": {"drop": 0.75, "channels": 6},
    "mlp": {"width": 30},
}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("local", {}),
    ("fedavg", {}),
    ("fedprox", {"mu": 0.5}),
    ("fedper", {}),
    ("fedrep", {"head_epochs": 2}),
    ("fesem", {"clusters": 2}),
    ("fedproto", {"lam": 0.5}),
    ("fedrfq", {"lam": 0.5, "reduction": "samples"}),
    ("fedrfq", {"lam": 0.5, "reduction": "classes"}),
    ("fedrfq-lean", {"lam": 0.5, "power": 1, "separation": 0.75, "temperature": 0.5}),
    ("fedrfq-lean", {"lam": 0.5, "power": 2, "separation": 0.25, "temperature": 0.125}),
]
ALIKE = [
    ("fedavg", {}),
    ("fedper", {}),
    ("fesem", {"clusters": 2}),
]  # they train as "local" does: once will do
SLOW = [
    ("fedprox", {"mu": 0.5}),
    ("fedrep", {"head_epochs": 2}),
    ("fedrfq", {"lam": 0.5, "reduction": "classes"}),
]


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(name: str, counts: Sequence[int], augment: bool = False) -> ClientData:
    """Return random images in float64; clients share some, and rows are padded with sample 0."""
    x = torch.randn(16, *SHAPES[name], dtype=torch.float64, generator=generator())
    y = torch.randint(CLASSES, (16,), generator=generator())
    rows = torch.zeros(len(counts), max(counts), dtype=torch.int64)
    for k, (row, count) in enumerate(zip(rows, counts, strict=True)):
        row[:count] = torch.randperm(16, generator=generator(k))[:count]
    if augment:
        black = torch.linspace(-2, -1, SHAPES[name][0], dtype=torch.float64)
    else:
        black = None
    return ClientData(x, y, rows, tuple(counts), black)


def program(
    name: str, method: str = "local", options: dict[str, Any] | None = None, epochs: int = 1
) -> Program:
    kind = METHODS[method]
    pool = Pool(**kind.pool)
    return Program(
        MODELS[name](**OPTIONS[name]),
        kind(**(options or {})),
        pool,
        replace(TRAIN, epochs=epochs, lr=RATES[name]),
    )


def start(program: Program, name: str, clients: int) -> Params:
    models = [program.model.start(SHAPES[name], CLASSES, generator(k)) for k in range(clients)]
    return {key: p.double() for key, p in stack(models).items()}


def some_globals(program: Program, without: Sequence[int] = (1,)) -> Globals:
    """Global prototypes of all classes but some."""
    size = program.pool.size(program.model.features())
    values = torch.randint(-(2**15), 2**15, (CLASSES, size), generator=generator()).numpy()
    present = np.ones(CLASSES, np.bool_)
    present[list(without)] = False
    return Globals(present, np.where(present[:, None], values, 0))


def keys(clients: int, round_: int = 1) -> Tensor:
    return counter_rng.key(7, torch.arange(clients), round_)


def trained(
    program: Program, own: ClientData, params: Params, guide: Guide, keys_K: Tensor
) -> tuple[Params, Tensor]:
    return Engine(program, own, own).train(params, guide, keys_K, range(len(own.counts)))


def of(own: ClientData, clients: Sequence[int]) -> ClientData:
    counts = tuple(own.counts[k] for k in clients)
    return replace(own, index_KN=own.index_KN[list(clients)][:, : max(counts)], counts=counts)


def rows(tensors: dict[str, Tensor], clients: Sequence[int]) -> dict[str, Tensor]:
    return {name: t[list(clients)] for name, t in tensors.items()}


def same(found: Params, expected: Params) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def twin(program: Program, name: str, params: Params, client: int) -> torch.nn.Module:
    sizes = {key: value for key, value in OPTIONS[name].items() if key != "drop"}
    model = reference.STOCK[name](SHAPES[name], CLASSES, **sizes).double()
    model.load_state_dict({key: p[client] for key, p in params.items()}, strict=False)
    return model


@pytest.fixture
def one_thread() -> Iterator[None]:
    """All clients in one shard."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_what_comes_with_the_program_has_a_slow_twin() -> None:
    """What is registered beside it may have none, and is then not compared with one."""
    assert {"cnn", "mlp", "resnet18"} <= reference.STOCK.keys() <= MODELS.keys()
    compared = {method for method, _ in VARIANTS}
    assert compared == reference.LOSSES.keys()
    assert compared <= METHODS.keys()


CASES = [
    pytest.param(
        name, *variant, epochs, augment, id=f"{name}-{variant[0]}{i}-{epochs}{'-augment' * augment}"
    )
    for name in reference.STOCK
    for i, variant in enumerate(VARIANTS)
    for epochs, augment in [(1, False), (2, True)]
    if name != "resnet18" or (variant in SLOW and augment)
    if variant not in ALIKE or (name == "mlp" and augment)
]


@pytest.mark.parametrize(("name", "method", "options", "epochs", "augment"), CASES)
def test_training_is_the_plain_loop(
    name: str, method: str, options: dict[str, Any], epochs: int, augment: bool
) -> None:
    counts = COUNTS[name]
    one = program(name, method, options, epochs)
    own = shares(name, counts, augment)
    params = start(one, name, len(counts))
    known = some_globals(one)
    new, losses_K3 = trained(one, own, params, told(one.method, known, params), keys(len(counts)))

    rate, units = one.model.dropout()
    settings = reference.Settings(
        epochs, TRAIN.batch_size, RATES[name], TRAIN.momentum, rate, units, own.black_C
    )
    vectors = torch.from_numpy(known.values_JV).double() / 2**FRACTION_BITS
    prototypes = {j: vectors[j] for j in np.flatnonzero(known.present_J).tolist()}
    for k, count in enumerate(counts):
        model = twin(one, name, params, k)
        held = own.index_KN[k, :count]
        key = keys(len(counts))[k]
        losses_3 = reference.train(
            model, own.x[held], own.y[held], key, settings, method, options, prototypes
        )
        same({key: p[k] for key, p in new.items()}, reference.state(model))
        torch.testing.assert_close(losses_K3[k].double(), losses_3, rtol=1e-5, atol=1e-6)


def test_momentum_starts_afresh_every_round() -> None:
    own = shares("mlp", (5, 9))
    one = program("mlp")
    params = start(one, "mlp", 2)
    whole = Engine(one, own, own)
    models = [twin(one, "mlp", params, k) for k in range(2)]
    settings = reference.Settings(1, TRAIN.batch_size, RATES["mlp"], TRAIN.momentum)
    for round_ in (1, 2, 3):
        params, _ = whole.train(params, {}, keys(2, round_), [0, 1])
        for k, model in enumerate(models):
            held = own.index_KN[k, : own.counts[k]]
            reference.train(
                model, own.x[held], own.y[held], keys(2, round_)[k], settings, "local", {}, {}
            )
            same({key: p[k] for key, p in params.items()}, reference.state(model))


@pytest.fixture(params=MODELS)
def stacked(request: pytest.FixtureRequest) -> tuple[Program, ClientData, Params, Guide, Tensor]:
    """FedRFQ with every model: what is trained, on what, from where, told what, with which keys."""
    name = request.param
    counts = COUNTS[name]
    one = program(name, "fedrfq", {"reduction": "classes"})
    params = start(one, name, len(counts))
    guide = told(one.method, some_globals(one), params)
    return one, shares(name, counts, augment=True), params, guide, keys(len(counts))


def test_a_client_alone_is_the_client_among_others(
    stacked: tuple[Program, ClientData, Params, Guide, Tensor],
) -> None:
    one, own, params, guide, keys_K = stacked
    together, losses_K3 = trained(one, own, params, guide, keys_K)
    for k in range(len(own.counts)):
        alone, losses_13 = trained(
            one, of(own, [k]), rows(params, [k]), rows(guide, [k]), keys_K[[k]]
        )
        same(alone, rows(together, [k]))
        torch.testing.assert_close(losses_13, losses_K3[[k]])


def test_the_order_of_clients_is_nothing_to_them(
    stacked: tuple[Program, ClientData, Params, Guide, Tensor],
) -> None:
    one, own, params, guide, keys_K = stacked
    turned = list(range(len(own.counts)))[::-1]
    together, losses_K3 = trained(one, own, params, guide, keys_K)
    found, found_K3 = trained(
        one, of(own, turned), rows(params, turned), rows(guide, turned), keys_K[turned]
    )
    same(found, rows(together, turned))
    torch.testing.assert_close(found_K3, losses_K3[turned])


def test_two_runs_stacked_are_each_alone(one_thread: None) -> None:
    one = program("cnn", "fedrfq")
    own = shares("cnn", COUNTS["cnn"])
    params = start(one, "cnn", 4)
    first = told(one.method, some_globals(one), params)
    second = told(FedRFQ(lam=0.25), some_globals(one, without=(0, 2)), params)
    both = replace(own, index_KN=own.index_KN.repeat(2, 1), counts=own.counts * 2)
    guide = {name: torch.cat([first[name], second[name]]) for name in first}
    keys_K = torch.cat([keys(4, 1), keys(4, 2)])
    found, losses_K3 = trained(
        one, both, {name: torch.cat([p, p]) for name, p in params.items()}, guide, keys_K
    )
    for half, heard in ((range(4), first), (range(4, 8), second)):
        alone, alone_K3 = trained(one, own, params, heard, keys_K[list(half)])
        same(rows(found, half), alone)
        torch.testing.assert_close(losses_K3[list(half)], alone_K3)


@pytest.fixture
def cores(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads for the engine, which deals its clients to them."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("cores", [1, 2, 3], indirect=True)
def test_shards_are_nothing_to_clients(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one = program("cnn", epochs=2)
    own = shares("cnn", (5, 9, 12, 3, 7))
    params = start(one, "cnn", 5)
    expected, expected_K3 = trained(one, own, params, {}, keys(5))
    monkeypatch.setattr(engine, "_CPU_CLIENTS", 1)
    found, found_K3 = trained(one, own, params, {}, keys(5))
    same(found, expected)
    torch.testing.assert_close(found_K3, expected_K3)
    assert torch.get_num_threads() == cores


@dataclass(frozen=True)
class Spy(CNN):
    """A CNN that keeps what each training step is given."""

    seen: ClassVar[list[tuple[Tensor, TrainingStep]]] = []

    def forward(
        self, layout: Layout, params: Params, x_KBCHW: Tensor, step: TrainingStep | None
    ) -> tuple[Tensor, Tensor]:
        assert step is not None
        self.seen.append(
            (x_KBCHW.clone(), TrainingStep(step.weight_KB.clone(), step.keep_KBU.clone()))
        )  # type: ignore[union-attr]
        return super().forward(layout, params, x_KBCHW, step)


def test_batches_and_dropout_are_the_same_bits_in_any_company(one_thread: None) -> None:
    one = replace(program("cnn", epochs=2), model=Spy(channels=6))
    own = shares("cnn", (5, 9, 12, 3), augment=True)
    params = start(one, "cnn", 4)
    Spy.seen.clear()
    trained(one, own, params, {}, keys(4))
    together = list(Spy.seen)
    assert [len(x) for x, _ in together] == [
        4,
        4,
        3,
        3,
        2,
        2,
    ]  # steps of 12, 9, 5 and 3 samples in 2 epochs
    for place, k in enumerate([2, 1, 0, 3]):  # the longest first
        Spy.seen.clear()
        trained(one, of(own, [k]), rows(params, [k]), {}, keys(4)[[k]])
        assert len(Spy.seen) == 2 * -(-own.counts[k] // 4)
        for (x, step), (all_x, all_steps) in zip(Spy.seen, together, strict=False):
            real = step.weight_KB[0] == 1
            among_all = all_steps.weight_KB[place] == 1
            assert real.sum() == among_all.sum()
            assert torch.equal(x[0][real], all_x[place][among_all])
            assert torch.equal(step.keep_KBU[0][real], all_steps.keep_KBU[place][among_all])  # type: ignore[index]


def test_an_epoch_shows_every_sample_once(one_thread: None) -> None:
    one = replace(program("cnn", epochs=2), model=Spy(channels=6))
    own = shares("cnn", (9,))
    Spy.seen.clear()
    trained(one, own, start(one, "cnn", 1), {}, keys(1))
    shown = torch.cat([x[0][step.weight_KB[0] == 1] for x, step in Spy.seen])
    held = own.x[own.index_KN[0]]
    epochs = [
        [int((held == image).flatten(1).all(1).nonzero()) for image in shown[e * 9 : e * 9 + 9]]
        for e in (0, 1)
    ]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(9))
    assert epochs[0] != epochs[1]


def test_augmentation_by_hand() -> None:
    image = torch.arange(1.0, 21.0).view(1, 1, 1, 4, 5)
    crops = torch.tensor([[[4, 4, 0], [4, 4, 1], [2, 7, 0]]])
    found = augmented(image.expand(1, 3, -1, -1, -1), crops, torch.tensor([-1.0]))[0]
    assert torch.equal(found[0], image[0, 0])
    assert torch.equal(found[1], image[0, 0].flip(2))
    expected = -torch.ones(1, 4, 5)
    expected[:, 2:, :2] = image[0, 0, :, :2, 3:]
    assert torch.equal(found[2], expected)


def test_only_those_who_take_part_are_changed() -> None:
    own = shares("cnn", COUNTS["cnn"])
    one = program("cnn")
    params = start(one, "cnn", 4)
    everyone, losses_K3 = trained(one, own, params, {}, keys(4))
    new, losses_23 = Engine(one, own, own).train(params, {}, keys(4), [3, 1])
    same(rows(new, [1, 3]), rows(everyone, [1, 3]))
    for name, p in new.items():
        assert torch.equal(p[[0, 2]], params[name][[0, 2]])
    torch.testing.assert_close(losses_23, losses_K3[[3, 1]])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", MODELS)
def test_every_method_trains_every_model(name: str, method: str, one_thread: None) -> None:
    """Losses are finite and not zero, inputs are left alone, repetitions give the same bytes."""
    counts = sorted(COUNTS[name], reverse=True)[
        :2
    ]  # the whole in its order: one shard gets just what was given
    one = program(name, method)
    own = shares(name, counts)
    own = replace(own, x=own.x.float())
    params = {key: p.float() for key, p in start(one, name, 2).items()}
    guide = told(one.method, some_globals(one), params)
    given = {
        **params,
        **{f"told {key}": t for key, t in guide.items()},
        "x": own.x,
        "y": own.y,
        "index": own.index_KN,
    }
    before = {key: t.clone() for key, t in given.items()}
    runner = Engine(one, own, own)
    new, losses_K3 = runner.train(params, guide, keys(2), [0, 1])
    again, again_K3 = runner.train(params, guide, keys(2), [0, 1])
    assert losses_K3.isfinite().all()
    assert (losses_K3[:, :2] > 0).all()
    # FedProx's third loss is the way since the round's start: there is one after the first step.
    moved = [method == "fedprox" and count > TRAIN.batch_size for count in counts]
    if one.method.exchanges or method in reference.LOSSES:
        assert (losses_K3[:, 2] > 0).tolist() == [one.method.exchanges or far for far in moved]
    assert all(torch.equal(given[key], t) for key, t in before.items())
    assert not any(p.requires_grad for p in [*params.values(), *new.values()])
    assert all(torch.equal(new[key], p) for key, p in again.items())
    assert torch.equal(losses_K3, again_K3)
    assert all(not torch.equal(new[key][k], p[k]) for key, p in params.items() for k in (0, 1))


@pytest.mark.parametrize("name", reference.STOCK)
def test_features_are_the_stock_models_in_evaluation(name: str) -> None:
    # more than are computed at once, and none at all
    if name == "mlp":
        counts = (3, 70, 0, 65)
    else:
        counts = (3, 5)
    one = program(name)
    own = shares(name, [min(count, 16) for count in counts])
    index = torch.randint(16, (len(counts), max(counts)), generator=generator())
    own = replace(own, index_KN=index, counts=counts)
    params = start(one, name, len(counts))
    if name == "resnet18":
        params, _ = trained(
            one, own, params, {}, keys(len(counts))
        )  # running moments that are not those of the start
    c_KND, logits_KNJ = Engine(one, own, own).features(params, own)
    assert c_KND.shape[:2] == logits_KNJ.shape[:2] == index.shape
    for k, count in enumerate(counts):
        c, logits = twin(one, name, params, k).eval()(own.x[index[k, :count]])
        torch.testing.assert_close(c_KND[k, :count], c, rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(logits_KNJ[k, :count], logits, rtol=1e-6, atol=1e-7)


def test_prediction_is_from_the_unpooled_features() -> None:
    own = shares("cnn", (5, 3))
    found = []
    for pool in (Pool(), Pool(stride=2), Pool("max"), Pool("none")):
        one = Program(CNN(channels=6), FedRFQ(), pool, TRAIN)
        params = start(one, "cnn", 2)
        found.append(Engine(one, own, own).features(params, own))
        batch = one.batch(
            params, own.x[own.index_KN], own.y[own.index_KN], TrainingStep(own.weight_KN(), None)
        )
        assert torch.equal(batch.p_KBV, pool(batch.c_KBD))
        torch.testing.assert_close(batch.c_KBD, found[-1][0])
        torch.testing.assert_close(batch.logits_KBJ, found[-1][1])
    assert all(
        torch.equal(c, found[0][0]) and torch.equal(logits, found[0][1]) for c, logits in found
    )


def test_weights_tell_samples_from_padding() -> None:
    assert shares("mlp", (2, 3, 1)).weight_KN().tolist() == [[1, 1, 0], [1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"lr": 0.0},
        {"lr": -1.0},
        {"momentum": 1.0},
        {"momentum": -0.1},
    ],
)
def test_impossible_training_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"train.{next(iter(wrong))}"):
        TrainingOptions(**wrong)


def test_no_dropout_needs_no_factors(one_thread: None) -> None:
    own = shares("mlp", (5,))
    one = replace(program("mlp"), model=MLP(width=30))
    assert one.model.dropout() == (0.0, 0)
    plain, _ = trained(one, own, start(one, "mlp", 1), {}, keys(1))
    assert all(p.isfinite().all() for p in plain.values())


def test_a_plan_is_made_on_the_device_of_the_samples() -> None:
    """On PyTorch's meta device, where mixing devices is an error as it is on CUDA."""
    meta = torch.device("meta")
    x = torch.zeros(50, 3, 32, 32, device=meta)
    index = torch.zeros(4, 12, dtype=torch.int64, device=meta)
    own = ClientData(
        x,
        torch.zeros(50, dtype=torch.int64, device=meta),
        index,
        (5, 9, 12, 3),
        torch.zeros(3, device=meta),
    )
    plan = schedule(
        program("cnn", epochs=2), own, [2, 1, 0, 3], torch.zeros(4, dtype=torch.int64, device=meta)
    )
    assert [tuple(t.shape) for t in plan.tensors()] == [
        (6, 4, 4),
        (6, 4, 4),
        (6, 4, 4, 56),
        (6, 4, 4, 3),
    ]
    assert all(t.device == meta for t in plan.tensors())
