"""The lines of a report that repeat its run do repeat it, whatever it was made with."""

from __future__ import annotations

import html
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import fedrfq
from fedrfq.data import Dataset
from fedrfq.models import any_module
from fedrfq.report import rerun
from fedrfq.report.run_data import RunData
from fedrfq.runs.run_directory import RunDirectory
from support.command import fedrfq as command
from support.command import records, sets
from support.outside import PULL, new_process, typed, written
from support.reports import rendered

SETS = ["clients=3", "rounds=1", "partition.shots=6", "partition.test_shots=4"]
SMALL: dict[str, Any] = {
    "clients": 3,
    "rounds": 1,
    "partition": {"shots": 6, "test_shots": 4},
}
NETS = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))
"""


@pytest.fixture(autouse=True)
def _alone(apart: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def lines(path: Path) -> list[str]:
    found = rerun.lines(RunData.read(path))
    # They stand on the page.
    assert "\n".join(found) in html.unescape(rendered(path))
    return found


def repeated(path: Path, repeat: Callable[[], object]) -> None:
    """Assert that what is said to repeat a run gives the same run."""
    before = set(Path("runs").glob("*/*"))
    repeat()
    (again,) = set(Path("runs").glob("*/*")) - before
    experiments = [RunDirectory.open(run).experiment().hash() for run in (path, again)]
    assert experiments[0] == experiments[1]
    assert records(path) == records(again)


def test_plugins_and_modules_are_given_to_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path, "pull.py", PULL)
    written(tmp_path, "nets.py", NETS)
    given = ["--plugin", "pull.py", "--module", "nets.py:make"]
    command("run", *given, *sets([*SETS, "method.name=pull"]))
    (path,) = Path("runs").glob("*/*")
    (line,) = lines(path)
    assert line == f"fedrfq run {path}/experiment.toml --device cpu {shlex.join(given)}"
    new_process()
    monkeypatch.setattr(any_module, "_GIVEN", {})
    (tmp_path / "config" / "fedrfq" / "plugins").rename(tmp_path / "gone")
    repeated(path, lambda: command(*shlex.split(line)[1:]))


def test_a_dataset_of_a_plugin_is_made_with_it(tmp_path: Path) -> None:
    """`fedrfq data get` needs the plugin as well, and a package is installed first."""
    written(tmp_path, "pull.py", PULL)
    command("run", "--plugin", "pull.py", *sets([*SETS, "method.name=pull"]))
    (path,) = Path("runs").glob("*/*")
    file = path / "experiment.toml"
    file.write_text(file.read_text().replace('"mnist5k"', '"mnist"'))
    assert rerun.lines(RunData.read(path))[0] == "fedrfq data get mnist --plugin pull.py"
    file.write_text(file.read_text().replace('"pull.py"', '"package pull"'))
    found = rerun.lines(RunData.read(path))
    assert found[:2] == ["pip install pull", "fedrfq data get mnist"]


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))


@pytest.mark.parametrize("what", ["data", "model", "method", "all"])
def test_what_no_command_can_name_is_given_in_python(
    what: str, mnist: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Dataset.from_arrays(mnist.train_x[::5], mnist.train_y[::5], name="digits")
    given: dict[str, Any] = {"data": data, "model": lambda: model()}
    given = {name: thing for name, thing in given.items() if what in (name, "all")}
    table = dict(SMALL)
    if what in ("method", "all"):
        typed(PULL, {"__name__": "__main__"})
        table["method"] = {"name": "pull"}
    run = fedrfq.run(table, "cpu", **given)
    run.finish()
    said = lines(run.path)
    assert ("# register 'method pull' as the notebook did" in said) == ("method" in table)
    assert (f"# data: 'given:digits' with sha256 '{data.sha256}'" in said) == ("data" in given)
    assert any(line.startswith("# model: ") for line in said) == ("model" in given)
    new_process()
    monkeypatch.setattr(any_module, "_GIVEN", {})
    if "method" in table:
        typed(PULL, {"__name__": "__main__"})
    repeated(run.path, lambda: exec("\n".join(said), given))


def test_given_data_with_a_plugins_file(mnist: Dataset, tmp_path: Path) -> None:
    written(tmp_path, "it's.py", PULL)
    data = Dataset.from_arrays(mnist.train_x[::5], mnist.train_y[::5], name="digits")
    fedrfq.load_plugin("it's.py")
    run = fedrfq.run({**SMALL, "method": {"name": "pull"}}, "cpu", data=data)
    run.finish()
    said = lines(run.path)
    new_process()
    (tmp_path / "config" / "fedrfq" / "plugins").rename(tmp_path / "gone")
    repeated(run.path, lambda: exec("\n".join(said), {"data": data}))
