"""Experiments: where settings come from, reading back what was written, and every refusal."""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedrfq.committee import COMMITTEES, Direct
from fedrfq.data import DATASETS, Dataset
from fedrfq.data.partition import PARTITIONS, Classes, Iid
from fedrfq.engine.program import TrainingOptions
from fedrfq.errors import UserError
from fedrfq.experiment import Cohort, Data, Experiment, from_table, load, name_of
from fedrfq.files import toml
from fedrfq.learning.round_loop import deal
from fedrfq.methods import METHODS
from fedrfq.methods.fedproto import FedProto
from fedrfq.methods.fedrfq import FedRFQ
from fedrfq.models import MODELS
from fedrfq.models.cnn import CNN
from fedrfq.models.mlp import MLP
from fedrfq.models.public_maps import PUBLIC_MAPS
from fedrfq.models.resnet18 import ResNet18
from fedrfq.prototypes.pooling import POOLS, Pool
from fedrfq.robust.attacks import ATTACKS
from fedrfq.robust.detectors import DETECTORS
from support.paths import EXAMPLES

SWITCHED: dict[str, dict[str, type[Any]]] = {
    "method": METHODS,
    "partition": PARTITIONS,
    "model": MODELS,
    "attack": ATTACKS,
    "detector": DETECTORS,
    "committee": COMMITTEES,
    "public": PUBLIC_MAPS,
}


def write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


# Where settings come from


def test_a_set_wins_over_the_file_the_data_and_the_default(tmp_path: Path) -> None:
    """shots: 100 by default, 20 for mnist5k, 30 in the file, 40 on the command line."""
    path = write(tmp_path, '[data]\nname = "mnist5k"\n[partition]\nshots = 30\n')
    assert Classes().shots == 100
    assert DATASETS["mnist5k"].settings["partition"]["shots"] == 20
    assert load().partition.shots == 20  # type: ignore[union-attr]
    assert load(path).partition.shots == 30  # type: ignore[union-attr]
    assert load(path, ["partition.shots=40"]).partition.shots == 40  # type: ignore[union-attr]
    assert load(path, ["partition.shots=40", "partition.shots=50"]).partition.shots == 50  # type: ignore[union-attr]


def test_top_level_settings_too(tmp_path: Path) -> None:
    path = write(tmp_path, 'rounds = 7\nseed = 1\n[data]\nname = "cifar10"\n')
    assert (Experiment().rounds, from_table({"data": {"name": "cifar10"}}).rounds) == (100, 110)
    assert load(path).rounds == 7
    assert load(path, ["rounds=8"]).rounds == 8
    found = load(path, ["rounds=8", "seed=2"], rounds=9, seed=None)
    assert (found.rounds, found.seed) == (9, 2)


def test_what_suits_the_data_fills_what_is_left_open() -> None:
    found = from_table({"data": {"name": "cifar10"}, "method": {"aggregate": "paper"}})
    assert found.model == ResNet18(weights="imagenet")
    assert found.data == Data("cifar10", augment=True)
    assert found.method == FedRFQ(lam=0.1, aggregate="paper")
    assert found.train == TrainingOptions(batch_size=32)
    assert (found.partition.ways, found.partition.spread) == (3, 1)  # type: ignore[union-attr]
    assert found.name == "cifar10-fedrfq"
    other = from_table({"data": {"name": "cifar10", "augment": False}, "model": {"name": "mlp"}})
    assert other.model == MLP()
    assert not other.data.augment


def test_the_default_is_the_papers_mnist_on_the_data_at_hand() -> None:
    found = load()
    assert (found.clients, found.participation, found.init) == (20, 1.0, "own")
    assert (found.model, found.pool, found.method, found.train) == (
        CNN(),
        Pool(),
        FedRFQ(),
        TrainingOptions(),
    )
    assert found.train == TrainingOptions(epochs=1, batch_size=4, lr=0.01, momentum=0.5)
    assert found.prototype_size() == 24
    assert found.name == "mnist5k-fedrfq"
    assert from_table({"data": {"name": "some/own.npz"}}).name == "own-fedrfq"


