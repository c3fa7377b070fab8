"""A federation of processes decides and learns, byte for byte, what the simulator does.

Its clients add noise for privacy, and one of them dies after it has drawn some.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedrfq.experiment import from_table
from fedrfq.files import tensors, toml
from fedrfq.node.ops.local_cluster import Cluster, Size
from fedrfq.privacy.drawn_uploads import DrawnUploads, UploadKey
from fedrfq.prototypes.fixed_point import decode

_SETS = [
    "partition.ways=3",
    "partition.spread=1",
    "partition.shots=7",
    "partition.test_shots=5",
    "detector.name=adaptive",
    # The first round exchanges statistics on a public map, the second one prototypes.
    "public.name=random",
    "public.first=8",
    "public.second=4",
    "privacy.noise=0.25",
    "checkpoint=1",
]
_DIES = 1


@pytest.fixture(scope="module")
def parity() -> Any:
    return importlib.import_module("parity")


@pytest.fixture(scope="module")
def mortal(parity: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("parity") / "federation"
    _, mortal = parity.held(folder, Size(4, 3, 2), _SETS, 240.0, [_DIES])
    return mortal


@pytest.fixture(scope="module")
def cluster(mortal: Any) -> Cluster:
    found: Cluster = mortal.cluster
    return found


def test_a_real_run_is_the_simulated_one_byte_for_byte(parity: Any, cluster: Cluster) -> None:
    found = parity.compared(cluster)
    assert (found["servers"], found["clients"], found["rounds"]) == (4, 3, 2)
    assert all(found.values()), found


def test_what_a_client_drew_before_it_was_killed_is_what_counts(
    parity: Any, mortal: Any, cluster: Cluster
) -> None:
    """It was killed between the draw and the signature, drew nothing again, and the log holds."""
    (path,) = mortal.drawn
    upload = DrawnUploads(path.parent).get(UploadKey(cluster.federation.roster.run.hex(), 1, 0))
    assert upload is not None
    task = cluster.federation.task.public
    assert task is not None
    real = parity.recorded(cluster.own(0) / "bodies.bin", cluster.federation.roster.run)
    # All but the number of the client, which in its own folder is the first.
    form = (task.classes, task.values, task.precision)
    _, sender, *certified = decode(real[0].uploads[_DIES], *form)
    _, _, *drawn = decode(upload.content, *form)
    assert sender == _DIES
    assert np.array_equal(certified[0], drawn[0])
    assert np.array_equal(certified[1], drawn[1])
    found = parity.survived(mortal)
    assert found.pop("noise that it names")["noise"] == 0.25
    assert list(found.values()) == [1, 1, True, [1, 2]]


def test_a_second_draw_would_be_seen(mortal: Any) -> None:
    (path,) = mortal.drawn
    content = path.read_bytes()
    for other in (path, path.with_name("ff-1-0.upload")):
        other.write_bytes(content + b" ")
        assert not mortal.nothing_redrawn()
        if other != path:
            other.unlink()
        path.write_bytes(content)
    assert mortal.nothing_redrawn()


def test_the_comparison_sees_a_difference(parity: Any, cluster: Cluster) -> None:
    """The comparison is not empty, and it notices another seed or a missing upload."""
    federation = cluster.federation
    assert federation.network is not None
    experiment = from_table(toml.strict(federation.network.experiment))
    real = parity.recorded(cluster.own(0) / "bodies.bin", federation.roster.run)
    assert [len(one.uploads) for one in real] == [3, 3]
    # All parts but the successor, as nothing was changed.
    assert all(len(part) > 0 for one in real for part in one.outcome[:-1])
    assert not any(one.outcome.successor for one in real)
    other, rounds = parity.simulated(cluster, replace(experiment, seed=experiment.seed + 1))
    assert [one.outcome for one in rounds] != [one.outcome for one in real]
    assert parity.models(cluster, other) == [False] * 3
    without = [replace(one, uploads={k: v for k, v in one.uploads.items() if k}) for one in real]
    assert list(parity.decided(experiment, federation.task.classes, without)) != [
        one.outcome for one in real
    ]


def test_each_client_has_seen_the_same_as_the_servers(parity: Any, cluster: Cluster) -> None:
    unheld = []
    for client in range(3):
        own = cluster.own(~client)
        lines = [json.loads(line) for line in (own / "rounds.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2]
        unheld.append(min(line["accuracy_unheld"] for line in lines))
        assert tensors.load(own / "model" / "model.safetensors")[1]["round"] == "2"
    # Taught by the others, they tell classes that they do not hold; noise can hide them from one.
    assert max(unheld) > 0
