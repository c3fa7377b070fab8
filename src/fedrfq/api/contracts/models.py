"""The contracts of models, poolings and public maps: shapes, seeds, and each client on its own."""

from __future__ import annotations

import torch
from torch import Tensor

from fedrfq.api.contracts.contract import expect
from fedrfq.api.contracts.example_runs import pictures, rows_of, run, tiny
from fedrfq.errors import UserError
from fedrfq.models import MODELS, Model
from fedrfq.models.public_maps import PUBLIC_MAPS
from fedrfq.models.stacked import Batched, Grouped, Params, stack
from fedrfq.prototypes.fixed_point import MAX_VALUES
from fedrfq.prototypes.pooling import Pool

CLASSES = 7
SHAPE = (3, 32, 32)
# Parameters of one client: more do not fit into memory for some dozen clients.
_MAX_PARAMETERS = 100_000_000


def drawn(*shape: int, seed: int = 1) -> Tensor:
    """Return random numbers in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _start(model: Model, clients: int) -> Params:
    made = [model.start(SHAPE, CLASSES, torch.Generator().manual_seed(k)) for k in range(clients)]
    return {name: p.double() for name, p in stack(made).items()}


# Models


def a_start_is_its_seeds(name: str) -> None:
    """The same seed starts from the same parameters; there are some, and not too many."""
    one, other = (
        MODELS[name]().start(SHAPE, CLASSES, torch.Generator().manual_seed(3)) for _ in range(2)
    )
    expect(one, "it has no parameters")
    for key, p in one.items():
        expect(torch.equal(p, other[key]), f"{key} starts differently: draw from the generator")
        expect(p.isfinite().all(), f"{key} starts with numbers that are not finite")
    total = sum(p.numel() for p in one.values())
    expect(total <= _MAX_PARAMETERS, f"{total:,} parameters are more than {_MAX_PARAMETERS:,}")


def the_head_is_what_classes_decide(name: str) -> None:
    """The decision layer's parameters are those that have a row for each class, and no others."""
    model = MODELS[name]()
    params = model.start(SHAPE, CLASSES, torch.Generator().manual_seed(0))
    marked = [key for key in params if model.head(key)]
    expected = [key for key, p in params.items() if len(p) == CLASSES]
    expect(marked and marked == expected, f"head() marks {marked}, classes have {expected}")


def features_and_logits_have_their_shapes(name: str) -> None:
    """It returns K × B × features() features and K × B × classes logits, and changes no input."""
    model = MODELS[name]()
    params = _start(model, 2)
    x_KBCHW = drawn(2, 3, *SHAPE)
    given = {**params, "the images": x_KBCHW}
    before = {key: t.clone() for key, t in given.items()}
    c_KBD, logits_KBJ = model.forward(Grouped(), params, x_KBCHW, None)
    length = model.features()
    expect(0 < length <= MAX_VALUES, f"features() is {length}: 1 to {MAX_VALUES} can be sent")
    expect(c_KBD.shape == (2, 3, length), f"features have the shape {tuple(c_KBD.shape)}")
    expect(logits_KBJ.shape == (2, 3, CLASSES), f"logits have shape {tuple(logits_KBJ.shape)}")
    expect(c_KBD.isfinite().all() and logits_KBJ.isfinite().all(), "an output is not finite")
    for key, t in before.items():
        expect(torch.equal(given[key], t), f"forward() changes {key} in place")


def clients_are_computed_as_each_alone(name: str) -> None:
    """Three clients together, in both layouts, are what each is alone."""
    model = MODELS[name]()
    params = _start(model, 3)
    x_KBCHW = drawn(3, 2, *SHAPE)
    for layout in (Grouped(), Batched()):
        together = model.forward(layout, params, x_KBCHW, None)
        for k in range(3):
            one = slice(k, k + 1)
            alone = model.forward(Grouped(), rows_of(params, one), x_KBCHW[one], None)
            for whole, own in zip(together, alone, strict=True):
                far = float((whole[one] - own).abs().max())
                where = type(layout).__name__.lower()
                expect(far <= 1e-6, f"client {k} is off by {far:.1e} beside others ({where})")