def test_methods_that_do_not_pool_need_not_say_so() -> None:
    for method in METHODS:
        found = from_table({"method": {"name": method}})
        assert found.pool.name == {"fedrfq": "softpool", "fedrfq-lean": "avg"}.get(method, "none")
        assert found.prototype_size() == {"fedrfq": 24, "fedrfq-lean": 12}.get(method, 50)


def test_cohorts_are_laid_over_the_model() -> None:
    given = {
        "clients": 5,
        "model": {"hidden": 40},
        "cohorts": [{"clients": 2, "channels": 18}, {"clients": 3}],
    }
    found = from_table(given)
    assert found.models() == (Cohort(2, CNN(channels=18, hidden=40)), Cohort(3, CNN(hidden=40)))
    mixed = from_table(
        {**given, "cohorts": [{"clients": 2, "name": "mlp", "hidden": 40}, {"clients": 3}]}
    )
    assert mixed.models()[0] == Cohort(2, MLP(hidden=40))
    assert load().models() == (Cohort(20, CNN()),)


# Written as it is read

FULL: list[dict[str, Any]] = [
    {},
    *({"method": {"name": name}} for name in METHODS),
    *({"attack": {"name": name, "clients": 3}} for name in ATTACKS),
    *({"detector": {"name": name}} for name in DETECTORS),
    *({"committee": {"name": name}} for name in COMMITTEES),
    *({"public": {"name": name}} for name in PUBLIC_MAPS),
    {"validation": 0.2, "method": {"aggregate": "trimmed"}},
    *({"model": {"name": name}} for name in MODELS),
    *({"partition": {"name": name}} for name in PARTITIONS),
    *({"data": {"name": name}} for name in DATASETS),
    *({"pool": {"name": name}} for name in POOLS),
    {
        "clients": 3,
        "cohorts": [{"clients": 1, "channels": 18}, {"clients": 2, "name": "mlp", "width": 7}],
    },
    {"name": "a name with λ", "participation": 0.1, "train": {"lr": 1e-5}, "method": {"lam": 1e22}},
]


@pytest.mark.parametrize("given", FULL, ids=str)
def test_a_table_is_read_back(given: dict[str, Any]) -> None:
    found = from_table(given)
    text = toml.dump(found.table())
    assert from_table(found.table()) == found
    assert tomllib.loads(text) == found.table()
    assert from_table(tomllib.loads(text)) == found
    assert from_table(tomllib.loads(text)).hash() == found.hash()


def test_a_table_says_everything(tmp_path: Path) -> None:
    """Nothing is left to defaults that a later version may change: every field is there.

    The exceptions are `train.alone` and DP-SGD where they are off, `public` where there is no map,
    what is said of leaving where nobody can, `privacy` where there is no noise, and the form of
    images where there is none: experiments from before them keep their hashes.
    """
    public = ["public.name=random", "public.revocable=true", "public.leave=2:0"]
    public.append("public.centred=true")
    everything = load(
        sets=["train.alone=true", "train.dp_noise=1", *public, "privacy.noise=1", "data.window=0:1"]
    )
    found = everything.table()
    more = {key: found[key] for key in ("train", "public", "privacy", "data")}
    assert toml.merge(load().table(), more) == found
    assert "alone" not in load().table()["train"]
    assert "public" not in load().table()
    assert "privacy" not in load().table()
    assert load().table()["data"] == {"name": "mnist5k", "augment": False}
    assert set(found) == set(vars(load())) - {"cohorts", "track"}
    for section in (
        "data",
        "partition",
        "model",
        "pool",
        "method",
        "train",
        "attack",
        "detector",
        "committee",
        "public",
    ):
        expected = set(vars(getattr(everything, section)))
        assert set(found[section]) == (expected if section == "train" else expected | {"name"})
    path = write(tmp_path, toml.dump(load().table()))
    assert load(path) == load()


@settings(deadline=None)
@given(st.text())
@example("\x7f")
@example("\x00\x1f\u2028\ufeff")
def test_any_name_is_written_as_it_is_read(name: str) -> None:
    assert tomllib.loads(toml.dump({"name": name})) == {"name": name}


