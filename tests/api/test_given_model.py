"""Runs with a module of the user's own, from Python and from the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import fedrfq
from fedrfq.leakage.audit import LeakageAudit
from fedrfq.models import any_module
from fedrfq.runs.given_modules import options
from support.command import CPU, assert_same_run, only_run
from support.command import fedrfq as command

SMALL: dict[str, Any] = {
    "clients": 3,
    "rounds": 2,
    "checkpoint": 1,
    "partition": {"shots": 6, "test_shots": 4},
}
SETS = ["clients=3", "rounds=2", "checkpoint=1", "partition.shots=6", "partition.test_shots=4"]


class Net(nn.Module):
    def __init__(self, num_classes: int, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Dropout(0.2))
        self.out = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> fedrfq.Run:
    run = fedrfq.run(SMALL, "cpu", tmp_path_factory.mktemp("module"), model=Net)
    run.finish()
    return run


def test_the_run_says_what_model_it_had(finished: fedrfq.Run) -> None:
    model = vars(finished.experiment.model)
    assert model["source"].endswith(":Net")
    assert (model["head_layer"], model["width"]) == ("out", 12)
    assert finished.result is not None
    assert finished.result["accuracy_mean"] > 0


def test_models_are_the_users_own_class(finished: fedrfq.Run) -> None:
    model = finished.models[2]
    assert isinstance(model, Net)
    assert all(p.requires_grad for p in model.parameters())
    rows = finished.predict(2, torch.zeros(1, 28, 28, dtype=torch.uint8))
    mean, std = (finished.environment["data"][key][0] for key in ("mean", "std"))
    logits = model(torch.full((1, 1, 28, 28), -mean / std))
    assert rows["probability"][0] == pytest.approx(logits.softmax(-1).max().item(), abs=1e-4)


@pytest.fixture
def nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what this process was given, as if it were a new one."""
    monkeypatch.setattr(any_module, "_GIVEN", {})


@pytest.mark.usefixtures("nothing_given")
def test_a_stopped_run_goes_on_with_the_same_module_only(
    finished: fedrfq.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fedrfq.run(SMALL, "cpu", tmp_path, model=Net)
    next(iter(run))
    with pytest.raises(fedrfq.UserError, match="not the one that the run began with"):
        fedrfq.resume(run.path, "cpu", model=lambda: Net(10, 13))
    monkeypatch.setattr(any_module, "_GIVEN", {})
    # In a process that was not given it, the module is asked for; what needs no model works.
    done = command("resume", run.path, expect=2)
    assert "--module" in done.stderr
    assert "1 of 2" in command("show", run.path).stdout
    again = fedrfq.resume(run.path, "cpu", model=Net)
    again.finish()
    assert_same_run(finished.path, again.path)


@pytest.mark.usefixtures("nothing_given")
def test_an_audit_of_privacy_asks_for_the_module_before_it_attacks(finished: fedrfq.Run) -> None:
    with pytest.raises(fedrfq.UserError, match="give it with --module"):
        LeakageAudit.of(finished.directory, 3, 100, 0, 0, CPU, lambda *_: None)


def test_cohorts_of_modules_and_of_ours(tmp_path: Path) -> None:
    cohorts = [
        {"clients": 1, "name": "module", "source": "small"},
        {"clients": 1, "name": "module", "source": "large", "feature_layer": "body"},
        {"clients": 1, "name": "mlp", "hidden": 12},
    ]
    given = {"small": Net, "large": lambda: Net(10, 12)}
    run = fedrfq.run({**SMALL, "cohorts": cohorts}, "cpu", tmp_path, model=given)
    run.finish()
    kinds = [type(model).__name__ for model in run.models]
    assert kinds == ["Net", "Net", "TrainedModule"]
    with pytest.raises(fedrfq.UserError, match="'tiny', but the modules given are small"):
        fedrfq.run({"model": {"name": "module", "source": "tiny"}}, model=given)


def test_models_can_be_averaged(tmp_path: Path) -> None:
    run = fedrfq.run({**SMALL, "method": {"name": "fedavg"}}, "cpu", tmp_path, model=Net)
    run.finish()
    first, second = (dict(run.models[k].named_parameters()) for k in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)


NETS = """
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))


print("imported nets")
"""


@pytest.mark.usefixtures("nothing_given")
def test_the_command_line_imports_what_the_user_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    sets = [part for setting in SETS for part in ("--set", setting)]
    command("run", *sets, "--out", tmp_path / "runs", "--module", "nets:make")
    path = only_run(tmp_path / "runs").path
    # With these an interrupted run is continued.
    assert options(only_run(tmp_path / "runs").experiment()) == ["--module", "nets:make"]
    monkeypatch.setattr(any_module, "_GIVEN", {})
    del sys.modules["nets"]
    Image.new("L", (28, 28)).save(tmp_path / "a.png")
    # The module lies where Python would find it, and still no file makes us import it.
    for words in (["show"], ["predict", 0], ["export", 0], ["resume"]):
        # It is finished, so there is nothing to resume.
        code = 0 if words in (["show"], ["resume"]) else 2
        picture = [tmp_path / "a.png"] if words[0] == "predict" else []
        done = command(words[0], path, *words[1:], *picture, expect=code)
        assert "nets" not in sys.modules
        assert "--module nets:make" in done.stderr or code == 0
    words = ("predict", path, 0, tmp_path / "a.png", "--module", "nets:make")
    assert "probability" in command(*words).stdout
    assert "wrote" in command("export", path, 0).stdout
    assert "run.models[N]" in command("export", path, 0, "--format", "onnx", expect=2).stderr
    assert json.loads((path / "result.json").read_text())["rounds"] == 2


SCRIPT = """
import fedrfq
from beside import WIDTH
from torch import nn

class Outer:
    class Net(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.hidden = nn.Linear(784, WIDTH)
            self.out = nn.Linear(WIDTH, classes)
        def forward(self, x):
            return self.out(self.hidden(x.flatten(1)).relu())

if __name__ == "__main__":
    run = fedrfq.run({settings!r}, "cpu", model=Outer.Net)
    next(iter(run))
"""


@pytest.mark.usefixtures("nothing_given")
def test_a_module_in_a_file_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script trains with it, and commands go on from any folder."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT.replace("{settings!r}", repr(SMALL)))
    (folder / "beside.py").write_text("WIDTH = 8\n")
    subprocess.run([sys.executable, "train.py"], cwd=folder, check=True)
    run = only_run(folder / "runs")
    assert options(run.experiment()) == ["--module", "train.py:Outer.Net"]
    assert "--module train.py:Outer.Net" in command("resume", run.path, expect=2).stderr
    monkeypatch.chdir(tmp_path)
    command("resume", run.path, "--module", "scripts/train.py:Outer.Net")
    assert run.result() is not None
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("nets", "FILE.py:NAME or PACKAGE.MODULE:NAME"),
        ("nowhere:Net", "No module named"),
        ("torch:N", "torch has no N"),
        ("nowhere.py:Net", "cannot read nowhere.py"),
        (f"{__file__}:Nat", "has no Nat"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told(source: str, said: str) -> None:
    assert said in command("run", "--module", source, expect=2).stderr


def test_a_file_alone_never_brings_a_module(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('[model]\nname = "module"\nsource = "os:system"\n')
    done = command("run", tmp_path / "e.toml", "--out", tmp_path, expect=2)
    assert "give it with --module" in done.stderr
