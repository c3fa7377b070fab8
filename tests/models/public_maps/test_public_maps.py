"""Public maps: the same for everybody, of a norm that everybody knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedrfq.data import load
from fedrfq.errors import UserError
from fedrfq.models.public_maps import PUBLIC_MAPS, RandomMap, ResNet18Map
from fedrfq.models.public_maps.public_map import drawn

SHAPE = (1, 28, 28)


def _images(number: int = 20) -> torch.Tensor:
    return torch.from_numpy(load("mnist5k").test_x[:number])


def test_filters_are_the_same_on_every_machine() -> None:
    # Numbers from SHAKE-256, written down once: another library version must not change them.
    assert drawn("filters", (5,)).tolist() == [-111, 29, -55, -67, -59]


def test_another_seed_or_size_is_another_map() -> None:
    names = {
        RandomMap().identity(),
        RandomMap(filter_seed=1).identity(),
        RandomMap(second=64).identity(),
        RandomMap(projection=64).identity(),
        RandomMap(centred=True).identity(),
        RandomMap(centred=True, projection=64).identity(),
        ResNet18Map().identity(),
        ResNet18Map(size=64).identity(),
    }
    assert len(names) == 8
    first = RandomMap().raw(_images())
    assert not torch.allclose(first, RandomMap(filter_seed=1).raw(_images()))


@pytest.mark.parametrize("map_", [RandomMap(), RandomMap(projection=64), RandomMap(norm=2.0)])
def test_every_sample_has_the_agreed_norm(map_: RandomMap) -> None:
    vectors = map_.scaled(map_.raw(_images()))
    assert vectors.shape == (20, map_.values())
    norms = torch.linalg.vector_norm(vectors, dim=1)
    assert torch.allclose(norms, torch.full((20,), map_.limit()))


def test_an_empty_image_has_the_vector_0_and_not_nan() -> None:
    map_ = RandomMap()
    nothing = map_.scaled(map_.raw(torch.zeros(1, *SHAPE, dtype=torch.uint8)))
    assert not nothing.any()


def test_a_centred_map_subtracts_the_mean_of_a_vectors_values_by_hand() -> None:
    raw = torch.tensor([[1.0, 1.0, 3.0, 3.0]]).repeat(1, 128)
    # Less their mean 2 they are −1 and 1, of the norm √512 = C already.
    centred = RandomMap(centred=True).scaled(raw)
    assert torch.allclose(centred[0, :4], torch.tensor([-1.0, -1.0, 1.0, 1.0]))


def test_a_projection_keeps_most_of_the_angles() -> None:
    images = _images(100)
    full = RandomMap().scaled(RandomMap().raw(images))
    short_map = RandomMap(projection=256)
    short = short_map.scaled(short_map.raw(images))
    cosines = [z @ z.T / (z @ z.T).diagonal()[0] for z in (full, short)]
    assert (cosines[0] - cosines[1]).abs().mean() < 0.08


def test_every_map_says_who_vouches_for_it_and_under_which_licence() -> None:
    for name, kind in PUBLIC_MAPS.items():
        if name != "none":
            assert kind.source
            assert kind.licence


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"bits": 3}, "public.bits must be 4 to 24"),
        ({"norm": 0.0}, "public.norm must be above 0"),
        ({"projection": -1}, "public.projection must be 0 to the map's values, not -1"),
        ({"projection": 513}, "public.projection must be 0, or at most the 512"),
        ({"moments": "some"}, "public.moments must be one of"),
        ({"moments": "full"}, "needs public.bits of 12 or more"),
        ({"classifier": "svm"}, "public.classifier must be one of"),
        ({"shrinkage": 1.5}, "public.shrinkage must be 0 to 1"),
        ({"threshold": 1.0}, "public.threshold must be"),
        ({"every": -1}, "public.every must be 0 or more"),
        ({"first": 0}, "public.first must be 1 to 2048"),
        ({"second": 100_000}, "public.second must be 1 to 2048"),
        ({"filter_seed": -1}, "public.filter_seed must be 0 or more"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        RandomMap(**settings)  # type: ignore[arg-type]


def test_vectors_are_as_long_for_images_of_any_size_and_colour() -> None:
    map_ = RandomMap()
    for shape in ((1, 14, 14), (1, 28, 28), (3, 32, 32), (3, 40, 64)):
        images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
        assert map_.raw(images).shape == (2, map_.values())


def test_small_images_are_refused() -> None:
    with pytest.raises(UserError, match="at least 14 pixels a side, but these have 12"):
        RandomMap().raw(torch.zeros(1, 1, 12, 12, dtype=torch.uint8))


def test_images_of_another_size_than_the_weights_expect_are_refused() -> None:
    with pytest.raises(UserError, match=r"public\.size must be 32 to 512"):
        ResNet18Map(size=16)


def test_classes_lie_apart_on_a_random_map() -> None:
    """The nearest class mean tells three of four digits apart: what the map is for."""
    dataset = load("mnist5k")
    map_ = RandomMap()
    train = map_.scaled(map_.raw(torch.from_numpy(dataset.train_x[::2])))
    test = map_.scaled(map_.raw(torch.from_numpy(dataset.test_x[::4])))
    labels = torch.from_numpy(dataset.train_y[::2])
    means = torch.stack([train[labels == j].mean(0) for j in range(10)])
    guess = torch.cdist(test, means).argmin(1).numpy()
    assert np.mean(guess == dataset.test_y[::4]) > 0.75
