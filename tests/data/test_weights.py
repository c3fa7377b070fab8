"""Weights: fetched, checked, stored as safetensors, checked again."""

from dataclasses import replace

import pytest
import torch

from fedrfq.data import resnet18, weights
from fedrfq.data.origins import Origin
from fedrfq.errors import UserError

STATE = {"fc.weight": torch.arange(6.0).reshape(2, 3), "fc.bias": torch.tensor([1.0, 2.0])}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def known(monkeypatch):
    """Tiny weights under the name resnet18; their first place is down."""

    def down(work, bar):
        raise UserError("no answer")

    places = (Origin("one", down), Origin("two", lambda work, bar: dict(STATE)))
    tiny = replace(weights.WEIGHTS["resnet18"], places=places, sha256=weights.sha256(STATE))
    monkeypatch.setitem(weights.WEIGHTS, "resnet18", tiny)
    return tiny


def test_fetched_once_then_there(known, cache, capsys):
    path = weights.get_weights("resnet18", progress=False)
    assert path == cache / "resnet18-imagenet.safetensors"
    loaded = weights.load_weights("resnet18")
    assert all(torch.equal(STATE[name], loaded[name]) for name in STATE)
    weights.get_weights("resnet18")
    assert "in the cache and valid" in capsys.readouterr().err


def test_altered_weights_are_refused_and_got_again(known):
    path = weights.get_weights("resnet18", progress=False)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(
        UserError, match=r"expected tensors of sha256.*run: fedrfq data get resnet18"
    ):
        weights.load_weights("resnet18")
    weights.get_weights("resnet18", progress=False)
    weights.load_weights("resnet18")


def test_missing_or_unknown_weights():
    with pytest.raises(UserError, match="run: fedrfq data get resnet18"):
        weights.load_weights("resnet18")
    with pytest.raises(UserError, match="expected one of resnet18, found 'resnet19'"):
        weights.get_weights("resnet19")


def test_wrong_weights_from_every_place(known, monkeypatch):
    monkeypatch.setitem(weights.WEIGHTS, "resnet18", replace(known, sha256="0" * 64))
    with pytest.raises(
        UserError, match=r"resnet18: .*one \(no answer\); two \(.*expected tensors of sha256 0000"
    ):
        weights.get_weights("resnet18", progress=False)


def test_counts_of_batches_are_left_out():
    given = {**STATE, "bn1.num_batches_tracked": torch.tensor(5)}
    assert weights.sha256(resnet18._state(given)) == weights.sha256(STATE)
    with pytest.raises(UserError, match="expected named tensors"):
        resnet18._state({"a": 3})