def a_model_trains(name: str) -> None:
    """A round of training moves every parameter, and its loss is finite."""
    experiment = tiny(method={"name": "local"}, model={"name": name}, clients=2)
    dataset = pictures(*SHAPE[1:2], SHAPE[0])
    start = experiment.model.start(SHAPE, 5, torch.Generator().manual_seed(0))
    state, ((outcome,),) = run([experiment], dataset, 1)
    loss = outcome.record.loss
    expect(loss > 0 and loss < float("inf"), f"the loss is {loss}")
    expect(state.params[0].keys() == start.keys(), "training changes which parameters there are")


MODEL_CHECKS = (
    a_start_is_its_seeds,
    the_head_is_what_classes_decide,
    features_and_logits_have_their_shapes,
    clients_are_computed_as_each_alone,
    a_model_trains,
)


# Poolings


def any_leading_shape_is_pooled(name: str) -> None:
    """Prototypes of any leading shape are pooled to the size that the settings say."""
    pool = Pool(name)
    for shape in [(50,), (0, 50), (4, 50), (5, 4, 50), (2, 0, 3, 50)]:
        expected = (*shape[:-1], pool.size(50))
        found = tuple(pool(drawn(*shape)).shape)
        expect(found == expected, f"{shape} is pooled to {found} instead of {expected}")


def pooling_is_pure(name: str) -> None:
    """The same prototypes are pooled to the same bytes, row by row, and stay as they are."""
    c = drawn(4, 50)
    before = c.clone()
    pooled = Pool(name)(c)
    expect(torch.equal(c, before), "it changes the prototypes in place")
    expect(torch.equal(pooled, Pool(name)(c)), "pooled again, they are others")
    alone = torch.stack([Pool(name)(row) for row in c])
    expect(torch.allclose(pooled, alone, rtol=1e-12), "a row is pooled otherwise beside others")


def one_by_one_is_the_identity(name: str) -> None:
    """Windows of one value leave the values as they are."""
    for rows in (1, 2, 5):
        c = drawn(4, 50)
        far = float((Pool(name, rows=rows, kernel=1)(c) - c).abs().max())
        expect(far <= 1e-15, f"with kernel 1 a value changes by {far:.1e}")


def gradients_are_finite(name: str) -> None:
    """Gradients reach the prototypes and are finite, also of large values; types are kept."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        c = (drawn(8, 50) * 100).to(dtype).requires_grad_()
        pooled = Pool(name)(c)
        expect(pooled.dtype == dtype, f"{dtype} becomes {pooled.dtype}")
        torch.autograd.backward(pooled.sum())
        grad = c.grad
        expect(grad is not None and grad.any(), "no gradient reaches the prototypes")
        expect(grad is not None and grad.isfinite().all(), f"a gradient in {dtype} is not finite")


POOLING_CHECKS = (
    any_leading_shape_is_pooled,
    pooling_is_pure,
    one_by_one_is_the_identity,
    gradients_are_finite,
)


# Public maps


def a_map_is_a_function_of_the_image(name: str) -> str | None:
    """The same images have the same vectors, each its own, of the length that the map says."""
    chosen = PUBLIC_MAPS[name]()
    if not chosen.used:
        return "there is no map"
    images = torch.from_numpy(pictures(32, 3).train_x[:4])
    try:
        vectors = chosen.raw(images)
    except UserError as error:
        return f"not here: {error}"
    expect(vectors.shape == (4, chosen.width()), f"vectors have shape {tuple(vectors.shape)}")
    expect(vectors.isfinite().all(), "a vector is not finite")
    expect(torch.equal(vectors, chosen.raw(images)), "the same images have other vectors")
    far = float((vectors[:1] - chosen.raw(images[:1])).abs().max())
    limit = 1e-4 * float(vectors.abs().max())
    expect(far <= limit, "an image's vector depends on others beside it")
    return None


PUBLIC_MAP_CHECKS = (a_map_is_a_function_of_the_image,)
