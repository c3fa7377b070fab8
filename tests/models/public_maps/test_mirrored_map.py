"""A mirrored map: the mean of an image's vector and its mirror image's, for all who take part.

ImageNet's weights are random ones here, which need no download.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedrfq.data import Dataset, weights
from fedrfq.experiment import Experiment
from fedrfq.flower.shard import Shard, ShardData
from fedrfq.learning.draws import deal
from fedrfq.learning.public.exchange import public_task
from fedrfq.learning.round_loop import RoundLoop
from fedrfq.models.public_maps import ResNet18Map
from fedrfq.models.resnet18 import ResNet18
from fedrfq.node import local_dataset
from fedrfq.node.local_dataset import LocalDataset
from fedrfq.node.participant import Participant
from fedrfq.prototypes.fixed_point import Globals
from support.small import CPU, tiny

WEIGHTS_SHA256 = "0bad03605524bcaef08e2368324b8efc06a4508a5213dbb1d16cf5aec983cb2c"


@pytest.fixture(autouse=True)
def _random_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = ResNet18().start((3, 32, 32), 10, torch.Generator().manual_seed(0))
    monkeypatch.setattr(weights, "load_weights", lambda name: stored)
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))


def test_an_image_and_its_mirror_image_have_the_mean_of_their_vectors() -> None:
    images_NCHW = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    plain = ResNet18Map(size=32)
    mirrored = ResNet18Map(size=32, mirrored=True)
    one, other = plain.raw(images_NCHW), plain.raw(images_NCHW.flip(-1))
    assert not torch.allclose(one, other)
    assert torch.allclose(mirrored.raw(images_NCHW), (one + other) / 2)
    assert torch.allclose(mirrored.raw(images_NCHW.flip(-1)), (one + other) / 2)


def test_it_is_another_map_and_maps_of_before_keep_their_names() -> None:
    assert ResNet18Map().identity() == f"resnet18-128:{WEIGHTS_SHA256}"
    mirrored = ResNet18Map(size=160, mirrored=True)
    assert mirrored.identity() == f"resnet18-160.mirrored:{WEIGHTS_SHA256}"
    # The longest name there is fits into federation.toml.
    longest = ResNet18Map(size=224, mirrored=True, centred=True, projection=512)
    task = public_task(longest, 10)
    assert task is not None
    assert task.map == longest.identity()


def test_clients_of_a_run_of_a_network_and_on_flower_send_the_same(
    mnist: Dataset, tmp_path: Path
) -> None:
    experiment = tiny(
        clients=2,
        method={"name": "local"},
        public={"name": "resnet18", "size": 32, "mirrored": True},
        train={"alone": True},
    )
    loop = RoundLoop([experiment], mnist, CPU)
    _, outcomes = loop.advance(loop.start())
    expected = outcomes[0].sent.encoded(1)
    nothing = Globals.none(10, experiment.prototype_size())
    for k in range(2):
        local = local_dataset.share(experiment, k, mnist)
        on_a_network = Participant(experiment, k, local, CPU, tmp_path / str(k))
        assert on_a_network.train(1, nothing) == expected[k]
        assert _on_flower(experiment, k, mnist, nothing) == expected[k]


def _on_flower(experiment: Experiment, k: int, dataset: Dataset, nothing: Globals) -> bytes:
    local = LocalDataset(dataset, deal(experiment, dataset).only([k]))
    shard = Shard(experiment, (k,), ShardData.own(local), CPU)
    return shard.train((k,), shard.start((k,)), 1, nothing).contents[k]