@settings(deadline=None)
@given(st.floats(allow_nan=False) | st.integers(-(2**63), 2**63 - 1) | st.booleans())
def test_any_number_is_written_as_it_is_read(number: float) -> None:
    found = tomllib.loads(toml.dump({"a": {"b": number}}))["a"]["b"]
    assert found == number
    assert type(found) is type(number)


def test_a_table_is_no_way_into_the_experiment() -> None:
    found = load()
    same = load()
    table = found.table()
    for section in (
        "data",
        "pool",
        "train",
        "model",
        "method",
        "partition",
        "attack",
        "detector",
        "committee",
    ):
        table[section]["name"] = "changed"
    assert found == same


def test_hashes_tell_experiments_apart() -> None:
    changes = [
        [],
        ["seed=1"],
        ["validation=0.1"],
        ["attack.clients=1"],
        ["detector.name=median"],
        ["method.lam=0.5"],
    ]
    changes += [["model.channels=18"], ["pool.stride=2"], ["train.lr=0.02"]]
    assert len({load(sets=sets).hash() for sets in changes}) == len(changes)


def test_kinds_are_named() -> None:
    assert name_of(METHODS, FedProto()) == "fedproto"
    assert name_of(METHODS, FedRFQ()) == "fedrfq"
    assert name_of(PARTITIONS, Iid()) == "iid"


