"""Trained clients: predictions on images, and files that other programs load."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrfq import data
from fedrfq.cli.finished_run import _cells
from fedrfq.files import tensors
from fedrfq.learning.draws import start
from fedrfq.runs.inference import ClientModel
from fedrfq.runs.run_directory import RunDirectory
from support.command import SMALL, fedrfq, sets
from support.small import tiny


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> list[Path]:
    from PIL import Image

    folder = tmp_path_factory.mktemp("pictures")
    dataset = data.load("mnist5k")
    for i in range(4):
        Image.fromarray(dataset.test_x[100 * i, 0]).save(folder / f"{i}.png")
    return [folder / f"{i}.png" for i in range(4)]


def test_predictions_are_those_of_the_trained_model(whole, pictures):
    done = fedrfq("predict", whole, 2, *pictures, "--json")
    found = json.loads(done.stdout.splitlines()[-1])["predictions"]
    assert [row["file"] for row in found] == [str(path) for path in pictures]
    assert all(
        row["class"] in "0123456789" and row["nearest_prototype"] in "0123456789" for row in found
    )


def test_predictions_say_where_the_client_never_saw_the_class(whole, pictures):
    rows = [line.split(",") for line in (whole / "partition.csv").read_text().splitlines()[1:]]
    client = ClientModel.load(RunDirectory.open(whole), 2)
    assert client.held == {int(label) for number, label, *_ in rows if number == "2"}
    (row,) = replace(client, held=frozenset([0])).predict(pictures[:1])
    assert row["seen"] is (row["class"] == "0")
    assert row["nearest_prototype_seen"] is (row["nearest_prototype"] == "0")
    row.update({"class": "7", "seen": True, "nearest_prototype": "4"})
    assert _cells({**row, "nearest_prototype_seen": True})[-1] == ""
    assert _cells({**row, "nearest_prototype_seen": False})[-1] == "never saw class 4"
    # A run that did not record who holds what claims nothing.
    assert _cells({**row, "seen": None, "nearest_prototype_seen": None})[-1] == ""


def test_predict_refuses_what_is_no_picture_and_wrong_sizes(whole, pictures, tmp_path):
    (tmp_path / "text.png").write_text("hello")
    errors = fedrfq("predict", whole, 0, tmp_path / "text.png", expect=2).stderr
    assert "expected a PNG, JPEG or TIFF image" in errors
    assert "clients 0 to 5" in fedrfq("predict", whole, 6, pictures[0], expect=2).stderr
    from PIL import Image

    Image.new("L", (30, 30)).save(tmp_path / "large.png")
    assert "30×30" in fedrfq("predict", whole, 0, tmp_path / "large.png", expect=2).stderr


def test_grey_pictures_saved_in_colour_are_grey(whole, pictures, tmp_path):
    from PIL import Image

    Image.open(pictures[0]).convert("RGB").save(tmp_path / "rgb.png")
    Image.new("RGB", (28, 28), (255, 0, 0)).save(tmp_path / "red.png")
    same = [
        json.loads(fedrfq("predict", whole, 0, path, "--json").stdout.splitlines()[-1])
        for path in (pictures[0], tmp_path / "rgb.png")
    ]
    assert same[0]["predictions"][0]["probability"] == same[1]["predictions"][0]["probability"]
    assert "in colour" in fedrfq("predict", whole, 0, tmp_path / "red.png", expect=2).stderr


def test_an_export_to_onnx_says_nothing_but_what_it_wrote(whole, tmp_path):
    script = "from fedrfq.cli.main import main; main()"
    arguments = ["export", whole, "1", "--format", "onnx", "--out", tmp_path / "a.onnx"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert (done.stdout, done.stderr) == (f"wrote {tmp_path / 'a.onnx'}\n", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_exports_compute_the_same(whole, pictures, tmp_path):
    import onnxruntime

    from fedrfq.runs.inference import ClientModel

    client = ClientModel.load(RunDirectory.open(whole), 1)
    x = client.images(pictures)
    logits, features = (t.detach().numpy() for t in client.module(x))
    scripted = torch.jit.load(str(client.export(tmp_path / "a.pt", "torchscript")))(x)
    np.testing.assert_allclose(scripted[0].detach().numpy(), logits, rtol=1e-5, atol=1e-5)
    session = onnxruntime.InferenceSession(str(client.export(tmp_path / "a.onnx", "onnx")))
    answered = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(answered[0], logits, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(answered[1], features, rtol=1e-4, atol=1e-4)
    stored, _ = tensors.load(client.export(tmp_path / "a.safetensors", "safetensors"))
    assert set(stored) == set(client.params)
    # One client's model, not the stack it came from.
    assert (tmp_path / "a.pt").stat().st_size < 250_000


def test_export_command_writes_beside_the_run(whole):
    done = fedrfq("export", whole, 0)
    written = Path(done.stdout.split("wrote ")[1].strip())
    assert written.parent == whole
    # Other tests look at what lies in the run's directory.
    written.unlink()


def test_a_trained_model_needs_no_data(whole, pictures, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRFQ_DATA", str(tmp_path / "empty"))
    monkeypatch.setattr(data, "load", None)
    assert fedrfq("predict", whole, 2, pictures[0]).stdout
    from fedrfq.runs.inference import ClientModel

    client = ClientModel.load(RunDirectory.open(whole), 1)
    _, metadata = tensors.load(client.export(tmp_path / "a.safetensors", "safetensors"))
    assert json.loads(metadata["classes"]) == list("0123456789")
    assert json.loads(metadata["shape"]) == [1, 28, 28]


def test_clients_that_exchange_no_prototypes_are_shown_and_predict_by_their_head(
    tmp_path, pictures
):
    sets_ = sets([*SMALL, "rounds=2", "method.name=fedper", "model.name=mlp"])
    result = json.loads(fedrfq("run", *sets_, "--out", tmp_path, "--json").stdout.splitlines()[-1])
    assert result["prototype_accuracy_mean"] is None
    assert result["prototype_failure"] is None
    assert result["parameters_per_round"] > 0
    done = fedrfq("predict", result["run_dir"], 2, *pictures, "--json")
    found = json.loads(done.stdout.splitlines()[-1])["predictions"]
    assert all(row["class"] in "0123456789" and row["nearest_prototype"] is None for row in found)
    assert "accuracy, own head" in fedrfq("show", result["run_dir"]).stdout


def test_clients_predict_by_the_codes_they_agreed_on(tmp_path, pictures):
    sets_ = sets([*SMALL, "rounds=2", "method.name=codes", "model.name=mlp"])
    result = json.loads(fedrfq("run", *sets_, "--out", tmp_path, "--json").stdout.splitlines()[-1])
    done = fedrfq("predict", result["run_dir"], 2, *pictures, "--json")
    found = json.loads(done.stdout.splitlines()[-1])["predictions"]
    assert all(row["nearest_prototype"] in list("0123456789") for row in found)


@pytest.mark.parametrize(("method", "known"), [("codes", True), ("fedrfq-coded", False)])
def test_a_network_client_predicts_by_no_prototypes_but_those_it_has(
    method, known, mnist, pictures, tmp_path
):
    """Its folder has its model. Codes follow from the seed; what was exchanged is not there."""
    experiment = tiny(method={"name": method})
    about = {
        "classes": json.dumps(mnist.classes),
        "shape": json.dumps(mnist.shape),
        "mean": "[0.1]",
        "std": "[0.3]",
    }
    tensors.save(tmp_path / "model.safetensors", start(experiment, 0, mnist), about)
    found = ClientModel.of_party(tmp_path, experiment, 0).predict(pictures)
    assert [row["nearest_prototype"] is not None for row in found] == [known] * len(pictures)
