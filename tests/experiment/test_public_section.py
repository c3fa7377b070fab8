"""The section public of an experiment: what it allows and refuses, and whose hash it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrfq.errors import UserError
from fedrfq.experiment import from_table, load
from fedrfq.models.public_maps import NoMap, RandomMap

MAP = "public.name=random"
REVOCABLE = "public.revocable=true"
# Without a word of public maps. Runs are found and resumed by it.
OLD_HASH = "d93c06e9c4a33a5a3e57e090a3c3e78c4f47c2a9d784131b8efcb9a015333f38"


def test_experiments_without_a_map_keep_their_hashes() -> None:
    assert load().public == NoMap()
    assert load().hash() == OLD_HASH
    assert load(sets=["public.name=none"]).hash() == OLD_HASH


def test_maps_that_are_not_centred_keep_their_hashes() -> None:
    before = "a8c93dcea536593cab1be488b7d0bce6f3462612d0957fe961829bc9374be3db"
    assert load(sets=[MAP]).hash() == before
    assert load(sets=[MAP, "public.centred=true"]).hash() != before


def test_maps_that_are_not_mirrored_keep_their_hashes() -> None:
    before = "ee738d4c2f3c47d0d2c42898d21523941d9288aaf2a6b74a9dd29e8c55450e17"
    photographs = "public.name=resnet18"
    assert load(sets=[photographs]).hash() == before
    assert load(sets=[photographs, "public.mirrored=true"]).hash() != before


def test_a_map_and_its_settings_are_part_of_the_hash() -> None:
    changes = [[], [MAP], [MAP, "public.bits=6"], [MAP, "public.every=3"], [MAP, "public.second=8"]]
    assert len({load(sets=sets).hash() for sets in changes}) == len(changes)


def test_no_map_replaces_a_map_and_its_settings(tmp_path: Path) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text('[public]\nname = "random"\nbits = 16\nsecond = 8\n')
    assert load(file, ["public.name=none"]).public == NoMap()


@pytest.mark.parametrize(
    "needs",
    [
        ["committee.name=simulated"],
        ["detector.name=median"],
        ["attack.name=sign-flip", "attack.clients=2"],
    ],
    ids=lambda needs: needs[0],
)
@pytest.mark.parametrize("method", ["local", "fedavg", "codes"])
def test_who_exchanges_statistics_may_have_what_prototypes_have(
    method: str, needs: list[str]
) -> None:
    with pytest.raises(UserError, match="uploads none"):
        load(sets=[f"method.name={method}", *needs])
    found = load(sets=[f"method.name={method}", *needs, MAP])
    assert isinstance(found.public, RandomMap)


def test_a_server_that_trains_is_refused_with_a_map_too() -> None:
    with pytest.raises(UserError, match="trains one trusted server"):
        load(sets=["method.name=fedtgp", "committee.name=simulated", MAP])


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["public.name=rand"], r"public.name must be one of .* \(did you mean random\?\)"),
        (["public.second=8"], "unknown key public.second of none: it belongs to .* = random"),
        (["public.bits=16"], "unknown key public.bits of none: it belongs to .* = random"),
        ([MAP, "public.size=64"], "unknown key public.size of random: .* = resnet18"),
        ([MAP, "public.bits=3"], "public.bits must be 4 to 24; 12 or more with moments, not 3"),
        ([MAP, "public.norm=0"], "public.norm must be above 0"),
        ([MAP, "public.norm=nan"], "public.norm must be above 0"),
        ([MAP, "public.projection=513"], "at most the 512 values of the map, not 513"),
        ([MAP, "public.moments=full"], "needs public.bits of 12 or more, not 8"),
        ([MAP, "public.moments=half"], "public.moments must be one of none, full, not 'half'"),
        ([MAP, "public.classifier=knn"], "public.classifier must be one of lda, nearest"),
        ([MAP, "public.shrinkage=2"], "public.shrinkage must be 0 to 1"),
        ([MAP, "public.threshold=1"], "public.threshold must be 0 to below 1"),
        ([MAP, "public.every=-1"], "public.every must be 0 or more"),
        ([MAP, "public.leave=3:1"], "set public.revocable = true"),
        ([MAP, REVOCABLE, "public.leave=3:x"], "public.leave has '3:x': expected ROUND:CLIENT"),
        ([MAP, REVOCABLE, "public.leave=1:3"], "with a round after the first"),
        ([MAP, REVOCABLE, "public.leave=2:3 4:3"], "has '4:3'.* each client once"),
        ([MAP, REVOCABLE, "public.leave=2:20"], "names client 20: there are 0 to 19"),
        (["clients=2", MAP, REVOCABLE, "public.leave=2:0 3:1"], "leave one that stays"),
        ([MAP, "public.filter_seed=-1"], "public.filter_seed must be 0 or more"),
        (["public.name=resnet18", "public.size=16"], "public.size must be 32 to 512, not 16"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(sets=sets)


def test_statistics_in_every_round_would_leave_no_round_for_prototypes() -> None:
    table = {"public": {"name": "random", "every": 1}}
    with pytest.raises(UserError, match="leaves method 'fedrfq' none for its prototypes"):
        from_table(table)
    assert from_table({**table, "method": {"name": "local"}}).public.every == 1