# --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.5", 0.5),
        ("true", True),
        ('"3"', "3"),
        ("fedproto", "fedproto"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_a_set_takes_a_toml_value_or_a_plain_string(text: str, value: Any) -> None:
    found = toml.assign({"a": {"c": 1}}, f"a.b={text}")
    assert found == {"a": {"c": 1, "b": value}}
    assert type(found["a"]["b"]) is type(value)


def test_sets_leave_the_table_alone() -> None:
    table: dict[str, Any] = {"a": {"b": 1}}
    toml.assign(table, "a.b=2")
    assert table == {"a": {"b": 1}}


@pytest.mark.parametrize("wrong", ["method.lam", "=5", "", " =1"])
def test_a_set_without_a_key_and_a_value_is_refused(wrong: str) -> None:
    with pytest.raises(UserError, match="--set takes KEY=VALUE"):
        load(sets=[wrong])


# Refusals


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        # unknown keys and names, with the nearest known
        (["round=5"], r"unknown key round \(did you mean rounds\?\)"),
        (["method.lamb=5"], r"unknown key method.lamb \(did you mean lam\?\)"),
        (["train.learning_rate=1"], "unknown key train.learning_rate"),
        (["pool.kernal=3"], r"unknown key pool.kernal \(did you mean kernel\?\)"),
        (["model.channel=3"], r"unknown key model.channel \(did you mean channels\?\)"),
        (["partition.alpha=3"], "unknown key partition.alpha"),
        (
            ["method.name=local", "method.lam=1"],
            "unknown key method.lam of local: it belongs to method.name = .*fed",
        ),
        (["method.name=local", "method.x=1"], "unknown key method.x; there are no keys here"),
        (
            ["committee.name=simulated", "committee.behaviour=lye"],
            r"not 'lye' \(did you mean lie\?\)",
        ),
        (["xyz=1"], "unknown key xyz; the keys here are name, seed"),
        (
            ["method.name=fedprot"],
            r"method.name must be one of .*, not 'fedprot' \(did you mean fedproto\?\)",
        ),
        (["model.name=resnet"], r"model.name must be one of .* \(did you mean resnet18\?\)"),
        (["partition.name=class"], r"partition.name must be one of .* \(did you mean classes\?\)"),
        (
            ["cohorts=[{clients=20, chanels=3}]"],
            r"unknown key cohorts\[0\].chanels \(did you mean channels\?\)",
        ),
        # wrong types
        (["rounds=1.5"], "rounds must be a whole number, not 1.5"),
        (["rounds=true"], "rounds must be a whole number, not True"),
        (["rounds=many"], "rounds must be a whole number, not 'many'"),
        (["name=5"], "name must be a string, not 5"),
        (["data.augment=1"], "data.augment must be true or false, not 1"),
        (["method.lam=x"], "method.lam must be a number, not 'x'"),
        (["train.lr=true"], "train.lr must be a number, not True"),
        (["method=fedproto"], "method must be a section, not the value 'fedproto'"),
        (["rounds.x=1"], "rounds must be a whole number"),
        (["data.name=5"], "data.name must be a string, not 5"),
        (["data.name=[1]"], "data.name must be a string"),
        ([f"data.name={'x' * 256}"], r"File name too long\); check data.name"),
        (["data.name=~nobody-of-this-name/x"], r"home directory.*; check data.name"),
        (['data.name="a\\u0000b"'], "null byte"),
        (["method.name=[1]"], "method.name"),
        (["model.name={a=1}"], "model.name"),
        (["cohorts=5"], "cohorts must be a list of tables"),
        (["cohorts=[5]"], "cohorts must be a list of tables"),
        (["cohorts=[{channels=5}]"], r"cohorts\[0\].clients must be a whole number"),
        # impossible values
        (["rounds=0"], "rounds must be 1 or more, not 0"),
        (["clients=0"], "clients must be 1 or more"),
        (["checkpoint=0"], "checkpoint must be 1 or more"),
        (["seed=-1"], "seed must be 0 or more, not -1"),
        (["participation=0"], "participation must be above 0, at most 1"),
        (["participation=1.5"], "participation must be above 0, at most 1"),
        (["participation=nan"], "participation must be above 0, at most 1"),
        (["init=random"], "init must be one of own, same, not 'random'"),
        (["train.lr=0"], "train.lr"),
        (["train.lr=nan"], "train.lr"),
        (["train.lr=inf"], "train.lr"),
        (["train.momentum=1"], "train.momentum"),
        (["train.epochs=0"], "train.epochs"),
        (["train.batch_size=0"], "train.batch_size"),
        (["method.lam=-1"], r"method.lam must be 0 to 1e\+38, not -1"),
        (["method.lam=nan"], "method.lam"),
        (["method.lam=inf"], "method.lam"),
        (
            ["method.aggregate=mode"],
            r"method.aggregate must be one of weighted, mean, .*, not 'mode'",
        ),
        (["method.name=fedrfq-lean", "method.bits=3"], "bits must be 4 to 24, not 3"),
        (
            ["method.name=fesem", "method.clusters=21"],
            "method.clusters is 21, but the experiment has only 20 clients: lower method.clusters",
        ),
        (["validation=-0.1"], "validation must be 0 to below 1"),
        (["validation=1"], "validation must be 0 to below 1"),
        (["validation=nan"], "validation must be 0 to below 1"),
        (["attack.clients=21"], "attack.clients is 21, but the experiment has only 20 clients"),
        (["attack.clients=-1"], "attack.clients"),
        (["attack.start_round=0"], "attack.start_round"),
        (
            ["attack.name=sign-flip", "method.name=local"],
            "attack 'sign-flip' changes uploaded prototypes, but method 'local' uploads none",
        ),
        (
            ["attack.name=sign-flip", "method.name=fedavg"],
            "attack 'sign-flip' changes uploaded prototypes, but method 'fedavg' uploads none",
        ),
        (
            ["detector.name=median", "method.name=fedper"],
            "detectors judge uploaded prototypes, but method 'fedper' uploads none",
        ),
        (["attack.name=sign"], r"attack.name must be one of .*, not 'sign'"),
        (["method.name=tgp"], r"\(did you mean fedtgp\?\); your own: --plugin FILE"),
        (["attack.name=walk"], "not 'walk'; your own: --plugin FILE, or"),
        (["detector.name=medain"], r"detector.name must be one of .* \(did you mean median\?\)"),
        (["detector.lone=drop"], "detector.lone must be one of keep, apart, hold, not 'drop'"),
        (
            ["committee.name=simulate"],
            r"committee.name must be one of .* \(did you mean simulated\?\)",
        ),
        (
            ["committee.servers=4"],
            "unknown key committee.servers of direct: it belongs to committee.name = simulated",
        ),
        (["committee.name=simulated", "committee.faulty=2"], "faulty = 2 of 4 servers: 1 at most"),
        (
            ["committee.name=simulated", "method.name=fedavg"],
            "a committee agrees on prototypes, but method 'fedavg' uploads none",
        ),
        (["method.reduction=mean"], "method.reduction must be one of samples, classes, not 'mean'"),
        (["partition.shots=0"], "partition.shots must be 1 or more, not 0"),
        (["partition.ways=0"], "partition.ways must be 1 to the dataset's classes, not 0"),
        (["partition.spread=-1"], "partition.spread must be 0 or more"),
        (["partition.name=dirichlet", "partition.alpha=0"], "partition.alpha"),
        (["pool.name=min"], "pool.name must be one of .*, not 'min'"),
        (["pool.stride=0"], "pool.stride must be 1 or more, not 0"),
        (["pool.kernel=3"], "3×3 pooling kernel is larger than the 2×25 map"),
        (["pool.rows=3"], "50 values cannot be folded into 3 rows"),
        (["model.hidden=51"], "51 values cannot be folded into 2 rows"),
        (["method.name=local", "pool.name=softpool"], "method 'local' does not pool"),
        (["method.name=fedproto", "pool.name=avg"], "method 'fedproto' does not pool"),
        (
            ["cohorts=[{clients=5}, {clients=6}]"],
            r"the cohorts have 5 \+ 6 clients, but the experiment has 20",
        ),
        (
            ["cohorts=[{clients=5}, {clients=15, hidden=40}]"],
            r"the cohorts' prototypes have \[40, 50\] values",
        ),
        (
            ["method.name=fedper", "cohorts=[{clients=5}, {clients=15, channels=18}]"],
            "'fedper' averages models, so .*: remove the cohorts",
        ),
        (["cohorts=[{clients=20}, {clients=0}]"], "cohorts"),
        (["cohorts=[{clients=21}, {clients=-1}]"], "cohorts"),
        (["model.drop=1"], "model.drop"),
        (["model.drop=-1"], "model.drop"),
        (["model.channels=0"], "model.channels"),
        (["model.name=mlp", "model.width=0"], "model.width"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_on_one_line(sets: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        load(sets=sets)
    assert "\n" not in str(caught.value)
    # Four lines of a terminal: the longest names all the attacks that there are.
    assert len(str(caught.value)) <= 320


@pytest.mark.parametrize("text", ["rounds = ", "rounds = 1\nrounds = 2", "[data", "name = \udcff"])
def test_a_file_that_is_no_toml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=r"wrong.toml cannot be read as TOML") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no experiment file .*fedrfq config > "):
        load(tmp_path / "none.toml")
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path)


def test_more_ways_than_classes_are_refused_when_dealt() -> None:
    images = np.zeros((40, 1, 28, 28), np.uint8)
    labels = np.arange(40) % 4
    dataset = Dataset(
        "toy", images, labels, images, labels, tuple("abcd"), (0.5,), (0.5,), sha256=""
    )
    experiment = load(sets=["partition.shots=1", "partition.test_shots=1", "clients=2"])
    assert len(deal(experiment, dataset).train) == 2
    with pytest.raises(UserError, match=r"partition.ways = 5 exceeds the 4 classes of toy"):
        deal(replace(experiment, partition=Classes(ways=5, shots=1, test_shots=1)), dataset)


@pytest.mark.parametrize(
    "file",
    sorted(
        path
        for path in EXAMPLES.glob("*.toml")
        # Not the grids, nor where noise is in the way of most methods and detectors.
        if tomllib.loads(path.read_text()).keys().isdisjoint({"seeds", "privacy"})
    ),
    ids=lambda path: path.stem,
)
@pytest.mark.parametrize("key", list(SWITCHED))
def test_every_example_takes_every_kind_over_its_own(file: Path, key: str) -> None:
    """Methods that average models or train a server are the exceptions.

    Cohorts exclude the first, and committees both, unless clients exchange statistics on a map.
    """
    for name, kind in SWITCHED[key].items():
        if key == "method" and kind.trains_server and load(file).committee != Direct():
            with pytest.raises(UserError, match="trains one trusted server"):
                load(file, [f"{key}.name={name}"])
            assert type(load(file, [f"{key}.name={name}", "committee.name=direct"]).method) is kind
            continue
        held = load(file)
        kinds: dict[str, Any] = {"method": held.method, "public": held.public, key: kind()}
        uploads = kinds["method"].exchanges or kinds["public"].used
        if not uploads and load(file).committee != Direct():
            with pytest.raises(UserError, match="a committee agrees on prototypes"):
                load(file, [f"{key}.name={name}"])
            switched = load(file, [f"{key}.name={name}", "committee.name=direct"])
            assert type(getattr(switched, key)) is kind
            continue
        if key == "method" and kind().centres and load(file).cohorts:
            with pytest.raises(UserError, match="averages models"):
                load(file, [f"{key}.name={name}"])
        else:
            if key == "attack":
                more = ["attack.clients=1"]
            else:
                more = []
            assert type(getattr(load(file, [f"{key}.name={name}", *more]), key)) is kind


def test_a_switched_kind_leaves_nothing_of_the_old_one(tmp_path: Path) -> None:
    """Switch files with every key, as `fedrfq config` writes them, from any kind to any other."""
    for key in ("method", "attack", "detector", "committee"):
        for before in SWITCHED[key]:
            if key == "attack":
                more = {"clients": 1}
            else:
                more = {}
            path = write(tmp_path, toml.dump(from_table({key: {"name": before, **more}}).table()))
            for after in SWITCHED[key]:
                assert load(path, [f"{key}.name={after}"]) == from_table(
                    {key: {"name": after, **more}}
                )


def test_a_pool_alone_goes_with_its_method(tmp_path: Path) -> None:
    path = write(tmp_path, '[pool]\nname = "avg"\n')
    assert load(path).pool.name == "avg"
    assert load(path, ["method.name=fedproto"]).pool.name == "none"
    assert load(path, ["method.name=fedrfq"]).pool.name == "avg"


@pytest.mark.parametrize("chosen", ["fedrfq", "fedproto"])
def test_what_no_kind_knows_is_refused_when_a_kind_is_set(tmp_path: Path, chosen: str) -> None:
    path = write(tmp_path, '[method]\nname = "fedrfq"\nlamm = 0.5\n')
    with pytest.raises(UserError, match=r"unknown key method\.lamm"):
        load(path, [f"method.name={chosen}"])


def test_what_is_set_stays_strict_when_a_kind_is_switched(tmp_path: Path) -> None:
    path = write(tmp_path, '[method]\nname = "fedrfq"\nlam = 0.5\n')
    assert load(path, ["method.name=fedproto"]).method.lam == 0.5  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"unknown key method.lam"):
        load(path, ["method.name=local", "method.lam=2"])
    with pytest.raises(UserError, match=r"method.name must be a string"):
        load(path, ["method.name=[1]"])


