"""A federation of processes decides and learns, byte for byte, what the simulator does."""

from __future__ import annotations

import importlib
import json
from dataclasses import replace
from typing import Any

import pytest

from fedrfq.experiment import from_table
from fedrfq.files import tensors, toml
from fedrfq.node.ops.local_cluster import Cluster, Size

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
    "checkpoint=1",
]


@pytest.fixture(scope="module")
def parity() -> Any:
    return importlib.import_module("parity")


@pytest.fixture(scope="module")
def cluster(parity: Any, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    folder = tmp_path_factory.mktemp("parity") / "federation"
    found: Cluster = parity.held(folder, Size(4, 3, 2), _SETS, 240.0)
    return found


def test_a_real_run_is_the_simulated_one_byte_for_byte(parity: Any, cluster: Cluster) -> None:
    found = parity.compared(cluster)
    assert (found["servers"], found["clients"], found["rounds"]) == (4, 3, 2)
    assert all(found.values()), found


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
    other, rounds = parity.simulated(replace(experiment, seed=experiment.seed + 1))
    assert [one.outcome for one in rounds] != [one.outcome for one in real]
    assert parity.models(cluster, other) == [False] * 3
    without = [replace(one, uploads={k: v for k, v in one.uploads.items() if k}) for one in real]
    assert list(parity.decided(experiment, federation.task.classes, without)) != [
        one.outcome for one in real
    ]


def test_each_client_has_seen_the_same_as_the_servers(parity: Any, cluster: Cluster) -> None:
    for client in range(3):
        own = cluster.own(~client)
        lines = [json.loads(line) for line in (own / "rounds.jsonl").read_text().splitlines()]
        assert [line["round"] for line in lines] == [1, 2]
        # Taught by the others, it tells classes that it does not hold.
        assert all(line["accuracy_unheld"] > 0 for line in lines)
        assert tensors.load(own / "model" / "model.safetensors")[1]["round"] == "2"