@pytest.mark.parametrize("name", ["../out", "", ".", "a/b", "a\\b", ".hidden", "new\nline"])
def test_a_name_is_one_plain_folder(name: str) -> None:
    with pytest.raises(UserError, match="name must be a plain folder name"):
        from_table({"name": name})


def test_a_model_for_all_cohorts_reaches_those_of_its_kind() -> None:
    rows = [{"clients": 5, "name": "cnn"}, {"clients": 15, "channels": 18}]
    found = from_table({"model": {"name": "cnn", "hidden": 40}, "cohorts": rows})
    assert [cohort.model.features() for cohort in found.models()] == [40, 40]


def test_prototypes_fit_an_upload() -> None:
    with pytest.raises(UserError, match="more than the 65535"):
        from_table({"model": {"hidden": 140000}})


def test_own_data_is_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.npz").touch()
    monkeypatch.chdir(tmp_path)
    found = from_table({"data": {"name": "mine.npz"}})
    assert found.data.name == str(tmp_path / "mine.npz")
    assert found.name == "mine-fedrfq"


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    os.mkfifo(path)
    with pytest.raises(UserError, match="it is a pipe, and nobody writes to it"):
        load(path)
    # Of another program's output, as a shell gives it.
    reads, writes = os.pipe()

    def write() -> None:
        os.write(writes, b"rounds = 7\n")
        os.close(writes)

    writing = Thread(target=write)
    writing.start()
    assert load(Path(f"/dev/fd/{reads}")).rounds == 7
    writing.join()
    os.close(reads)
